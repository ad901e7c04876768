// Calls of the host in a step on the fake GPU, with graphs.
#include <atomic>
#include <mutex>
#include <set>

#include "tests/cuda/fake_gpu.h"
#include "tests/runs/run_fixture.h"
#include "train/engine/batch_sources.h"

namespace speedrun::testing {
namespace {

using FakeGraphsTest = RunFixture;

// A step with graphs launches its kernels in graphs, except for two of its statistics. Copies of a step: the columns of a batch
// for each microbatch, the optimizers' numbers, the statistics. More parameters add none.
TEST_F(FakeGraphsTest, WholeStepRunsFromGraphs) {
    for (const char* layers : {"model.layers.count=2", "model.layers.count=4"}) {
        const Config c = config(
            {"device=cuda", "cuda.products=hand", "batch.tokens_per_step=1536", "schedule.steps=5", layers});
        Runtime runtime(runtime_options(c));
        StepRunner runner(c, runtime);
        runner.warm_up();
        ASSERT_TRUE(runner.has_graphs());
        EXPECT_EQ(runner.state().schedule.num_step_graphs(), 1u);
        runner.state().initialize(1);
        static std::atomic<int64_t> kernels, copies, in_graphs;
        static std::mutex mutex;
        static std::set<const void*> graphs;
        set_fake_gpu_listener([](const FakeWork& work) {
            const std::lock_guard lock(mutex);
            if (work.graph) graphs.insert(work.graph);
            ++(work.graph ? in_graphs : work.kernel ? kernels : copies);
        });
        SyntheticBatches source(c);
        for (int64_t step = 0; step < 3; ++step) {
            kernels = copies = in_graphs = 0;
            graphs.clear();
            const int64_t records = fake_gpu_events().records;
            runner.enqueue(step, source);
            runner.collect();
            EXPECT_EQ(fake_gpu_events().records - records, 9) << layers;
            EXPECT_EQ(kernels, 2) << layers;  // the stop request, and the loss with it
            EXPECT_LE(copies, 3 * 4 + 2) << layers;
            EXPECT_GT(in_graphs, 100) << layers;
            EXPECT_EQ(graphs.size(), 4u) << "three microbatches and the update";
        }
        set_fake_gpu_listener(nullptr);
    }
}

}  // namespace
}  // namespace speedrun::testing
