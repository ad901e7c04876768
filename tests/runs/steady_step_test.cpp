// Steps are modelled after the switches from current to delayed FP8 scaling.
// build: release
#include "tests/runs/run_fixture.h"
#include "train/engine/step_model.h"
#include "train/timeline/step_timeline.h"

namespace speedrun::testing::steady_step_test {

class SteadyStepTest : public RunFixture {
  protected:
    Config scaled(int exact_steps) const {
        const std::string kept =
            R"({"by": "last_step", "value": 1.5, "exact_steps": )" + std::to_string(exact_steps) + "}";
        return config({R"(model={"preset": "none", "model_dim": 32, "vocab_size": 32,
                "tables": {"embed": {"init": {"type": "normal", "value": 0.5}}},
                "input": [{"type": "table", "table": "embed"}, {"type": "norm"}],
                "layers": {"count": 2, "each": {"attention": {"heads": 2}, "mlp": {"ratio": 2,
                    "down_fp8": {"x": )" +
                           kept + R"(, "weight": )" + kept + R"(}}}},
                "output": [{"type": "norm"}], "head": {}})",
                       R"(optimizers.groups=[{"params": ["blocks.*.weight"], "type": "muon", "lr": 0.02},
                                             {"params": ["*"], "type": "adamw", "lr": 0.003, "every": 2}])",
                       "precision=bf16"});
    }
};

TEST_F(SteadyStepTest, FirstStepsWithCurrentScalingAreNotModelled) {
    const GpuModel& gpu = find_gpu_model("h100");
    const auto step_ms = [&](int exact_steps) { return model_step(scaled(exact_steps), kAlone, gpu).ms; };
    EXPECT_DOUBLE_EQ(step_ms(3), step_ms(0));
    const auto timeline_ms = [&](int exact_steps) {
        const Config c = scaled(exact_steps);
        return predict_gpu_step(c, kAlone, gpu, nullptr, default_network()).timeline.step_ms;
    };
    EXPECT_DOUBLE_EQ(timeline_ms(3), timeline_ms(0));
}

}  // namespace speedrun::testing::steady_step_test
