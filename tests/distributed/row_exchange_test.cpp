// Gradients of tables, exchanged as rows and as whole tables: sums, training, and bytes sent.
#include "train/sharding/row_exchange.h"
#include "tests/errors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/distributed/engine.h"
#include "tests/distributed/rank_threads.h"
#include "tests/distributed/rank_values.h"
#include "train/config/config_json.h"
#include "train/model/build_model.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun::testing::row_exchange_test {

constexpr int64_t kRows = 37, kColumns = 12;
constexpr int64_t kBucketBytes = 16384;  // smaller than any table, so that each table has its own bucket

// A rank, and the index of its sum (0 or 1).
struct Turn {
    int rank, round;
};

// Rows that a rank looks up before a sum. Rank 0: only its first row, so that it has none of most owners. Rank 1:
// none in round 0. Other ranks: own and common rows, some of them twice.
std::vector<int32_t> ids_of(const Turn& turn) {
    const auto [rank, round] = turn;
    if (rank == 0) return {0, 0, kRows};  // kRows: a row of another rank
    if (rank == 1 && round == 0) return {};
    std::vector<int32_t> ids{36, 5, 5, 17};
    for (int i = 0; i < 8; ++i) ids.push_back((rank * 7 + i * 5 + round * 11) % kRows);
    return ids;
}
bool has(const Turn& turn, int64_t row) {
    const std::vector<int32_t> ids = ids_of(turn);
    return row < kRows && std::find(ids.begin(), ids.end(), row) != ids.end();
}

OptimizersConfig adamw() {
    OptimizerGroupConfig all;
    all.type = OptimizerKind::adamw;
    all.params = {"*"};
    OptimizersConfig config;
    config.groups = {all};
    return config;
}

// Runs two sums on one rank and checks its shard.
template <class T>
void sum_twice(World& world, Strategy strategy) {
    ParameterTable table;
    table.declare("table.weight", {{Dimension::rows, kRows}, {Dimension::columns, kColumns}}, {});
    table.add_row_ids(0);
    table.set_num_units(1);
    const int n = world.size();
    const Ranks ranks(Mesh({1, n, 1, 1}), {.strategy = strategy, .reduce_dtype = dtype_of<T>()}, &world);
    const BucketLayout layout(table, bucket_rules(ranks, table, adamw(), {.microbatch = 12, .step = 12}));
    const Bucket& bucket = layout[0];
    ASSERT_EQ(bucket.max_rows, 12);
    Runtime runtime({.device = DeviceKind::cpu, .precision = DType::f32, .threads = 1, .communicates = true});
    const std::vector<BucketCollectives> rows = step_collectives(layout, ranks, DType::f32);
    const auto group = world.connect("rows", ranks.mesh().group(world.rank(), {Axis::shard}));
    RowExchange exchange(rows, layout, ranks, runtime);
    const Buffer whole(runtime.device(), "whole", MemoryCategory::gradients, layout.padded(bucket) * 4);
    auto* const values = static_cast<float*>(whole.data());
    for (const int round : {0, 1}) {
        for (int64_t e = 0; e < layout.padded(bucket); ++e)
            values[e] = has({world.rank(), round}, e / kColumns) ? rank_value(world.rank(), e, 5) : 0;
        const std::vector<int32_t> ids = ids_of({world.rank(), round});
        const auto half = std::span(ids).subspan(0, ids.size() / 2);
        exchange.mark(table[0], half);  // two microbatches
        exchange.mark(table[0], std::span(ids).subspan(half.size()));
        const Tensor tensor = whole.tensor(DType::f32, {layout.padded(bucket)});
        exchange.sum(*group, bucket, tensor, runtime.reduce());
        runtime.reduce().synchronize();
        for (int64_t e = bucket.index * bucket.shard_size;
             e < std::min((bucket.index + 1) * bucket.shard_size, bucket.count); ++e) {
            float sum = 0;
            for (int rank = 0; rank < n; ++rank)
                if (has({rank, round}, e / kColumns))
                    sum += static_cast<float>(static_cast<T>(rank_value(rank, e, 5)));
            if (values[e] == sum) continue;
            // The other ranks wait for this one in the next round.
            ADD_FAILURE() << values[e] << " instead of " << sum << ", element " << e << " on rank "
                          << world.rank() << " of " << n << ", round " << round;
            break;
        }
    }
}

TEST(RowExchangeTest, OwnersSumRowsInRankOrder) {
    for (const int n : {2, 3, 4, 8}) {
        for (const Strategy strategy : {Strategy::ddp, Strategy::zero1}) {
            run_ranks(n, [&](World& world) { sum_twice<float>(world, strategy); });
            run_ranks(n, [&](World& world) { sum_twice<Bf16>(world, strategy); });
        }
    }
}

TEST(RowExchangeTest, RejectsRowOutsideTable) {
    run_ranks(2, [](World& world) {
        ParameterTable table;
        table.declare("table.weight", {{Dimension::rows, 3}, {Dimension::columns, 4}}, {});
        table.add_row_ids(0);
        table.set_num_units(1);
        const Ranks ranks(Mesh({1, 2, 1, 1}), Sharing(), &world);
        const BucketLayout layout(table, bucket_rules(ranks, table, adamw()));
        Runtime runtime({.device = DeviceKind::cpu, .precision = DType::f32, .threads = 1});
        RowExchange exchange(step_collectives(layout, ranks, DType::f32), layout, ranks, runtime);
        const std::vector<int32_t> ids{4};
        EXPECT_THROW(exchange.mark(table[0], ids), Error);
    });
}

std::string refusal_of(const std::vector<std::string>& settings) {
    return error_of(ExitCode::usage, [&] {
        const Config c = parse_config(
            R"({ "model": {"preset": "none", "model_dim": 16, "vocab_size": 100, "tables": {"embed": {}, "more": {}}, "input": [{"type": "table", "table": "embed"}, {"type": "table", "table": "more"}], "layers": {"count": 1, "each": {"mlp": {}}}}, "batch": {"sequence_length": 16, "microbatch_tokens": 64, "tokens_per_step": 128}, "optimizers": {"groups": [{"params": ["more.*"]}, {"params": ["*"]}]}})",
            "test", settings);
        const Ranks ranks = plan_ranks(c, 2);
        bucket_rules(ranks, parameters_of(c.model, 16), c.optimizers);
    });
}

TEST(RowExchangeTest, RejectsInvalidRowExchange) {
    EXPECT_EQ(refusal_of({"model.tables.more.exchange=rows"}), "accepted");
    const auto expect = [](const std::vector<std::string>& settings, const char* message) {
        const std::string refusal = refusal_of(settings);
        EXPECT_THAT(refusal, HasSubstr(message));
    };
    expect({"model.tables.more.exchange=columns"}, "model.tables.more.exchange: expected whole | rows");
    expect({"model.tables.more.exchange=rows", "model.tables.more.rows=positions"},
           "model.tables.more.exchange is rows, but every rank looks up all rows for positions; use whole");
    expect({"model.tables.embed.exchange=rows", "model.head.tied_to=embed"},
           "model.tables.embed.exchange is rows, but the head is tied to \"embed\" (model.head.tied_to)");
    expect(
        {"model.tables.more.exchange=rows", "optimizers.groups.0.type=muon"},
        "more.weight: its rows are exchanged (model.tables, exchange), but muon needs whole matrices: use whole");
}

std::vector<std::string> all_modes() {
    std::vector<std::string> modes;
    for (const std::string& strategy : kStrategies) {
        // The order of a norm's sum differs for the buckets of zero3.
        const std::string clip = strategy == "zero3" ? "" : " clip=0.2";
        const auto add = [&](const std::string& words) {
            modes.push_back(strategy + fmt::format(" bucket_bytes={} ", kBucketBytes) + words);
        };
        add("1x2 /2 model=parts every=2" + clip);
        add("1x3 /2 muon model=injected");
        if (kSanitized) continue;
        add("1x8 model=parts" + clip);
        for (const char* words : {"2x2 /3 after_backward model=injected", "1x4 /2 reduce_bf16 model=parts",
                                  "1x2 bf16 reduce_bf16 in_backward model=parts",
                                  "1x2 /2 context=2 model=injected", "1x2 tensor=2 heads=4 model=parts",
                                  "1x2 /2 graphs every=2 model=injected", "1x3 stages model=places"})
            add(words);
    }
    return modes;
}

class RowsTest : public ::testing::TestWithParam<std::string> {};

// Sums without the absent zero terms have the same bits, because the order of the others is unchanged.
TEST_P(RowsTest, RowExchangeEqualsWholeExchange) {
    Mode mode = mode_of(GetParam());
    const Curve whole = train_ranks(mode);
    exchange_rows(mode);
    const Curve rows = train_ranks(mode, {kSanitized ? 0 : 5e-4, 7});
    EXPECT_EQ(rows.losses, whole.losses);
    EXPECT_EQ(rows.masters, whole.masters);
    if (!mode.has("zero3")) {
        EXPECT_EQ(rows.norms, whole.norms);
        EXPECT_EQ(rows.memory.at("gradients"), whole.memory.at("gradients"));
    }
}
INSTANTIATE_TEST_SUITE_P(Modes, RowsTest, ::testing::ValuesIn(all_modes()),
                         [](const auto& info) { return name_of(info.param); });

// Bytes that all ranks send in ten steps for the gradients of tables.
struct Sent {
    int64_t rows = 0, at_most = 0;  // bytes
};
Sent rows_sent(const Mode& mode) {
    std::vector<Sent> sent(static_cast<size_t>(mode.num_ranks()));
    run_ranks(mode.num_ranks(), [&](World& world) {
        const Ranks ranks = mode.ranks(&world);
        const Layout layout(mode);
        const auto source = batches_of(mode, ranks);
        const bool ddp = mode.has("ddp");
        const bool each = layout.ranks.sharing().accumulate == Accumulate::reduce_scatter;
        const int64_t bytes = 48 * size_of(layout.ranks.sharing().reduce_dtype);
        Sent& own = sent[static_cast<size_t>(world.rank())];
        std::map<std::string, std::set<int32_t>> seen;  // key: table
        for (int64_t i = 0; i < kSteps * mode.accumulation(); ++i) {
            const Batch& batch = source->next();
            for (const char* name : {"embed.weight", "values.weight"})
                seen[name].insert(batch.tokens.begin(), batch.tokens.end());
            for (const auto& [column, ids] : batch.columns)
                if (column.ends_with("-grams")) seen["grams.weight"].insert(ids.begin(), ids.end());
            const bool last = (i + 1) % (mode.accumulation() * mode.config.optimizers.groups[1].every) == 0;
            if (!last && !each) continue;
            for (auto& [name, rows] : seen) {
                const Bucket& bucket = layout.buckets.bucket_of(layout.table.find(name));
                const int64_t index = ranks.mesh().group(world.rank(), {Axis::shard, Axis::context}).index;
                for (const int64_t row : rows) {
                    if (ddp) own.rows += bytes * (mode.num_ranks() - 1);
                    for (int64_t owner = row * 48 / bucket.shard_size;
                         !ddp && owner <= (row * 48 + 47) / bucket.shard_size; ++owner)
                        own.rows += owner == index ? 0 : bytes;
                }
                rows.clear();
            }
        }
        const auto times = static_cast<double>(each ? kSteps * mode.accumulation()
                                                    : kSteps / mode.config.optimizers.groups[1].every);
        for (const BucketCollectives& row :
             step_collectives(layout.buckets, layout.ranks, *mode.config.precision))
            for (const StepCollective& c : row.collectives)
                if (c.rows) own.at_most += std::llround(c.sent_bytes * times);
    });
    Sent sum;
    for (const Sent& of : sent) sum = {sum.rows + of.rows, sum.at_most + of.at_most};
    return sum;
}

// Bytes that all ranks send in ten steps for whole tables.
int64_t whole_sent(const Mode& mode) {
    const Layout layout(mode);
    const bool each = layout.ranks.sharing().accumulate == Accumulate::reduce_scatter;
    const int64_t times =
        each ? kSteps * mode.accumulation() : kSteps / mode.config.optimizers.groups[1].every;
    int64_t sent = 0;
    for (const char* name : {"embed.weight", "values.weight", "grams.weight"}) {
        const Bucket& bucket = layout.buckets.bucket_of(layout.table.find(name));
        const int64_t bytes = layout.buckets.padded(bucket) * size_of(layout.ranks.sharing().reduce_dtype);
        const int shards = mode.mesh().size({Axis::shard, Axis::context});
        sent +=
            times * bytes *
            (mode.has("ddp") ? 2 * (mode.num_ranks() - 1) : mode.mesh().size(Axis::replicate) * (shards - 1));
    }
    return sent;
}

TEST(RowBytesTest, MatchLookedUpRows) {
    for (const char* words :
         {"ddp 1x3 /2", "zero1 1x4 /2 every=2", "zero1 2x2 muon reduce_bf16", "zero2 1x8 /3"}) {
        Mode mode = mode_of(fmt::format("{} model=parts bucket_bytes={}", words, kBucketBytes));
        const int64_t whole = train_ranks(mode).bytes_sent - whole_sent(mode);
        exchange_rows(mode);
        const Sent sent = rows_sent(mode);
        EXPECT_EQ(train_ranks(mode).bytes_sent - sent.rows, whole) << ::testing::PrintToString(mode);
        EXPECT_LE(sent.rows, sent.at_most) << "above the plan's bound";
        EXPECT_GE(sent.rows, sent.at_most / 4) << "the plan's bound is loose";
    }
}

}  // namespace speedrun::testing::row_exchange_test
