// Bytes that the engine sends, against formulas.
// Covers: train/model/graph/value_collectives.cpp
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/device/error.h"
#include "tests/distributed/engine.h"
#include "tests/distributed/rank_threads.h"
#include "tests/errors.h"
#include "train/engine/memory_plan.h"
#include "train/engine/step_runner.h"
#include "train/sharding/matrix_owners.h"

namespace speedrun::testing::engine_bytes_test {

// Mean bytes that a rank sends to gather matrices on their owners and to return the updates: all elements but the
// ones that the owner stores itself.
double exchanged_per_step(const Mode& mode, const Layout& layout) {
    const int64_t size = size_of(*mode.config.precision);
    double bytes = 0;
    const MatrixOwners owners(layout.buckets, 0);
    for (const OwnedMatrix& owned : owners.all()) {
        const Bucket& bucket = layout.buckets[owned.bucket];
        const int parts = owned.matrix.parameter->cut.parts;
        int64_t foreign = 0;  // elements that the owner does not store, summed over parts
        for (int64_t i = owned.matrix.first; i < owned.matrix.first + owned.matrix.numel(); ++i)
            for (int part = 0; part < parts; ++part)
                foreign += i / bucket.shard_size * parts + part != owned.owner;
        bytes += 2.0 * static_cast<double>(foreign * size) / (bucket.num_shards * parts);
    }
    return bytes;
}

// Mean bytes that a rank sends per step: (n-1)/n of the buffer for each reduce_scatter, all_gather and all_to_all,
// twice that for an all_reduce.
double bytes_per_step(const Mode& mode, const Layout& layout) {
    const Mesh mesh = mode.mesh();
    const int tensor = mesh.size(Axis::tensor), all = mode.num_ranks() / tensor,
              shards = mesh.size({Axis::shard, Axis::context}), copies = mesh.size(Axis::replicate);
    const auto share = [](int ranks, int64_t bytes) {
        return static_cast<double>(bytes) * (ranks - 1) / ranks;
    };
    const Sharing& sharing = layout.ranks.sharing();
    const bool ddp = mode.has("ddp"), zero3 = mode.has("zero3");
    const auto microbatches = static_cast<double>(mode.accumulation());
    const double reduces = sharing.accumulate == Accumulate::reduce_scatter ? microbatches : 1;
    double bytes = 2 * share(mode.num_ranks(), 2 * 4);  // loss and stop
    const auto& buckets = layout.buckets.all();
    const bool cut =
        std::any_of(buckets.begin(), buckets.end(), [](const Bucket& b) { return b.num_shards > 1; });
    const int squares = (!cut ? 1 : ddp ? all : shards) * tensor;
    if (squares > 1) bytes += 2 * share(squares, layout.buckets.size() * 4);
    for (const Bucket& bucket : layout.buckets.all()) {
        // Partial terms of the tensor axis: the whole bucket, or the shard in which microbatches are accumulated.
        const Parameter& any = bucket.first();
        if (any.cut.all() && any.summed.intersects({Dimension::own_tokens, Dimension::head_width}))
            bytes += 2 * share(tensor, layout.buckets.padded(bucket) * size_of(sharing.reduce_dtype) /
                                           (sharing.accumulate == Accumulate::reduce_scatter ? shards : 1));
        const int64_t gradient = layout.buckets.padded(bucket) * size_of(sharing.reduce_dtype);
        const bool f32 = bucket.full_precision || !mode.has("bf16");
        const int64_t values = layout.buckets.padded(bucket) * (f32 ? 4 : 2);
        if (ddp && bucket.num_shards > 1) {
            bytes += share(all, gradient) + share(all, values);  // Muon's state is sharded under ddp too
        } else if (ddp) {
            bytes += 2 * share(all, gradient);
        } else {
            bool read_again = false, in_last_unit = false;  // in backward; where backward begins
            for (const Parameter* p : bucket.parameters) {
                for (const UnitUse& use : p->uses) read_again |= use.in_backward;
                in_last_unit |= p->uses.back().unit == layout.table.num_units() - 1;
            }
            const bool again = zero3 && read_again && *sharing.reshard_after_forward != Reshard::no &&
                               !(in_last_unit && *sharing.reshard_after_forward == Reshard::except_last);
            const bool kept = !zero3 || *sharing.reshard_after_forward == Reshard::no;
            bytes += reduces * share(shards, gradient);
            bytes += 2 * share(copies, gradient / shards);
            bytes += (kept ? 1 : microbatches) * (again ? 2 : 1) * share(shards, values);
        }
    }
    if (mode.has("muon")) bytes += exchanged_per_step(mode, layout);
    return bytes;
}

// Mean bytes of keys and values that a rank sends per step, in a stage with this window. Each key is sent once to
// every other rank with a query that sees it, and its gradient is returned. A recomputed forward sends the key again.
// first_keys: of all rows of the step; empty: each row is one document.
double exchanged_values(const Mode& mode, int64_t window, const std::vector<int32_t>& first_keys = {}) {
    const int C = mode.mesh().size(Axis::context);
    const int64_t K = (kSequence + 2 * C - 1) / (2 * C);
    const auto has = [&](int rank, int64_t place) {
        return place / K == rank || place / K == 2 * C - 1 - rank;
    };
    int64_t sent = 0;  // keys in all rows
    for (int64_t row = 0; row < mode.rows(); ++row) {
        for (int rank = 0; rank < C; ++rank) {
            for (int64_t key = 0; key < kSequence; ++key) {
                bool seen = false;
                for (int64_t query = key; query < kSequence && (window == 0 || query - key < window);
                     ++query) {
                    const int64_t at = row * kSequence + query;
                    const int64_t first =
                        first_keys.empty() ? 0 : first_keys[static_cast<size_t>(at)] % kSequence;
                    seen = seen || (has(rank, query) && key >= first);
                }
                sent += seen && !has(rank, key);
            }
        }
    }
    const ModelConfig& model = mode.config.model;
    // Family parts: one of its four layers has no attention. The smears before attention read the row before each
    // chunk, which is on another rank except at the border of the two middle chunks.
    const bool parts = mode.has("model=parts");
    const int64_t attentions = parts ? 3 : model.parts.layers.count, before = parts ? 2 * C - 2 : 0;
    // The last checkpointed block keeps its activations.
    const int64_t again = mode.has("full") ? attentions - 1 : 0;
    const int64_t numbers =
        (2 * attentions + again) * sent * 2 * model.model_dim + 2 * mode.rows() * before * model.model_dim;
    return static_cast<double>(numbers * size_of(*mode.config.precision)) / (mode.data_ranks() * C);
}

// Bytes that a rank sends between parts of matrices per step: (T-1)/T of the stream's rows, eight times per block and
// four times for embeddings and head. An all_reduce counts as a reduce_scatter and an all_gather. The loss adds two
// f32 numbers per token for every other rank.
double exchanged_between_matrices(const Mode& mode) {
    const int tensor = mode.mesh().size(Axis::tensor), context = mode.mesh().size(Axis::context);
    if (tensor == 1) return 0;
    const ModelConfig& model = mode.config.model;
    const int64_t size = size_of(*mode.config.precision);
    const auto tokens = static_cast<double>(mode.rows() * kSequence / (mode.data_ranks() * context));
    const double once = tokens * static_cast<double>(model.model_dim * size) * (tensor - 1) / tensor;
    const double losses = tokens * 2 * 4 * (tensor - 1);
    return static_cast<double>(8 * model.parts.layers.count + 4) * once + losses;
}

// Compares bytes counted at the send, the planned bytes of step_collectives, and the formula. The plan is an upper
// bound: it does not know the documents.
TEST(EngineBytesTest, MatchFormula) {
    for (const std::string words :
         {"ddp 1x4 /3 muon", "ddp 2x2", "zero1 1x4 /3 muon", "zero1 1x4 bf16",
          "zero1 2x2 muon after_backward", "zero2 1x4 /3 muon bf16", "zero2 2x2 /3",
          "zero2 2x2 /3 reduce_bf16", "zero3 1x4 /3 muon bf16", "zero3 2x2 /3 muon",
          "zero3 1x4 /3 accumulate=reduce_scatter reshard=true",
          "zero3 1x4 /3 accumulate=local reshard=false",
          // Context: with 3 ranks, the last chunk is shorter.
          "zero1 1x2 /3 muon bf16 context=2", "zero3 context=3 full", "ddp 2x1 context=2 full",
          "ddp 2x1 context=2 full stages", "zero2 context=2 model=parts",
          "zero1 1x2 /3 muon bf16 context=3 full", "zero1 1x2 /3 muon bf16 context=4 stages",
          // Tensor
          "zero1 1x2 /3 muon bf16 tensor=2 heads=4", "ddp 2x1 tensor=3", "zero3 1x2 /3 tensor=2 heads=4",
          "zero1 1x2 /3 muon bf16 tensor=2 heads=4 sequence", "ddp 2x1 tensor=3 sequence",
          "zero3 1x2 /3 tensor=2 heads=4 sequence"}) {
        const Mode mode = mode_of(words);
        const Layout layout(mode);
        const Config& config = mode.config;
        const std::vector<BucketCollectives> values = plan_memory(config, layout.ranks).values;
        double sent = 0;  // bytes per rank
        for (int64_t stage = 0; stage < config.schedule.num_stages(); ++stage) {
            auto rows = step_collectives(layout.buckets, layout.ranks, *mode.config.precision);
            rows.push_back(values[static_cast<size_t>(stage)]);
            double planned = 0;
            for (const double kind : step_wire_bytes(rows, static_cast<int>(mode.accumulation())))
                planned += kind;
            const double others = bytes_per_step(mode, layout) + exchanged_between_matrices(mode);
            const ModelParts parts = config.in_stage(stage).model.parts;
            const int64_t window = parts.windows.empty() ? 0 : int64_t{parts.windows.front().second};
            EXPECT_NEAR(planned, others + exchanged_values(mode, window), 1e-6)
                << ::testing::PrintToString(mode) << ", stage " << stage;
            for (int64_t step = config.schedule.first_step(stage); step < config.schedule.end_step(stage);
                 ++step)
                sent += others + exchanged_values(mode, window, first_keys_of_step(mode, step));
        }
        EXPECT_NEAR(static_cast<double>(train_ranks(mode).bytes_sent), mode.num_ranks() * sent, 1e-6)
            << ::testing::PrintToString(mode);
    }
}

// Attention that every tensor rank computes whole needs no exchange if each rank has all tokens. Under
// parallel.sequence, tokens are gathered before it in forward and their gradients scattered in backward: half the
// bytes of dividing heads. The model composes heads in two of three layers. The third layer is whole too, because it
// reads the same table of values.
TEST(EngineBytesTest, WholeAttentionSendsFewerBytes) {
    for (const bool sequence : {false, true}) {
        constexpr int kMicrobatches = 3;
        const std::string shared = std::string("zero2 1x2 /3 muon tensor=2 ") + (sequence ? "sequence " : "");
        const auto planned = [&](const std::string& words) {
            const Mode mode = mode_of(shared + words);
            const Layout layout(mode);
            auto rows = plan_memory(mode.config, layout.ranks).values;
            double values = 0, all = 0;
            for (const double kind : step_wire_bytes(rows, kMicrobatches)) values += kind;
            for (const BucketCollectives& row :
                 step_collectives(layout.buckets, layout.ranks, *mode.config.precision))
                rows.push_back(row);
            for (const double kind : step_wire_bytes(rows, kMicrobatches)) all += kind;
            EXPECT_NEAR(static_cast<double>(train_ranks(mode).bytes_sent),
                        mode.num_ranks() * static_cast<double>(kSteps) * all, 1e-6)
                << ::testing::PrintToString(mode);
            return values;
        };
        constexpr double kTokens = 12 * kSequence;      // tokens of a rank
        constexpr double kOnce = kTokens * 48 * 4 / 2;  // half of the rows, f32
        const double divided = planned("heads=4 model=parts");
        EXPECT_NEAR(divided - planned("heads=4 model=composed"), 3 * (sequence ? 2 : 4) * kOnce, 1e-6)
            << sequence;
        planned("heads=6 heads_per_matrix=2 model=newest");
    }
}

// Ranks with different plans throw on every rank before anything is sent.
TEST(EngineOrderTest, MismatchedPlansFail) {
    std::vector<std::string> messages(2);
    run_ranks(2, [&](World& world) {
        try {
            train(mode_of(world.rank() == 0 ? "zero1 1x2" : "zero1 1x2 muon"), &world);
        } catch (const Error& error) {
            messages[static_cast<size_t>(world.rank())] = error.what();
        }
    });
    for (const std::string& message : messages) {
        EXPECT_THAT(message, HasSubstr("collectives of a step"));
        EXPECT_THAT(message, HasSubstr("rank 1"));
    }
}

}  // namespace speedrun::testing::engine_bytes_test
