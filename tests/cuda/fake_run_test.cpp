// Whole runs on the fake GPU. Kernels do nothing, so losses are meaningless, but all host work of a GPU run
// happens: streams, events, graphs, copies, memory.
// Covers: kernels/cuda/cuda_backend.cpp kernels/cuda/device/cuda_info.cpp
#include <atomic>

#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/vendor/attention_library.h"
#include "tests/cuda/fake_gpu.h"
#include "tests/errors.h"
#include "tests/runs/run_fixture.h"
#include "train/comm/self_world.h"
#include "train/commands/machine_watch.h"
#include "train/engine/batch_sources.h"
#include "train/engine/step_bench.h"

namespace speedrun::testing {
namespace {

constexpr int64_t kLastCheck = 1;  // allocation, to check the parameters after the last step

class FakeRunTest : public RunFixture {
  protected:
    ~FakeRunTest() override { set_fake_gpu({}); }
    // Three microbatches per step: a first, a middle and a last one, each with its own graph.
    Config gpu_config(const std::vector<std::string>& settings = {}) const {
        std::vector<std::string> all = {"device=cuda", "cuda.products=hand", "batch.tokens_per_step=1536",
                                        "schedule.steps=5"};
        all.insert(all.end(), settings.begin(), settings.end());
        return config(all);
    }
    // Kernel launches of a whole run, by name.
    std::map<std::string, int64_t> launches_of(const Config& config, const std::string& name) {
        const auto before = fake_gpu_launches();
        run(config, name);
        std::map<std::string, int64_t> counts;
        for (const auto& [kernel, launch] : fake_gpu_launches()) {
            const auto old = before.find(kernel);
            const int64_t calls = launch.calls - (old == before.end() ? 0 : old->second.calls);
            if (calls > 0) counts[kernel] = calls;
        }
        return counts;
    }
};

TEST_F(FakeRunTest, StepsAllocateNothingAndMatchPlan) {
    const int64_t held_before = fake_gpu_allocated_bytes();
    const int64_t without_upload = fake_gpu_events().launches_without_upload;
    for (const std::string checkpointing : {"none", "selective", "full"}) {
        const Config c = gpu_config({"eval.every=2", "memory.activation_checkpointing=" + checkpointing});
        Runtime runtime(runtime_options(c));
        RunFolder folder((folder_ / "logs").string(), checkpointing);
        Trainer trainer(c, runtime, {}, folder, {.quiet = true});
        EXPECT_TRUE(trainer.runner().has_graphs());
        const int64_t allocations = fake_gpu_allocations();
        EXPECT_EQ(trainer.run().steps, 5);
        EXPECT_EQ(fake_gpu_allocations(), allocations + kLastCheck)
            << "memory was allocated after the start-up";
        EXPECT_EQ(runtime.device().memory().total(), plan_memory(c).bytes);
    }
    EXPECT_EQ(fake_gpu_allocated_bytes(), held_before);
    EXPECT_EQ(fake_gpu_events().launches_without_upload, without_upload)
        << "a graph was uploaded inside the clock";
}

// On a GPU with and without wgmma: a whole run uses the memory that is planned for it.
TEST_F(FakeRunTest, WgmmaAttentionMatchesPlannedMemory) {
    for (const int major : {9, 8}) {
        set_fake_gpu({.major = major});
        const Config c = gpu_config({"cuda.attention=wgmma", "cuda.dependent_launch=true", "precision=bf16",
                                     "model.layers.each.attention.heads=1", "model.model_dim=64"});
        bool served = false;
        for (const auto& [kernel, calls] : launches_of(c, "wgmma on " + std::to_string(major)))
            served = served || kernel.find("forward_wgmma") != std::string::npos;
        EXPECT_EQ(served, major == 9);
        Runtime runtime(runtime_options(c));
        EXPECT_EQ(runtime.notes().size(), major == 9 ? 0u : 2u);
        RunFolder folder((folder_ / "logs").string(), "again on " + std::to_string(major));
        Trainer trainer(c, runtime, {}, folder, {.quiet = true});
        const int64_t allocations = fake_gpu_allocations();
        EXPECT_EQ(trainer.run().steps, 5);
        EXPECT_EQ(fake_gpu_allocations(), allocations + kLastCheck)
            << "memory was allocated after the start-up";
        EXPECT_EQ(runtime.device().memory().total(), plan_memory(c).bytes) << major;
    }
}

TEST_F(FakeRunTest, ReadsClocksOfTrainingGpu) {
    const auto world = make_self_world();
    EXPECT_EQ(gpu_of_rank(*world, gpu_config()), "00000000:00:00");
    EXPECT_EQ(gpu_of_rank(*world, config({"device=auto"})), "00000000:00:00");
    EXPECT_EQ(gpu_of_rank(*world, config({"device=cpu"})), "");
    set_fake_gpu({.count = 0});
    EXPECT_EQ(gpu_of_rank(*world, gpu_config()), "");
}

TEST_F(FakeRunTest, GraphsLaunchSameKernelsAsCalls) {
    for (const std::string checkpointing : {"none", "full"}) {
        const std::string setting = "memory.activation_checkpointing=" + checkpointing;
        const auto calls = launches_of(gpu_config({"cuda.graph=false", setting}), "calls " + checkpointing);
        const auto graphs = launches_of(gpu_config({setting}), "graphs " + checkpointing);
        EXPECT_GT(calls.size(), 15u);
        EXPECT_EQ(calls, graphs);
    }
}

// Two lengths of rows, and a validation window: every one is captured, and none allocates.
TEST_F(FakeRunTest, StagesHaveOwnGraphs) {
    const std::vector<std::string> stages = {"schedule.stages=[1, 3, 5]",
                                             "batch.sequence_length=[16, 64, 16]",
                                             "batch.microbatch_tokens=[512, 256, 512]",
                                             "batch.tokens_per_step=[1536, 1536, 512]",
                                             "eval.windows={\"window\": 8}",
                                             "eval.every=2"};
    std::vector<std::string> by_calls = stages;
    by_calls.push_back("cuda.graph=false");
    EXPECT_EQ(launches_of(gpu_config(by_calls), "calls"), launches_of(gpu_config(stages), "graphs"));

    const Config c = gpu_config(stages);
    Runtime runtime(runtime_options(c));
    RunFolder folder((folder_ / "logs").string(), "run");
    Trainer trainer(c, runtime, {}, folder, {.quiet = true});
    const int64_t allocations = fake_gpu_allocations();
    EXPECT_EQ(trainer.run().steps, 5);
    EXPECT_EQ(fake_gpu_allocations(), allocations + kLastCheck) << "memory was allocated after the start-up";
    EXPECT_EQ(runtime.device().memory().total(), plan_memory(c).bytes);
}

// If graphs of the driver do not wait, no graph is captured and a note reports it.
TEST_F(FakeRunTest, DisablesGraphsIfWaitsFail) {
    for (const GraphWaits waits : {GraphWaits::at_launch, GraphWaits::at_capture}) {
        set_fake_gpu({.graph_waits = waits});
        const Config c = gpu_config();
        Runtime runtime(runtime_options(c));
        StepRunner runner(c, runtime);
        runner.warm_up();
        const bool good = waits == GraphWaits::at_launch;
        EXPECT_EQ(runner.has_graphs(), good);
        ASSERT_EQ(runtime.notes().size(), good ? 0u : 1u);
        if (!good) {
            EXPECT_THAT(runtime.notes()[0], HasSubstr("as with --set cuda.graph=false"));
        }
    }
}

TEST_F(FakeRunTest, BothPresetsAndDtypesLaunch) {
    for (const char* precision : {"f32", "bf16"}) {
        for (const char* preset : {"modern", "gpt2"}) {
            Config c =
                gpu_config({std::string("precision=") + precision, std::string("model.preset=") + preset});
            if (std::string(preset) == "gpt2")
                c.optimizers.groups[0].params = {"blocks.*.attn.*.weight", "blocks.*.mlp.*.weight"};
            EXPECT_NO_THROW(run(c, std::string(preset) + precision)) << preset << " " << precision;
        }
    }
}

struct NoSink final : TraceSink {
    void span(const std::string&, const char*, int64_t, int64_t, int) override {}
};

// A step has two timed events: the end of backward and of the step. Other events are timed only for a trace
// of event pairs.
TEST_F(FakeRunTest, OnlyTracesTimeOperations) {
    const Config c = gpu_config();
    Runtime runtime(runtime_options(c));
    StepRunner runner(c, runtime);
    const FakeEvents start = fake_gpu_events();
    runner.warm_up();
    ASSERT_TRUE(runner.has_graphs());
    runner.state().initialize(1);
    SyntheticBatches source(c);
    runner.start_clock();
    int64_t step = 0;
    const auto events_of_a_step = [&] {
        const FakeEvents before = fake_gpu_events();
        runner.enqueue(step++, source);
        runner.collect();
        const FakeEvents after = fake_gpu_events();
        return std::pair(after.records - before.records, after.timed_records - before.timed_records);
    };
    const auto [records, timed] = events_of_a_step();
    EXPECT_EQ(timed, 2);
    EXPECT_GT(records, timed);
    EXPECT_EQ(fake_gpu_events().captured_timed_records, start.captured_timed_records);

    NoSink sink;
    runtime.device().set_trace(&sink);
    if (runtime.device().trace_limits().empty()) GTEST_SKIP() << "CUPTI serves the trace";
    runner.use_graphs(false);
    EXPECT_GT(events_of_a_step().second, 100) << "a pair around each operation";
    runtime.synchronize();
    runtime.device().set_trace(nullptr);
    EXPECT_EQ(events_of_a_step().second, 2);
}

// Kernels launched since the last call, by captured graphs and directly.
struct Launched {
    std::atomic<int64_t> in_graphs = 0, alone = 0;
} launched;

// Masks the last target of each of the first two microbatches.
class MaskedBatches final : public BatchSource {
  public:
    explicit MaskedBatches(const Config& config) : all_(config), total_(config.batch.tokens_per_step) {}
    const Batch& next() override {
        batch_ = all_.next();
        const bool masked = made_++ % 3 < 2;
        if (masked) batch_.targets.back() = -1;
        batch_.valid_targets -= masked;
        batch_.step_targets = total_ - 2;
        return batch_;
    }

  private:
    SyntheticBatches all_;
    const int64_t total_;
    int64_t made_ = 0;
    Batch batch_;
};

// A graph holds the divisor of its losses: a step with fewer targets launches the same kernels directly, except for its update.
TEST_F(FakeRunTest, MaskedStepLaunchesWithoutGraph) {
    const Config c = gpu_config();
    Runtime runtime(runtime_options(c));
    StepRunner runner(c, runtime);
    runner.warm_up();
    ASSERT_TRUE(runner.has_graphs());
    runner.state().initialize(1);
    set_fake_gpu_listener([](const FakeWork& work) {
        if (work.kernel) ++(work.graph ? launched.in_graphs : launched.alone);
    });
    auto kernels_of = [&, step = int64_t{0}](BatchSource& source) mutable {
        launched.in_graphs = launched.alone = 0;
        runner.enqueue(step++, source);
        runner.collect();
        return std::pair(launched.in_graphs.load(), launched.alone.load());
    };
    SyntheticBatches whole(c);
    MaskedBatches masked(c);
    const auto [in_graphs, alone] = kernels_of(whole);
    EXPECT_GT(in_graphs, alone) << "forward and backward outweigh the optimizer";
    const auto [of_update, others] = kernels_of(masked);
    EXPECT_GT(others, of_update);
    EXPECT_EQ(of_update + others, in_graphs + alone);
    EXPECT_EQ(runner.ungraphed_steps(), 1);
    EXPECT_EQ(kernels_of(whole), std::pair(in_graphs, alone));
    EXPECT_EQ(runner.ungraphed_steps(), 1);
    set_fake_gpu_listener(nullptr);
}

// A graph records only events that other streams wait for: a single rank has none before its last microbatch ends.
TEST_F(FakeRunTest, GraphsRecordOnlyAwaitedEvents) {
    const Config c = gpu_config();
    for (const Launch launch : {Launch::ready, Launch::after_backward}) {
        Runtime runtime(runtime_options(c));
        StepRunner runner(c, runtime, Ranks(Mesh(), {.launch = launch}));
        const FakeEvents before = fake_gpu_events();
        runner.warm_up();
        ASSERT_TRUE(runner.has_graphs());
        EXPECT_EQ(fake_gpu_events().captured_records - before.captured_records, 0);
    }
}

TEST_F(FakeRunTest, TraceHasEveryStream) {
    run(gpu_config(), "traced", {.quiet = true, .trace_first = 2, .trace_last = 3});
    std::ifstream file(folder_ / "logs" / "traced" / "trace.json");
    const Json events = Json::parse(file)["traceEvents"];
    int attention = 0, steps = 0;
    for (const Json& event : events) {
        attention += event["name"] == "attention_forward";
        steps += event["name"] == "adamw.Step";
    }
    EXPECT_EQ(attention, 2 * 3 * 2);  // two steps of three microbatches through two layers
    EXPECT_GT(steps, 0);
}

// Times calls one by one, though the run itself has graphs.
TEST_F(FakeRunTest, BenchTimesEveryOperation) {
    const Config c = gpu_config();
    Runtime runtime(runtime_options(c));
    StepBenchOptions options;
    options.steps = 2;
    options.peaks = {128, 1 << 20};
    const StepBench bench = bench_steps(c, runtime, kAlone, options);
    EXPECT_THAT(bench.limits, HasSubstr("CUDA graphs"));
    EXPECT_EQ(bench.work.flops, plan_memory(c).work.front().flops);
    double attention = 0, flops = 0;
    for (const OperationStats& row : bench.profile.operations) {
        attention += row.name == "attention_forward" ? row.calls : 0;
        flops += row.name.starts_with("polar_express") ? 0 : row.flops;  // belongs to the optimizer
    }
    EXPECT_EQ(attention, 3 * 2);  // three microbatches through two layers
    EXPECT_EQ(flops, static_cast<double>(bench.work.flops));
}

TEST_F(FakeRunTest, OutOfMemoryErrorSuggestsFittingSize) {
    Config c = gpu_config({"batch.microbatch_tokens=1536"});
    const int64_t whole = plan_memory(c).bytes;
    c.batch.microbatch_tokens = 512;
    const int64_t third = plan_memory(c).bytes;
    c.batch.microbatch_tokens = 1536;
    set_fake_gpu({.memory_bytes = (whole + third) / 2});
    Runtime runtime(runtime_options(c));
    try {
        require_memory(c, runtime.device());
        FAIL() << "nothing was thrown";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::usage);
        // The largest fitting size of 768, 512, ...; 768 needs about half of the activations.
        const std::string message = error.what();
        EXPECT_THAT(message, HasSubstr("It fits with --set batch.microbatch_tokens="));
        EXPECT_THAT(message, HasSubstr("activations"));
        const int64_t tokens = std::stoll(message.substr(message.find("tokens=") + 7));
        c.batch.microbatch_tokens = tokens;
        EXPECT_NO_THROW(require_memory(c, runtime.device())) << tokens;
    }
    set_fake_gpu({.memory_bytes = 1 << 16});
    c.batch.microbatch_tokens = 1536;
    EXPECT_THROW(require_memory(c, runtime.device()), Error);
}

TEST_F(FakeRunTest, AutoDeviceFallsBackToCpu) {
    Config c = gpu_config();
    c.device = {};
    EXPECT_EQ(Runtime(runtime_options(c)).device().kind(), DeviceKind::cuda);
    set_fake_gpu({.driver_version = 0});
    Runtime runtime(runtime_options(c));
    EXPECT_EQ(runtime.device().kind(), DeviceKind::cpu);
    ASSERT_EQ(runtime.notes().size(), 1u);
    EXPECT_EQ(runtime.notes()[0], "no GPU (no NVIDIA driver is installed): running on the CPU");
}

TEST_F(FakeRunTest, CommunicationStreamsHaveHighPriority) {
    RuntimeOptions options = runtime_options(gpu_config());
    options.communicates = true;
    Runtime runtime(options);
    const auto priority = [](Stream& stream) {
        return fake_gpu_priority(static_cast<CudaStream&>(stream).handle());
    };
    for (Stream* stream : {&runtime.compute(), &runtime.optimizer(), &runtime.copy()})
        EXPECT_EQ(priority(*stream), 0) << stream->name();
    for (Stream* stream : {&runtime.reduce(), &runtime.gather()})
        EXPECT_EQ(priority(*stream), -5) << stream->name();
}

TEST_F(FakeRunTest, MissingLibraryIsOnlyANote) {
    // On a machine without a GPU the library may exist but cannot be opened.
    Runtime runtime(runtime_options(gpu_config({"cuda.products=library"})));
    ASSERT_EQ(runtime.notes().size(), 1u);
    EXPECT_THAT(runtime.notes()[0], HasSubstr("cuBLASLt cannot be used"));
}

// Planned without a GPU: with document masks our own kernels run, and the run reports it once.
TEST_F(FakeRunTest, CudnnAttentionNeedsNoDocumentMask) {
    if (!built_with_cudnn()) GTEST_SKIP() << "this build has no cuDNN";
    for (const char* mask : {"data.document_mask=false", "data.document_mask=true"}) {
        const bool served = mask == std::string("data.document_mask=false");
        const Config c = gpu_config({"cuda.attention=cudnn", "precision=bf16",
                                     "model.layers.each.attention.heads=1", "model.model_dim=64", mask});
        Runtime runtime(dry_runtime_options(c));
        StepRunner runner(c, runtime);
        runner.warm_up();
        const std::string table = runtime.device().memory().print();
        EXPECT_EQ(table.find("cuDNN on compute") != std::string::npos, served) << table;
        ASSERT_EQ(runtime.notes().size(), served ? 0u : 1u);
        if (!served) {
            EXPECT_THAT(runtime.notes()[0], HasSubstr("data.document_mask"));
        }
    }
}

}  // namespace
}  // namespace speedrun::testing
