// Steps of matrices that ranks share, mainly over the tensor axis. They equal one rank's steps on whole matrices bit
// for bit, because an owner does the same work on the same numbers.
#include "train/sharding/matrix_update.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <mutex>

#include "tests/distributed/rank_threads.h"
#include "tests/distributed/rank_values.h"
#include "tests/each_element.h"
#include "tests/train/cut_matrices.h"
#include "tests/train/small_model.h"
#include "train/sharding/step_collectives.h"

namespace speedrun::testing::matrix_update_test {

constexpr int64_t kSteps = 3;
constexpr uint32_t kStart = 1000;  // salt of the masters; a step has the salt of its gradients

struct Case {
    Mesh mesh;
    Strategy strategy;
    bool normuon = false;
    DType precision = DType::f32;
    int64_t bucket_bytes = 1 << 20;           // one bucket per kind of cut
    int64_t heads = 0;                        // heads per matrix, of 6
    int64_t max_batched = int64_t{32} << 20;  // UpdateStores::max_batched

    std::string describe() const {
        return fmt::format("{}, {}, {}, {}, buckets of {}, {} heads of a matrix, batches of {}",
                           mesh.describe(), word_of(strategy), normuon ? "normuon" : "muon",
                           name_of(precision), bucket_bytes, heads, max_batched);
    }
};

Sharing sharing_of(const Case& c) {
    return {.strategy = c.strategy, .bucket_bytes = c.bucket_bytes};
}

OptimizersConfig optimizers_of(const Case& c) {
    OptimizerGroupConfig group = optimizer_group(OptimizerKind::muon, {"*"});
    group.lr = 0.05;
    group.weight_decay = 0.1;
    group.muon.normuon = c.normuon;
    group.muon.heads_per_matrix = c.heads;
    group.muon.cautious = true;
    OptimizersConfig config;
    config.groups = {group};
    return config;
}

using Value = std::function<float(const Parameter& p, int64_t element, uint32_t salt)>;

float whole_value(const Parameter& p, int64_t element, uint32_t salt) {
    return 0.01f * rank_value(p.id, element, salt);
}

// Reducer, optimizer and gather of one rank.
class Stepper {
  public:
    Stepper(const Case& c, const Ranks& ranks)
        : Stepper(c, ranks,
                  cut_matrices(
                      {.size = ranks.mesh().size(Axis::tensor),
                       .index = ranks.mesh().coordinates(ranks.rank())[static_cast<size_t>(Axis::tensor)]}),
                  whole_value) {}
    Stepper(const Case& c, const Ranks& ranks, ParameterTable table, Value value)
        : runtime_({.device = DeviceKind::cpu, .precision = c.precision, .threads = 1, .communicates = true}),
          table_(std::move(table)),
          value_(std::move(value)),
          parameters_(table_, bucket_rules(ranks, table_, optimizers_of(c)), runtime_),
          gradients_(table_, parameters_.layout(), runtime_, gradient_memory(ranks, 1, true)),
          reducer_(ranks, parameters_, gradients_, runtime_),
          scale_(runtime_.device(), "test scale", MemoryCategory::workspace, size_of(DType::f32)),
          updates_(make_group_updates(optimizers_of(c), StepOrder::reverse,
                                      {parameters_, gradients_, reducer_, runtime_, c.max_batched})) {
        std::vector<std::vector<float>> start;
        for (const Parameter& p : table_.all()) {
            start.emplace_back();
            for (int64_t i = 0; i < p.whole_numel(); ++i) start.back().push_back(value_(p, i, kStart));
        }
        parameters_.assign(start);
        *static_cast<float*>(scale_.data()) = 1;
        update().reset(runtime_.compute());
        runtime_.synchronize();
    }

    void step(int64_t number) {
        const BucketLayout& layout = parameters_.layout();
        for (const Bucket& bucket : layout.all()) {
            auto* const gradient = static_cast<float*>(gradients_.shard(bucket).data);
            for (const Piece& piece : layout.shard_pieces(bucket)) {
                const std::vector<float> values = part(*piece.parameter, static_cast<uint32_t>(number));
                std::copy_n(values.begin() + piece.in_parameter.begin, piece.in_parameter.count,
                            gradient + piece.in_shard);
            }
        }
        StepContext context{.step = number,
                            .lr_factor = 0.9,
                            .grad_scale = scale_.tensor(DType::f32, {1}),
                            .ops = runtime_.ops(),
                            .stream = runtime_.optimizer()};
        std::vector<float> numbers = update().numbers(context);
        context.numbers = Tensor(numbers.data(), DType::f32, {static_cast<int64_t>(numbers.size())});
        // One bucket at a time: with several ranks, each bucket's values are gathered after its update.
        for (const int id : layout.backward_order()) {
            const Bucket* const bucket[] = {&layout[id]};
            update().begin(bucket, context);
        }
        update().compute_updates(context);
        for (const int id : layout.forward_order()) {
            const Bucket* const bucket[] = {&layout[id]};
            update().finish(bucket, context);
        }
        runtime_.synchronize();
    }

    // Values that this rank stores after the steps, by (parameter, element): elements of whole masters, or numbers of
    // per-matrix state.
    using Numbers = std::map<std::pair<std::string, int64_t>, float>;
    Numbers masters() const {
        const BucketLayout& layout = parameters_.layout();
        Numbers all;
        for (const Bucket& bucket : layout.all()) {
            const auto* const shard = static_cast<const float*>(parameters_.master_shard(bucket).data);
            for (const Piece& piece : layout.shard_pieces(bucket))
                each_element(*piece.parameter, piece.in_parameter, [&](int64_t at, int64_t in_whole) {
                    all[{piece.parameter->name, in_whole}] = shard[piece.in_shard + at];
                });
        }
        return all;
    }
    Numbers matrix_state() const {
        Numbers all;
        for (const Bucket& bucket : parameters_.layout().all())
            for (const StateShard& shard : updates_.front()->state(bucket))
                for (int64_t i = 0; shard.parameter && i < shard.values.numel(); ++i)
                    all[{shard.parameter->name, shard.begin + i}] = shard.values.as<float>()[i];
        return all;
    }
    int64_t bytes_sent() const { return reducer_.bytes_sent(); }
    double planned_bytes() const {  // bytes per rank and step
        double bytes = 0;
        for (const BucketCollectives& row : reducer_.collectives())
            for (const StepCollective& c : row.collectives)
                bytes += c.kind == Collective::all_to_all ? c.sent_bytes : 0;
        return bytes;
    }
    int64_t staging_bytes() {
        for (const auto& entry : runtime_.device().memory().entries())
            if (entry.name == "parts of matrices") return entry.bytes;
        return 0;
    }

  private:
    GroupUpdate& update() { return *updates_.front(); }

    std::vector<float> part(const Parameter& p, uint32_t salt) const {
        std::vector<float> values(static_cast<size_t>(p.numel()));
        each_element(p, {0, p.numel()}, [&](int64_t in_slice, int64_t in_whole) {
            values[static_cast<size_t>(in_slice)] = value_(p, in_whole, salt);
        });
        return values;
    }

    Runtime runtime_;
    const ParameterTable table_;
    const Value value_;
    ParameterStore parameters_;
    GradientStore gradients_;
    Reducer reducer_;
    Buffer scale_;
    std::vector<std::unique_ptr<GroupUpdate>> updates_;
};

// Number of found values that differ from the expected ones in a bit.
int64_t differences(const Stepper::Numbers& found, const Stepper::Numbers& expected) {
    int64_t different = 0;
    for (const auto& [where, value] : found) {
        const float other = expected.at(where);
        different += std::memcmp(&value, &other, sizeof(float)) != 0;
    }
    return different;
}

void expect_equal_to_one_rank(const Case& c) {
    SCOPED_TRACE(c.describe());
    Case one = c;
    one.mesh = Mesh();
    one.max_batched = Case{}.max_batched;
    Stepper alone(one, Ranks(one.mesh, sharing_of(one)));
    for (int64_t step = 0; step < kSteps; ++step) alone.step(step);
    const Stepper::Numbers masters = alone.masters(), state = alone.matrix_state();
    EXPECT_EQ(alone.staging_bytes(), 0);
    EXPECT_EQ(state.empty(), !c.normuon);

    std::mutex mutex;
    std::map<std::pair<std::string, int64_t>, int> stored, owned;  // number of ranks
    int64_t sent = 0, staged = 0;
    double planned = 0;
    run_ranks(c.mesh.world_size(), [&](World& world) {
        const Ranks ranks(c.mesh, sharing_of(c), &world);
        Stepper rank(c, ranks);
        for (int64_t step = 0; step < kSteps; ++step) rank.step(step);
        const Stepper::Numbers mine = rank.masters(), my_state = rank.matrix_state();
        const std::scoped_lock lock(mutex);
        EXPECT_EQ(differences(mine, masters), 0) << "masters of rank " << world.rank();
        EXPECT_EQ(differences(my_state, state), 0) << "state of rank " << world.rank();
        for (const auto& [where, value] : mine) ++stored[where];
        for (const auto& [where, value] : my_state) ++owned[where];
        sent += rank.bytes_sent();
        planned += rank.planned_bytes();
        staged = std::max(staged, rank.staging_bytes());
    });
    EXPECT_EQ(stored.size(), masters.size());
    EXPECT_EQ(owned.size(), state.size());
    const int T = c.mesh.size(Axis::tensor),
              copies = c.strategy == Strategy::ddp ? 1 : c.mesh.size(Axis::replicate);
    const auto whole_on_each = [](const std::string& name) { return name.find(".mix") != std::string::npos; };
    for (const auto* numbers : {&stored, &owned})
        for (const auto& [where, times] : *numbers)
            ASSERT_EQ(times, copies * (whole_on_each(where.first) ? T : 1))
                << where.first << " " << where.second;
    EXPECT_NEAR(static_cast<double>(sent), kSteps * planned, 1e-6);
    EXPECT_EQ(staged > 0, T > 1) << "parts cut along columns need staging memory";
}

// Matrices of a bank are independent, and no bit depends on the number of matrices in a batch.
TEST(MatrixBatchTest, StepsAreIndependentOfBatchSize) {
    for (const bool normuon : {false, true}) {
        for (const int64_t heads : {0, 1}) {
            Case c{Mesh(), Strategy::ddp, normuon, DType::f32, 1 << 20, heads};
            Stepper whole(c, Ranks(c.mesh, sharing_of(c)));
            for (int64_t step = 0; step < kSteps; ++step) whole.step(step);
            for (const int64_t max_batched : {1, 100, 200, 500, 1000}) {
                c.max_batched = max_batched;
                SCOPED_TRACE(c.describe());
                Stepper batched(c, Ranks(c.mesh, sharing_of(c)));
                for (int64_t step = 0; step < kSteps; ++step) batched.step(step);
                EXPECT_EQ(batched.masters(), whole.masters());
                EXPECT_EQ(batched.matrix_state(), whole.matrix_state());
                EXPECT_EQ(whole.matrix_state().empty(), !normuon);
            }
        }
    }
}

// q and k of 12 rows each, wider than tall, and v of 18, taller than wide: NorMuon's lines and the factor √(rows/columns) follow
// each matrix. Each head matrix equals a parameter of its own.
TEST(MatrixStackTest, StackedMatricesEqualSeparateOnes) {
    constexpr int64_t kColumns = 15, kHeads = 6;
    const std::vector<int64_t> stacks{12, 12, 18};
    for (const bool normuon : {false, true}) {
        for (const int64_t heads : {0, 2}) {
            const Case stacked{Mesh(), Strategy::ddp, normuon, DType::f32, 1 << 20, heads};
            Case single = stacked;
            single.heads = 0;
            SCOPED_TRACE(stacked.describe());
            ParameterTable one, several;
            one.declare("qkv",
                        {{.dimension = Dimension::head_width, .size = 42, .stacks = stacks},
                         {Dimension::width, kColumns}},
                        {});
            one.set_head_rows(0, {.stacks = 2, .heads = kHeads});
            std::vector<int64_t> first;  // element of the stack; index: parameter
            int64_t row = 0;
            for (size_t stack = 0; stack < stacks.size(); ++stack) {
                const int64_t matrices = heads > 0 && stack < 2 ? kHeads / heads : 1;
                for (int64_t m = 0; m < matrices; ++m) {
                    const int64_t rows = stacks[stack] / matrices;
                    first.push_back(row * kColumns);
                    several.declare(fmt::format("{}.{}", stack, m),
                                    {{Dimension::head_width, rows}, {Dimension::width, kColumns}}, {});
                    row += rows;
                }
            }
            for (ParameterTable* const table : {&one, &several}) table->set_num_units(1);
            Stepper whole(stacked, Ranks(Mesh(), sharing_of(stacked)), one, whole_value);
            Stepper apart(single, Ranks(Mesh(), sharing_of(single)), several,
                          [&](const Parameter& p, int64_t element, uint32_t salt) {
                              return whole_value(one[0], first[static_cast<size_t>(p.id)] + element, salt);
                          });
            for (int64_t step = 0; step < kSteps; ++step) {
                whole.step(step);
                apart.step(step);
            }
            const Stepper::Numbers masters = whole.masters(), of_each = apart.masters();
            ASSERT_EQ(of_each.size(), 42U * kColumns);
            for (const Parameter& p : several.all())
                for (int64_t i = 0; i < p.numel(); ++i)
                    ASSERT_EQ(of_each.at({p.name, i}),
                              masters.at({"qkv", first[static_cast<size_t>(p.id)] + i}))
                        << p.name << " " << i;
            EXPECT_NE(masters.begin()->second, whole_value(one[0], 0, kStart));
        }
    }
}

class MatrixUpdateTest : public ::testing::TestWithParam<Case> {};

TEST_P(MatrixUpdateTest, StepsMatchOneRank) {
    for (const bool normuon : {false, true}) {
        Case c = GetParam();
        c.normuon = normuon;
        expect_equal_to_one_rank(c);
        c.bucket_bytes = 1;  // each parameter by itself
        expect_equal_to_one_rank(c);
        c.heads = 2;  // two heads per matrix, three heads per tensor rank
        expect_equal_to_one_rank(c);
        c.max_batched = 1;  // each matrix by itself
        expect_equal_to_one_rank(c);
    }
}
using enum Strategy;
INSTANTIATE_TEST_SUITE_P(Meshes, MatrixUpdateTest,
                         ::testing::Values(Case{Mesh({1, 1, 1, 2}), zero1}, Case{Mesh({1, 1, 1, 3}), zero2},
                                           Case{Mesh({1, 2, 1, 2}), zero1}, Case{Mesh({1, 3, 1, 2}), zero2},
                                           Case{Mesh({1, 2, 1, 3}), zero3}, Case{Mesh({1, 2, 1, 2}), ddp},
                                           Case{Mesh({1, 1, 1, 2}), ddp}, Case{Mesh({2, 2, 1, 2}), ddp},
                                           Case{Mesh({2, 2, 1, 2}), zero3}, Case{Mesh({2, 1, 1, 2}), zero1},
                                           Case{Mesh({1, 2, 2, 2}), zero1}, Case{Mesh({1, 4, 1, 1}), zero1},
                                           Case{Mesh({1, 2, 1, 2}), zero2, false, DType::bf16},
                                           Case{Mesh({1, 1, 1, 4}), ddp, false, DType::bf16}));

}  // namespace speedrun::testing::matrix_update_test
