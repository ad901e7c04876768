// Owners for orthogonalisation: each matrix is sent to exactly one owner rank, and the load is balanced.
// build: apart
#include "train/sharding/matrix_owners.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "kernels/device/error.h"
#include "tests/train/bucket_rules.h"
#include "tests/train/cut_matrices.h"
#include "train/model/build_model.h"

namespace speedrun::testing {
namespace {

TEST(MatrixOwnersTest, EachMatrixHasOneOwner) {
    const ParameterTable table = parameters_of(odd_model(), 16);
    for (const int shards : {2, 3, 8, 40}) {
        const BucketLayout layout(table, rules_for(table, shards));
        const MatrixOwners owners(layout, 0);
        EXPECT_EQ(owners.all().size(), 3u * (4 + 2)) << "q, k, v, out, up, down";
        std::vector<double> loads(static_cast<size_t>(shards));
        for (const OwnedMatrix& owned : owners.all()) {
            ASSERT_GE(owned.owner, 0);
            ASSERT_LT(owned.owner, shards);
            loads[static_cast<size_t>(owned.owner)] +=
                orthogonalisation_flops(owned.matrix.rows, owned.matrix.cols);
            int64_t stored = 0;
            for (int rank = 0; rank < shards; ++rank)
                stored += MatrixOwners::stored(layout[owned.bucket], owned.matrix, rank).count;
            EXPECT_EQ(stored, owned.matrix.numel());
        }
        EXPECT_EQ(loads, owners.loads());
        EXPECT_LE(owners.imbalance(), 4.0 / 3) << "Graham's bound";
    }
}

// With heads in pairs, q and k give three matrices each, of a third of the rows. Other matrices are unchanged.
TEST(MatrixOwnersTest, HeadRowsAreSeparateMatrices) {
    const ParameterTable table =
        parameters_of(model_of("gpt2", {.layers = 2, .width = 48, .heads = 6, .vocabulary = 257}), 16);
    for (const int shards : {1, 3, 8}) {
        BucketRules rules = rules_for(table, shards);
        rules.heads_per_matrix = {2, 0};
        const BucketLayout layout(table, rules);
        const MatrixOwners owners(layout, 0);
        std::map<std::pair<int64_t, int64_t>, int64_t> shapes;
        int64_t elements = 0;
        double cost = 0;
        for (const OwnedMatrix& owned : owners.all()) {
            const Matrix& m = owned.matrix;
            ++shapes[{m.rows, m.cols}];
            elements += m.numel();
            cost += orthogonalisation_flops(m.rows, m.cols);
            if (m.rows == 16) {
                EXPECT_LT(m.number, 6);
                EXPECT_EQ(m.first, layout.in_bucket(*m.parameter) + m.number * 16 * 48);
            }
        }
        const std::map<std::pair<int64_t, int64_t>, int64_t> expected{
            {{16, 48}, 2 * 6}, {{48, 48}, 2 * 2}, {{192, 48}, 2}, {{48, 192}, 2}};
        EXPECT_EQ(shapes, expected);
        EXPECT_EQ(elements, 2 * 12 * 48 * 48);
        EXPECT_DOUBLE_EQ(std::accumulate(owners.loads().begin(), owners.loads().end(), 0.0), cost);
    }
}

// 124M: 48 matrices of 768 x 768, and 24 with three times their FLOPs.
TEST(MatrixOwnersTest, BalancesManyMatrices) {
    const ParameterTable table = parameters_of(gpt2_124m(), 1024);
    for (const int shards : {2, 4, 8, 16, 64, 1024}) {
        const BucketLayout layout(table, rules_for(table, shards, 0, 8 << 20));
        EXPECT_LE(MatrixOwners(layout, 0).imbalance(), 1.15) << shards << " ranks";
    }
}

// One group. Buckets contain parameters with the same cut.
BucketRules rules_of_cut(const ParameterTable& table, int shards, int64_t target, int index = 0) {
    BucketRules rules;
    rules.num_shards = shards;
    rules.index = index;
    rules.target = target;
    for (const Parameter& p : table.all()) rules.placement_of.push_back(p.cut.all() ? 2 : p.cut.dimension);
    rules.whole_matrix = {true};
    return rules;
}

struct Sharers {
    int shards, tensor;
};

void expect_one_owner_each(const Sharers& sharers, int64_t target) {
    SCOPED_TRACE(
        fmt::format("{} shards x {} of tensor, buckets of {}", sharers.shards, sharers.tensor, target));
    const int all = sharers.shards * sharers.tensor;
    const ParameterTable first_table = cut_matrices({.size = sharers.tensor});
    const BucketLayout first(first_table, rules_of_cut(first_table, sharers.shards, target));
    const MatrixOwners owners(first, 0);
    ASSERT_EQ(owners.all().size(), 2u * (3 + 5)) << "q, k, v and five more";
    ASSERT_EQ(owners.loads().size(), static_cast<size_t>(all));
    std::vector<double> loads(static_cast<size_t>(all));
    for (const OwnedMatrix& owned : owners.all()) {
        const Matrix& m = owned.matrix;
        const Bucket& bucket = first[owned.bucket];
        const bool cut = !m.cut().all();
        const int ranks = MatrixRanks(bucket).size();
        EXPECT_EQ(ranks, cut ? all : sharers.shards) << m.parameter->name;
        ASSERT_GE(owned.owner, 0);
        ASSERT_LT(owned.owner, ranks);
        const double flops = orthogonalisation_flops(m.whole_rows(), m.whole_cols());
        for (int t = 0; t < all / ranks; ++t)
            loads[static_cast<size_t>(owned.owner * (all / ranks) + t)] += flops;
        std::set<int64_t> arrived;  // received elements; indices are concatenated over the slices
        for (int rank = 0; rank < ranks; ++rank) {
            const Range stored = MatrixOwners::stored(bucket, m, rank);
            const int64_t part = MatrixRanks(bucket).part_of(rank) * m.numel();
            for (int64_t e = stored.begin; e < stored.end(); ++e)
                EXPECT_TRUE(arrived.insert(part + e).second) << m.parameter->name << " twice";
        }
        EXPECT_EQ(static_cast<int64_t>(arrived.size()), m.whole_numel()) << m.parameter->name;
        EXPECT_EQ(*arrived.begin(), 0);
        EXPECT_EQ(*arrived.rbegin(), m.whole_numel() - 1);
    }
    EXPECT_EQ(loads, owners.loads());
    EXPECT_LE(owners.imbalance(), 4.0 / 3) << "Graham's bound";
    for (int rank = 1; rank < all; ++rank) {
        const ParameterTable table = cut_matrices({.size = sharers.tensor, .index = rank % sharers.tensor});
        const BucketLayout layout(table, rules_of_cut(table, sharers.shards, target, rank / sharers.tensor));
        const MatrixOwners others(layout, 0);
        for (size_t i = 0; i < owners.all().size(); ++i)
            EXPECT_EQ(others.all()[i].owner, owners.all()[i].owner) << "as rank " << rank << " sees it";
        for (const Bucket& bucket : layout.all())
            EXPECT_EQ(MatrixRanks(bucket).index,
                      MatrixRanks(bucket).parts > 1 ? rank : rank / sharers.tensor);
    }
}

TEST(MatrixOwnersTest, TensorSlicedMatrixHasOneOwner) {
    for (const int tensor : {1, 2, 3, 4})
        for (const int shards : {1, 2, 3, 7})
            for (const int64_t target : {1, 300, 1 << 20}) expect_one_owner_each({shards, tensor}, target);
}

// Tensor ranks balance the load as well as ranks that shard the state.
TEST(MatrixOwnersTest, BalancesOverTensorRanks) {
    const auto flops_of = [](const MatrixOwners& owners) {
        double sum = 0;
        for (const double load : owners.loads()) sum += load;
        return sum;
    };
    const CutSizes sizes{.width = 768, .heads = 768, .hidden = 3072};
    const ParameterTable whole_table = cut_matrices({}, sizes);
    const MatrixOwners whole(BucketLayout(whole_table, rules_of_cut(whole_table, 1, 0)), 0);
    for (const int tensor : {2, 4}) {
        const ParameterTable table = cut_matrices({.size = tensor}, sizes);
        const MatrixOwners owners(BucketLayout(table, rules_of_cut(table, 1, 0)), 0);
        double mixes = 0;
        for (const OwnedMatrix& owned : owners.all())
            if (owned.matrix.cut().all())
                mixes += orthogonalisation_flops(owned.matrix.rows, owned.matrix.cols);
        EXPECT_EQ(flops_of(owners), flops_of(whole) + (tensor - 1) * mixes)
            << "only what is not cut is repeated";
        EXPECT_LE(owners.imbalance(), 1.15) << tensor;
    }
}

// The fifth matrix goes to rank 3, which had the smallest load and then has the largest. "mix" is replicated, so one
// owner per tensor rank orthogonalises it: ranks 2 and 3, or ranks 0 and 1. Ranks 0 and 1 have the smaller maximum,
// although rank 2 has the smallest load.
TEST(MatrixOwnersTest, ReplicatedMatrixMinimisesMaximumLoad) {
    ParameterTable table;
    for (const int64_t side : {64, 62, 60, 58, 56})
        table.declare(fmt::format("{}", side), {{Dimension::width, side}, {Dimension::hidden, side / 2, 2}},
                      {});
    table.declare("mix", {{Dimension::width, 16}, {Dimension::numbers, 16}}, {});
    const BucketLayout layout(table, rules_of_cut(table, 2, 0));
    std::map<std::string, int> owner;
    const MatrixOwners owners(layout, 0);
    for (const OwnedMatrix& owned : owners.all()) owner[owned.matrix.parameter->name] = owned.owner;
    const std::map<std::string, int> expected{{"64", 0}, {"62", 1}, {"60", 2},
                                              {"58", 3}, {"56", 3}, {"mix", 0}};
    EXPECT_EQ(owner, expected);
}

// All head matrices of a stack have one owner, even if a tensor rank's slice splits them: 6 heads of 8 rows, in
// pairs.
TEST(MatrixOwnersTest, HeadMatricesOfStackShareOwner) {
    for (const int parts : {2, 3}) {
        ParameterTable table;
        const int64_t rows = 48 / parts;
        table.declare("qkv",
                      {{Dimension::head_width, 3 * rows, parts, {rows, rows, rows}}, {Dimension::width, 20}},
                      {});
        table.set_head_rows(0, {.stacks = 2, .heads = 6});
        BucketRules rules = rules_of_cut(table, 1, 0);
        rules.heads_per_matrix = {2};
        const MatrixOwners owners(BucketLayout(table, rules), 0);
        ASSERT_EQ(owners.all().size(), 3u);
        const int64_t counts[] = {3, 3, 1}, numbers[] = {0, 3, 6};
        double cost = 0;
        for (size_t i = 0; i < 3; ++i) {
            const Matrix& m = owners.all()[i].matrix;
            EXPECT_EQ(m.count, counts[i]);
            EXPECT_EQ(m.number, numbers[i]);
            EXPECT_EQ(m.rows, 48 / parts);
            EXPECT_EQ(m.own_rows(), 48 / counts[i]);
            cost += static_cast<double>(m.count) * orthogonalisation_flops(48 / counts[i], 20);
        }
        EXPECT_DOUBLE_EQ(std::accumulate(owners.loads().begin(), owners.loads().end(), 0.0), cost);
    }
}

// An owner sends nothing to itself. Of 96 elements on 2 x 2 ranks it already stores 32, so two thirds are sent.
TEST(MatrixOwnersTest, SentBytesExcludeLocalElements) {
    ParameterTable table;
    table.declare("down", {{Dimension::width, 8}, {Dimension::hidden, 6, 2}}, {});
    const BucketLayout layout(table, rules_of_cut(table, 2, 0));
    const Bucket& bucket = layout[0];
    EXPECT_EQ(bucket.shard_size, 32) << "a multiple of 16, so that the second shard has 16 elements";
    EXPECT_EQ(MatrixOwners(layout, 0).all()[0].owner, 0);
    EXPECT_EQ(MatrixOwners(layout, 0).sent_bytes(bucket, 2), (96 - 32) * 2 / 4.0);
}

TEST(MatrixOwnersTest, RejectsMixedPlacements) {
    const ParameterTable table = cut_matrices({.size = 2});
    BucketRules rules = rules_of_cut(table, 2, 1 << 20);
    rules.placement_of.clear();
    const BucketLayout mixed(table, rules);
    EXPECT_THROW(MatrixOwners(mixed, 0), Error);
}

}  // namespace
}  // namespace speedrun::testing
