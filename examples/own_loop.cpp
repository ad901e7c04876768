// Trains with a custom loop: a config as text, batches from any source, a stop once the loss is low enough. Sequences count
// modulo 31 in steps of 1, 2 or 3: all tokens but the first two are predictable.
// Usage: own_loop [cpu|cuda|auto]    default: cpu. Exit code 0: learned, 1: not learned in 200 steps.
#include <fmt/format.h>

#include <exception>
#include <random>

#include "train/config/config_json.h"
#include "train/engine/memory_plan.h"
#include "train/engine/step_runner.h"

using namespace speedrun;

namespace {

constexpr const char* kConfig = R"({
    "model": {"preset": "modern", "model_dim": 32, "vocab_size": 31,
              "layers": {"count": 1, "each": {"attention": {"heads": 2}}}},
    "batch": {"sequence_length": 32, "microbatch_tokens": 512, "tokens_per_step": 512},
    "optimizers": {"groups": [{"type": "muon", "params": ["blocks.*.weight"], "lr": 0.02},
                              {"type": "adamw", "params": ["*"], "lr": 0.02}]},
    "schedule": {"steps": 200}})";

class CountingBatches final : public BatchSource {
  public:
    CountingBatches(const BatchConfig& shape, const Transformer& model)
        : shape_(shape), columns_(model.description().columns()) {}
    const Batch& next() override {
        batch_ = {};
        for (int64_t row = 0; row < shape_.microbatch_tokens; row += shape_.sequence_length) {
            int32_t token = static_cast<int32_t>(random_() % 31);
            const int32_t stride = 1 + static_cast<int32_t>(random_() % 3);
            for (int64_t i = 0; i < shape_.sequence_length; ++i) {
                batch_.tokens.push_back(token);
                token = (token + stride) % 31;
                batch_.targets.push_back(token);  // -1 excludes a token from the loss
            }
        }
        complete(batch_, columns_,
                 {.sequence_length = shape_.sequence_length});  // the rest that the model reads
        batch_.step_targets = shape_.tokens_per_step;
        return batch_;
    }

  private:
    const BatchConfig shape_;
    const std::vector<Column> columns_;
    std::mt19937 random_{1};
    Batch batch_;
};

int train(const char* device) {
    const Config config = parse_config(kConfig, "own_loop", {std::string("device=") + device});
    Runtime runtime(runtime_options(config));
    StepRunner runner(config, runtime);
    runner.warm_up();
    runner.state().initialize(static_cast<uint64_t>(config.seed));
    CountingBatches batches(config.batch, runner.state().model());
    fmt::print("{} parameters, {}\n", runner.state().model().table().numel(), runtime.description());
    runner.start_clock();
    for (int64_t step = 0; step < config.schedule.total_steps(); ++step) {
        runner.enqueue(step, batches);
        if (runner.uncollected() < 2) continue;  // results arrive one step later: no device wait
        const StepResult result = runner.collect();
        if (result.step % 20 == 0) fmt::print("step {:3}  loss {:.4f}\n", result.step, result.loss);
        if (result.loss < 0.2) {
            fmt::print("learned: loss {:.4f} after {:.0f} ms\n", result.loss, result.clock_ms);
            return 0;
        }
    }
    return 1;
}

}  // namespace

int main(int argc, char** argv) try {
    return train(argc > 1 ? argv[1] : "cpu");
} catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
}
