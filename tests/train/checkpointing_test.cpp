// Activation checkpointing: gradients are bitwise unchanged, memory falls to backward's inputs, FLOPs grow by the
// recomputed part, and no parameter is read after its release.
#include <gtest/gtest.h>

#include <limits>

#include "tests/train/model_harness.h"
#include "tests/train/small_model.h"

namespace speedrun::testing::checkpointing_test {

constexpr int64_t kSequence = 8, kRows = 2, kTokens = kSequence * kRows;

constexpr int64_t kRatio = 3, kHeads = 3;

ModelConfig family(const std::string& name, int64_t layers = 4, int64_t values = 2) {
    ModelSettings more = {fmt::format("model.layers.each.mlp.ratio={}", kRatio)};
    if (name == "recipe")
        more = together({more, {kMix}, with_tables({.layers = layers, .values = values, .max_ngram = 3})});
    if (name == "widths")
        more = together(
            {more,
             {kMix},
             with_tables({.layers = layers, .values = 1}),
             {"model.layers.each.attention.qk_head_dim=8", "model.layers.at.1.attention.v_head_dim=10",
              "model.layers.at.2.attention.value_table=value_embed.0",
              "model.layers.at.2.attention.v_head_dim=20"}});
    return model_of(name == "gpt2" ? name : "modern",
                    {.layers = layers, .width = 48, .heads = kHeads, .vocabulary = 100}, more);
}
const char* const kFamilies[] = {"gpt2", "modern", "recipe"};
const char* const kModels[] = {"gpt2", "modern", "recipe", "widths"};
constexpr Checkpointing kCheckpointings[] = {Checkpointing::none, Checkpointing::selective,
                                             Checkpointing::full};

struct Outcome {
    std::vector<double> losses;
    std::vector<Values> gradients;
    int64_t flops = 0, recomputed_flops = 0;

    bool operator==(const Outcome& other) const {
        return losses == other.losses && gradients == other.gradients;
    }
};

// Fills every parameter with NaN when backward releases it.
class Poisoner final : public PassTracker {
  public:
    explicit Poisoner(ModelHarness& harness)
        : PassTracker(harness.table(), harness.gradients), harness_(harness) {}
    bool poisons = false;

  private:
    void on_param_free(const Parameter& p) override {
        if (!poisons) return;
        harness_.runtime.ops().fill({.x = harness_.model.parameters().compute_flat(p),
                                     .value = std::numeric_limits<float>::quiet_NaN()},
                                    harness_.runtime.compute());
    }

    ModelHarness& harness_;
};

// Two microbatches. With `poison`, parameters released in the second one become NaN.
Outcome run(const ModelConfig& model, const MemoryConfig& memory, DType precision, bool poison = false) {
    ModelHarness h(model, kTokens, kSequence, precision, {}, memory);
    h.randomize(0.2, 5);
    Poisoner poisoner(h);
    h.model.track(&poisoner);
    poisoner.begin_step();
    Outcome outcome;
    const int64_t flops_before = h.runtime.ops().flops();
    for (const uint64_t seed : {1, 2}) {
        poisoner.poisons = poison && seed == 2;
        outcome.losses.push_back(h.backward(random_batch(model, kRows, kSequence, true, seed), 0.05f));
    }
    outcome.flops = h.runtime.ops().flops() - flops_before;
    outcome.recomputed_flops = h.model.recomputed_flops();
    for (const Parameter& p : h.table().all()) outcome.gradients.push_back(h.gradient(p));
    return outcome;
}

TEST(CheckpointingTest, GradientsAreBitwiseEqual) {
    for (const DType precision : {DType::f32, DType::bf16}) {
        for (const char* name : kModels) {
            const ModelConfig model = family(name);
            const Outcome expected = run(model, {}, precision);
            for (const Checkpointing mode : {Checkpointing::selective, Checkpointing::full})
                EXPECT_EQ(run(model, {mode}, precision), expected)
                    << name << " " << name_of(precision) << " " << word_of(mode);
        }
    }
}

// The optimizer may update a parameter as soon as it is released.
TEST(CheckpointingTest, NoParameterIsReadAfterRelease) {
    for (const char* name : kModels) {
        const ModelConfig model = family(name);
        const Outcome expected = run(model, {}, DType::f32);
        for (const Checkpointing mode : kCheckpointings)
            EXPECT_EQ(run(model, {mode}, DType::f32, true), expected) << name << " " << word_of(mode);
    }
}

int64_t activation_bytes(const ModelConfig& model, const MemoryConfig& memory, DType precision) {
    Runtime runtime({.device = DeviceKind::cpu, .precision = precision, .threads = 1, .dry = true});
    const auto transformer = Transformer::make({{model, {.tokens = kTokens, .sequence_length = kSequence}}},
                                               runtime, {.memory = memory});
    return runtime.device().memory().total(MemoryCategory::activations);
}

// r: bytes per element of the compute dtype. m = 1 if blocks mix in the first embedding. y = 1 in a block with a
// value embedding. a = 2 with GELU; 1 with ReLU², whose output overwrites its input. Bytes kept for backward per block:
//     none       r·T·((8 + m + 2y)·C + a·F) + 4·T·(2 + 3·H)
//     selective  r·T·((6 + y)·C + F) + 4·T·3·H
//     full       r·T·(1 + y)·C
// The block being computed needs the bytes of `none`. Everything else (embeddings, logits, gradients) takes at most
// the memory of one block and the head.
TEST(CheckpointingTest, MemoryMatchesFormula) {
    for (const DType precision : {DType::f32, DType::bf16}) {
        for (const char* name : kFamilies) {
            const bool recipe = name == std::string("recipe");
            const ModelConfig model = family(name, 12, 12);
            const int64_t r = precision == DType::f32 ? 4 : 2, T = kTokens, C = model.model_dim,
                          F = kRatio * C, H = kHeads, m = recipe ? 1 : 0, y = m,
                          a = name == std::string("gpt2") ? 2 : 1;
            const auto held = [&](Checkpointing mode) {
                if (mode == Checkpointing::none)
                    return r * T * ((8 + m + 2 * y) * C + a * F) + 4 * T * (2 + 3 * H);
                if (mode == Checkpointing::selective) return r * T * ((6 + y) * C + F) + 4 * T * 3 * H;
                return r * T * (1 + y) * C;
            };
            for (const Checkpointing mode : kCheckpointings) {
                const int64_t blocks = 11 * held(mode) + held(Checkpointing::none);
                const int64_t all = activation_bytes(model, {mode}, precision);
                SCOPED_TRACE(fmt::format("{} {} {}: {} for blocks of {}", name, name_of(precision),
                                         word_of(mode), all, blocks));
                EXPECT_GE(all, blocks - held(Checkpointing::none));
                EXPECT_LE(all, blocks + held(Checkpointing::none) + r * T * model.padded_vocab_size());
            }
        }
    }
}

TEST(CheckpointingTest, FlopsGrowByRecomputation) {
    for (const char* name : kFamilies) {
        const ModelConfig model = family(name);
        const Outcome none = run(model, {}, DType::f32),
                      selective = run(model, {Checkpointing::selective}, DType::f32),
                      full = run(model, {Checkpointing::full}, DType::f32);
        EXPECT_EQ(none.recomputed_flops, 0);
        EXPECT_EQ(selective.recomputed_flops, 0);
        EXPECT_EQ(selective.flops, none.flops);
        // FLOPs of one recomputed block: matmuls of qkv, output projection and MLP up, and causal q·k and p·v. Every
        // checkpointed block but the last is recomputed, in both microbatches.
        const int64_t C = model.model_dim, F = kRatio * C,
                      products = 2 * kTokens * (3 * C * C + C * C + C * F),
                      attention = kRows * 4 * C * kSequence * (kSequence + 1) / 2;
        EXPECT_EQ(full.recomputed_flops, 2 * 3 * (products + attention)) << name;
        EXPECT_EQ(full.flops, none.flops + full.recomputed_flops);
    }
}

}  // namespace speedrun::testing::checkpointing_test
