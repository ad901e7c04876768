// Whole runs on a GPU against the CPU: the same losses and gradient norms, and the same bits with graphs or
// without. gpu_tests also runs all of tests/runs/trainer_test.cpp and golden_test.cpp on the GPU.
// build: in gpu_tests
#include <cmath>

#include "tests/runs/run_fixture.h"
#include "train/engine/step_runner.h"

namespace speedrun::testing {
namespace {

class GpuRunTest : public RunFixture {
  protected:
    std::vector<double> curve_of(const std::string& name, const std::vector<std::string>& settings) {
        std::vector<std::string> all = {"schedule.steps=10", "batch.tokens_per_step=1024"};
        all.insert(all.end(), settings.begin(), settings.end());
        run(config(all), name);
        return curve(name);
    }
    // Loss and gradient norm of the first step precede all updates, so they contain the rounding of one forward and
    // backward. Ten steps of Muon amplify it: its polar factor is of a matrix with small singular values, which are
    // little more than rounding errors.
    void expect_curves(const std::vector<double>& actual, const std::vector<double>& expected, double first,
                       double later) {
        ASSERT_EQ(actual.size(), expected.size());
        for (size_t i = 0; i < actual.size(); ++i)
            EXPECT_NEAR(actual[i], expected[i], (i < 2 ? first : later) * std::abs(expected[i])) << i;
    }
};

TEST_F(GpuRunTest, GraphsAndCallsAreBitwiseEqual) {
    for (const char* precision : {"precision=f32", "precision=bf16"}) {
        EXPECT_EQ(curve_of(std::string("graph") + precision, {precision, "cuda.graph=true"}),
                  curve_of(std::string("calls") + precision, {precision, "cuda.graph=false"}));
    }
}

// Kernels that begin early give the same bits as kernels in sequence.
TEST_F(GpuRunTest, EarlyKernelsGiveTheSameBits) {
    for (const char* graph : {"cuda.graph=true", "cuda.graph=false"}) {
        const std::vector<std::string> settings = {"precision=bf16", graph};
        std::vector<std::string> early = settings;
        early.push_back("cuda.dependent_launch=true");
        EXPECT_EQ(curve_of(std::string("early") + graph, early),
                  curve_of(std::string("late") + graph, settings));
    }
}

// Each FP8 matmul of a step falls to our own kernel, at a third of the rate, if cuBLASLt has none.
TEST_F(GpuRunTest, LibraryServesFp8Matmuls) {
    const Config c = config({"precision=bf16", "cuda.products=library", "model.model_dim=128",
                             "model.layers.each.attention.heads=2", "model.head.fp8={}",
                             R"(model.layers.each.mlp={"up_fp8":{},"down_fp8":{}})"});
    Runtime runtime(runtime_options(c));
    if (!runtime.has_fp8()) GTEST_SKIP() << "this GPU does not multiply FP8";
    StepRunner(c, runtime).warm_up();
    for (const std::string& note : runtime.notes())
        EXPECT_EQ(note.find("cuBLASLt"), std::string::npos) << note;
}

// Head size 64 of the test model: by wgmma if the GPU has it.
TEST_F(GpuRunTest, AttentionByWgmmaIsTheCpusWithinRounding) {
    const std::vector<std::string> heads = {"model.model_dim=128", "model.layers.each.attention.heads=2"};
    std::vector<std::string> gpu = {"precision=bf16", "cuda.attention=wgmma"},
                             cpu = {"precision=f32", "device=cpu"};
    gpu.insert(gpu.end(), heads.begin(), heads.end());
    cpu.insert(cpu.end(), heads.begin(), heads.end());
    expect_curves(curve_of("wgmma", gpu), curve_of("cpu", cpu), 1e-2, 5e-2);
}

TEST_F(GpuRunTest, FloatRunIsTheCpusRun) {
    for (const char* products : {"cuda.products=library", "cuda.products=hand"}) {
        expect_curves(curve_of(products, {"precision=f32", products}),
                      curve_of(std::string("cpu") + products, {"precision=f32", "device=cpu"}), 1e-5, 2e-3);
    }
}

// bf16 has 8 bits of precision. Activations and matmuls are rounded at the same points on both, but sums
// differ in their last f32 bits, which flips some roundings. One rounding is 2^-9. Its effect on the loss, a
// mean over hundreds of tokens, is far smaller; on the norm of a gradient of few tokens a little larger.
TEST_F(GpuRunTest, BfloatRunIsTheCpusRunWithinItsRounding) {
    for (const char* products : {"cuda.products=library", "cuda.products=hand"}) {
        expect_curves(curve_of(products, {"precision=bf16", products}),
                      curve_of(std::string("cpu") + products, {"precision=f32", "device=cpu"}), 1e-2, 5e-2);
    }
}

TEST_F(GpuRunTest, BothFamiliesAgreeWithTheCpu) {
    const std::vector<std::string> gpt2 = {
        "model.preset=gpt2", "precision=f32",
        R"(optimizers.groups=[{"type":"adamw","params":["*"],"lr":0.003}])"};
    std::vector<std::string> on_cpu = gpt2;
    on_cpu.push_back("device=cpu");
    expect_curves(curve_of("gpu", gpt2), curve_of("cpu", on_cpu), 1e-5, 2e-3);
}

}  // namespace
}  // namespace speedrun::testing
