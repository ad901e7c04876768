// Loss means are over valid targets of the whole step or validation, for any split into microbatches and ranks.
// Reference: the model's token losses, and gradients of their plain sum, added in double.
// Covers: train/engine/microbatch_runner.cpp
#include <cmath>

#include "tests/data/test_files.h"
#include "tests/distributed/rank_threads.h"
#include "tests/train/model_harness.h"
#include "train/config/config_json.h"
#include "train/engine/memory_plan.h"
#include "train/engine/step_runner.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun::testing::loss_mean_test {

constexpr int64_t kRows = 8, kSequence = 16;
constexpr int32_t kVocab = 61;

struct Layout {
    int ranks = 1;
    int64_t microbatches = 1;  // per rank
    const char* strategy = "ddp";
};

Config config_of(const Layout& layout) {
    const int64_t tokens = kRows * kSequence / (layout.ranks * layout.microbatches);
    return parse_config(R"({
        "model": {"preset": "gpt2", "model_dim": 32, "vocab_size": 61,
                  "layers": {"count": 2, "each": {"attention": {"heads": 2}}}},
        "batch": {"sequence_length": 16, "tokens_per_step": 128},
        "optimizers": {"groups": [{"type": "adamw", "params": ["*"], "lr": 0.003}]},
        "schedule": {"steps": 3, "decay": "constant"}, "data": {"document_mask": false},
        "device": "cpu", "precision": "f32", "threads": 1
    })",
                        "test",
                        {"batch.microbatch_tokens=" + std::to_string(tokens),
                         "parallel.strategy=" + std::string(layout.strategy)});
}

// Valid targets: row 0 has all, row 1 one, the last row none. The number in other rows grows with the step.
int64_t targets_of_row(int64_t step, int64_t row) {
    if (row == 0) return kSequence;
    if (row == 1) return 1;
    return row == kRows - 1 ? 0 : row + 2 * step;
}

void add_row(Batch& batch, int64_t step, int64_t row) {
    const auto begin = static_cast<int32_t>(batch.tokens.size());
    for (int64_t t = 0; t < kSequence; ++t) {
        const bool counts = t < targets_of_row(step, row);
        batch.tokens.push_back(static_cast<int32_t>((7 * t + 13 * row + step * t * t) % kVocab));
        batch.targets.push_back(counts ? static_cast<int32_t>((11 * t + 5 * row + step) % kVocab) : -1);
        batch.positions.push_back(static_cast<int32_t>(t));
        batch.first_key.push_back(begin);
        batch.valid_targets += counts;
    }
}

Batch whole_step(int64_t step) {
    Batch batch;
    for (int64_t row = 0; row < kRows; ++row) add_row(batch, step, row);
    batch.step_targets = batch.valid_targets;
    return batch;
}

class PaddedRows final : public BatchSource {
  public:
    PaddedRows(const Layout& layout, int rank) : layout_(layout), rank_(rank) {}
    const Batch& next() override {
        const int64_t step = made_ / layout_.microbatches, microbatch = made_ % layout_.microbatches;
        ++made_;
        batch_ = {};
        const int64_t rows = kRows / (layout_.ranks * layout_.microbatches);
        for (int64_t i = 0; i < rows; ++i)
            add_row(batch_, step, (microbatch * layout_.ranks + rank_) * rows + i);
        batch_.step_targets = whole_step(step).valid_targets + announced_too_many;
        return batch_;
    }
    int64_t announced_too_many = 0;

  private:
    const Layout layout_;
    const int rank_;
    int64_t made_ = 0;
    Batch batch_;
};

struct Curve {
    std::vector<double> losses, norms;
};

class LossMeanTest : public ::testing::Test {
  protected:
    LossMeanTest() : model_(config_of({}).model, kRows * kSequence, kSequence) {
        model_.randomize(0.1, 5);
        for (const Parameter& p : model_.table().all()) {
            const Values values = model_.read(model_.model.parameters().master(p));
            values_.emplace_back(values.begin(), values.end());
        }
    }

    void as_ranks(const Layout& layout, const std::function<void(StepRunner&, int)>& body) const {
        const Config config = config_of(layout);
        const auto rank = [&](World* world) {
            const Ranks ranks = world ? resolve_ranks(config, *world) : Ranks{};
            Runtime runtime(runtime_options(config, ranks));
            StepRunner runner(config, runtime, ranks);
            runner.state().initialize(1);
            runner.state().assign(values_);
            body(runner, ranks.rank());
        };
        if (layout.ranks == 1) return rank(nullptr);
        run_ranks(layout.ranks, [&](World& world) { rank(&world); });
    }

    Curve train(const Layout& layout) const {
        std::vector<Curve> curves(static_cast<size_t>(layout.ranks));
        as_ranks(layout, [&](StepRunner& runner, int rank) {
            PaddedRows source(layout, rank);
            for (int64_t step = 0; step < 3; ++step) {
                runner.enqueue(step, source);
                const StepResult result = runner.collect();
                curves[static_cast<size_t>(rank)].losses.push_back(result.loss);
                curves[static_cast<size_t>(rank)].norms.push_back(result.grad_norm);
            }
        });
        for (const Curve& curve : curves) EXPECT_EQ(curve.losses, curves[0].losses);
        return curves[0];
    }

    // Sum of the losses of valid targets, in double.
    double sum_of_losses(const Batch& batch) {
        model_.forward_loss({batch.tokens, batch.targets, batch.positions, batch.first_key});
        return sum_of_valid(batch);
    }
    double sum_of_valid(const Batch& batch) {
        const Values losses = model_.read(model_.model.losses());
        double sum = 0;
        for (size_t t = 0; t < losses.size(); ++t) sum += batch.targets[t] == -1 ? 0 : losses[t];
        return sum;
    }

    ModelHarness model_;
    std::vector<std::vector<float>> values_;
};

TEST_F(LossMeanTest, OfAStepIsOverTheTargetsThatCount) {
    const Batch batch = whole_step(0);
    ASSERT_EQ(batch.valid_targets, 16 + 1 + 2 + 3 + 4 + 5 + 6);
    model_.backward({batch.tokens, batch.targets, batch.positions, batch.first_key}, 1.0f);
    double squares = 0;
    for (const Parameter& p : model_.table().all()) squares += std::pow(norm_of(model_.gradient(p)), 2);
    const auto count = static_cast<double>(batch.valid_targets);
    const double loss = sum_of_valid(batch) / count, norm = std::sqrt(squares) / count;

    const Curve expected = train({});
    EXPECT_NEAR(expected.losses[0], loss, 1e-6 * loss);
    EXPECT_NEAR(expected.norms[0], norm, 1e-5 * norm);
    // Microbatches and ranks with very different shares of targets, including rows with one target or none.
    // Tolerances cover f32 sums in another order.
    for (const Layout& layout : {Layout{1, 4}, Layout{1, 8}, Layout{2, 2}, Layout{2, 4, "zero1"},
                                 Layout{4, 2, "zero3"}, Layout{8, 1}, Layout{8, 1, "zero2"}}) {
        const Curve curve = train(layout);
        for (size_t step = 0; step < 3; ++step) {
            SCOPED_TRACE(::testing::Message() << layout.strategy << " " << layout.ranks << " x "
                                              << layout.microbatches << ", step " << step);
            EXPECT_NEAR(curve.losses[step], expected.losses[step], 1e-5 * expected.losses[step]);
            EXPECT_NEAR(curve.norms[step], expected.norms[step], 1e-5 * expected.norms[step]);
        }
    }
}

TEST_F(LossMeanTest, OfAValidationIsOverTheTargetsThatCount) {
    constexpr int64_t kTargets = 3 * kSequence + 5;  // row 3 is padded, later rows are empty
    const TempDir dir;
    std::vector<uint16_t> tokens;
    for (int t = 0; t < 200; ++t) tokens.push_back(static_cast<uint16_t>(t * t % kVocab));
    const TokenDataset data({write_tokens(dir.file("val.bin"), tokens)}, kVocab, 0);
    const ValidationLoader loader(data, {kSequence, kTargets, false});
    Batch batch;
    loader.fill({0, kRows}, batch);
    ASSERT_EQ(batch.valid_targets, kTargets);
    const double expected = sum_of_losses(batch) / static_cast<double>(kTargets);
    for (const Layout& layout : {Layout{}, Layout{1, 8}, Layout{2, 4}, Layout{4, 2, "zero3"}, Layout{8, 1}}) {
        as_ranks(layout, [&](StepRunner& runner, int) {
            EXPECT_NEAR(runner.validate(loader), expected, 1e-6 * expected) << layout.ranks;
        });
    }
}

TEST_F(LossMeanTest, AStepWithoutTargetsOrWithOthersThanAnnouncedIsAnError) {
    as_ranks({1, 2}, [&](StepRunner& runner, int) {
        PaddedRows source({1, 2}, 0);
        source.announced_too_many = -whole_step(0).valid_targets;
        expect_error(ExitCode::data, {"step 0", "none of its targets"}, [&] { runner.enqueue(0, source); });
    });
    for (const int64_t wrong : {-1, 1}) {
        as_ranks({1, 2}, [&](StepRunner& runner, int) {
            PaddedRows source({1, 2}, 0);
            source.announced_too_many = wrong;
            expect_error(ExitCode::failure, {"37 targets", fmt::format("{} are", 37 + wrong)},
                         [&] { runner.enqueue(0, source); });
        });
    }
}

}  // namespace speedrun::testing::loss_mean_test
