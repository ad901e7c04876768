// Ranks that communicate GPU memory, with the fake runtime: staged through the host, and through NCCL.
// Covers: train/comm/device_world.cpp

#include "kernels/cuda/device/cuda_device.h"

#include <cmath>
#include "tests/cuda/fake_gpu.h"
#include "tests/cuda/rank_runs.h"
#include "tests/distributed/conformance.h"
#include "tests/errors.h"
#include "train/comm/staged_world.h"

namespace speedrun::testing {
namespace {

// ---- every case of the other worlds, on streams of the GPU

class GpuWorldTest : public ::testing::TestWithParam<ConformanceCase> {
  protected:
    GpuWorldTest() {
        conformance_device() = [] { return std::make_unique<CudaDevice>(); };
    }
    ~GpuWorldTest() override {
        conformance_device() = [] { return std::make_unique<CpuDevice>(1); };
    }
};

TEST_P(GpuWorldTest, StagedConforms) {
    for (const int size : {1, 2, 3}) {
        run_ranks(size, [](World& world) {
            CudaDevice device;
            GetParam().run(*make_staged_world(world, device));
        });
    }
}

const auto kName = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Worlds, GpuWorldTest, ::testing::ValuesIn(conformance_cases()), kName);

// ---- runs

class FakeRanksTest : public RankRuns {
  protected:
    Config ranks_config(std::vector<std::string> settings) const {
        const std::vector<std::string> all = {"cuda.products=hand", "batch.microbatch_tokens=256",
                                              "batch.tokens_per_step=1024", "schedule.steps=5", "threads=1"};
        settings.insert(settings.begin(), all.begin(), all.end());
        return config(settings);
    }
};

// The fake GPU computes nothing, so this tests memory, streams and counts. The test below checks staged
// values.
TEST_F(FakeRanksTest, StagedRunMatchesPlannedMemoryAndBytes) {
    for (const char* strategy : {"ddp", "zero1", "zero3"}) {
        const Config c =
            ranks_config({"device=cuda", std::string("parallel.strategy=") + strategy, "cuda.graph=true"});
        int64_t allocations = 0;
        int looked = 0;
        curve_on_ranks(2, strategy, c, [&](const DeviceWorld& device_world, Trainer& trainer) {
            EXPECT_EQ(device_world.note.find("ranks talk through the host's memory, not NCCL"), 0u)
                << device_world.note;
            EXPECT_TRUE(trainer.runner().has_graphs());
            EXPECT_GT(trainer.runner().state().bytes_sent(), 0) << "the warm-up's";
            ++looked;
            allocations = fake_gpu_allocations();
        });
        EXPECT_EQ(looked, 2);
        // Each rank allocates twice to check the parameters after the last step.
        EXPECT_EQ(fake_gpu_allocations(), allocations + 2 * looked)
            << "memory was allocated after the start-up";
    }
}

// Two microbatches per step: with and without graphs, ranks send the schedule's collectives, each exactly once.
TEST_F(FakeRanksTest, GraphsReduceOncePerSchedule) {
    const std::pair<const char*, const char*> ways[] = {
        {"ddp", "after_backward"},   {"zero1", "after_backward"}, {"zero2", "after_backward"},
        {"zero3", "after_backward"}, {"zero1", "in_backward"},    {"zero3", "in_backward"}};
    for (const auto& [strategy, step] : ways) {
        for (const bool graph : {false, true}) {
            const Config c = ranks_config({"device=cuda", std::string("parallel.strategy=") + strategy,
                                           std::string("parallel.optimizer_step=") + step,
                                           graph ? "cuda.graph=true" : "cuda.graph=false"});
            const auto before = [&](const DeviceWorld&, Trainer& trainer) {
                EXPECT_EQ(trainer.runner().has_graphs(), graph);
            };
            const auto after = [&](Trainer& trainer) {
                const Reducer& reducer = trainer.runner().state().reducer;
                const int64_t steps = c.schedule.steps + 1;  // and the warm-up's
                std::map<Collective, int64_t> planned;
                for (const BucketCollectives& row : reducer.collectives())
                    for (const StepCollective& one : row.collectives)
                        planned[one.kind] += times_per_step(one.when, 2) * steps;
                const CollectiveCounts counts = reducer.counts();
                for (const Collective kind : {Collective::all_reduce, Collective::reduce_scatter})
                    EXPECT_EQ(counts[static_cast<size_t>(kind)].calls, planned[kind])
                        << strategy << " " << step << " " << name_of(kind) << (graph ? " with graphs" : "");
                EXPECT_GT(planned[Collective::all_reduce], 0);
            };
            curve_on_ranks(2, fmt::format("{}_{}_{}", strategy, step, graph), c, before, after);
        }
    }
}

// Staging is the same code on any device. On the CPU values are real: they must equal the values of ranks
// that read each other's memory.
TEST_F(FakeRanksTest, StagedValuesEqualInnerWorld) {
    const Config c = ranks_config({"device=cpu", "parallel.strategy=zero1"});
    const std::vector<double> plain = curve_on_ranks(2, "plain", c), alone = curve_on_ranks(1, "alone", c);
    std::vector<double> staged;
    run_ranks(2, [&](World& world) {
        const Ranks of_world = resolve_ranks(c, world);
        Runtime runtime(runtime_options(c, of_world));
        const auto staged_world = make_staged_world(world, runtime.device());
        const Ranks ranks = of_world.with_world(*staged_world);
        RunFolder run_folder = ranks.first() ? RunFolder((folder_ / "logs").string(), "staged")
                                             : RunFolder::silent((folder_ / "logs" / "staged").string());
        Trainer(c, runtime, ranks, run_folder, {.quiet = true}).run();
    });
    EXPECT_EQ(curve("staged"), plain);
    ASSERT_EQ(plain.size(), alone.size());
    // f32: the order of sums differs, and Muon amplifies it over the steps.
    for (size_t i = 0; i < alone.size(); ++i) EXPECT_NEAR(plain[i], alone[i], 1e-4 * std::abs(alone[i])) << i;
}

TEST_F(FakeRanksTest, RejectsNcclOnSharedGpu) {
    const Config c = ranks_config({"device=cuda", "parallel.communicator=nccl"});
    expect_error(ExitCode::usage, {"use 'staged' or 'auto'"}, [&] { curve_on_ranks(2, "nccl", c); });
}

}  // namespace
}  // namespace speedrun::testing
