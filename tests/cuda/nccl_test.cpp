// Our use of NCCL, with the fake NCCL on the fake runtime: arguments, groups, ids, graphs, and failures.
// gpu_ranks_test checks the real library on a GPU.
// Covers: train/comm/nccl_*.cpp
// build: in nccl
#include <dlfcn.h>

#include "kernels/cuda/device/cuda_device.h"
#include "tests/cuda/fake_gpu.h"
#include "tests/cuda/fake_nccl.h"
#include "tests/cuda/rank_runs.h"
#include "tests/distributed/conformance.h"
#include "tests/distributed/rank_values.h"
#include "tests/errors.h"
#include "train/comm/nccl_world.h"
#include "train/comm/self_world.h"
#include "train/engine/memory_plan.h"

namespace speedrun::testing {
namespace {

// Loaded at program start, so that no test finds a real NCCL of this machine.
void* const library = dlopen(SPEEDRUN_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);

template <class Function>
Function* find(const char* name) {
    auto* const function = library ? reinterpret_cast<Function*>(dlsym(library, name)) : nullptr;
    if (!function) throw_internal("{}: no {}", SPEEDRUN_FAKE_NCCL, name);
    return function;
}

void set_fake_nccl(FakeNccl nccl) {
    nccl.enqueue = enqueue_on_fake_gpu;
    find<decltype(fake_nccl_set)>("fake_nccl_set")(nccl);
}
int open_communicators() {
    return find<decltype(fake_nccl_open)>("fake_nccl_open")();
}

class NcclConformanceTest : public ::testing::TestWithParam<ConformanceCase> {
  protected:
    NcclConformanceTest() {
        set_fake_nccl({});
        conformance_device() = [] { return std::make_unique<CudaDevice>(); };
    }
    ~NcclConformanceTest() override {
        conformance_device() = [] { return std::make_unique<CpuDevice>(1); };
    }
};

TEST_P(NcclConformanceTest, Conforms) {
    const int open = open_communicators();
    // Not three: for odd sizes the expected bytes sent are formulas, rounded on every rank.
    for (const int size : {1, 2, 4}) {
        run_ranks(size, [](World& world) {
            CudaDevice device;
            GetParam().run(*make_nccl_world(world, device, {}));
        });
    }
    EXPECT_EQ(open_communicators(), open);
}

INSTANTIATE_TEST_SUITE_P(Worlds, NcclConformanceTest, ::testing::ValuesIn(conformance_cases()),
                         [](const auto& info) { return info.param.name; });

class NcclTest : public RankRuns {
  protected:
    NcclTest() { set_fake_nccl({}); }
    ~NcclTest() override {
        set_fake_nccl({});
        set_fake_gpu({});
    }
};

TEST_F(NcclTest, AutoChoosesNcclForOwnGpus) {
    set_fake_gpu({.count = 2});
    const int open = open_communicators();
    const Config c = config({"device=cuda", "cuda.products=hand", "batch.microbatch_tokens=256",
                             "batch.tokens_per_step=1024", "schedule.steps=4", "threads=1",
                             "parallel.strategy=zero1", "parallel.nccl_max_ctas=5"});
    int64_t allocations = 0;
    curve_on_ranks(2, "nccl", c, [&](const DeviceWorld& device_world, Trainer& trainer) {
        EXPECT_EQ(device_world.note.find("ranks talk through NCCL 2."), 0u) << device_world.note;
        EXPECT_GT(trainer.runner().state().bytes_sent(), 0);
        EXPECT_GT(open_communicators(), open + 4) << "separate ones for reducing and gathering, of two ranks";
        allocations = fake_gpu_allocations();
    });
    // Each of two ranks allocates twice to check the parameters after the last step.
    EXPECT_EQ(fake_gpu_allocations(), allocations + 4) << "memory was allocated after the start-up";
    EXPECT_EQ(find<decltype(fake_nccl_max_ctas)>("fake_nccl_max_ctas")(), 5);
    EXPECT_EQ(open_communicators(), open);
}

// A mesh of 8 x 8: all ranks connect once, and each communicator is a split of that connection with the
// requested members.
TEST_F(NcclTest, ConnectsOnceAndSplitsPerAxis) {
    constexpr int kRanks = 64, kEdge = 8;
    const auto count = [](const char* name) { return find<int()>(name)(); };
    const int inits = count("fake_nccl_inits"), splits = count("fake_nccl_splits"),
              open = open_communicators();
    run_ranks(kRanks, [](World& world) {
        CudaDevice device;
        const auto nccl = make_nccl_world(world, device, {});
        const int row = world.rank() / kEdge, column = world.rank() % kEdge;
        Group along_row{{}, column}, along_column{{}, row};
        for (int i = 0; i < kEdge; ++i) {
            along_row.ranks.push_back(row * kEdge + i);
            along_column.ranks.push_back(i * kEdge + column);
        }
        const auto data = nccl->connect("data", along_row), tensor = nccl->connect("tensor", along_column);
        const auto stream = device.create_stream("reduce");
        std::vector<float> values{static_cast<float>(world.rank())}, others = values;
        data->all_reduce(view(values), *stream);
        tensor->all_reduce(view(others), *stream);
        stream->synchronize();
        EXPECT_EQ(values[0], static_cast<float>(kEdge * kEdge * row + kEdge * (kEdge - 1) / 2));
        EXPECT_EQ(others[0], static_cast<float>(kEdge * column + kEdge * kEdge * (kEdge - 1) / 2));
    });
    EXPECT_EQ(count("fake_nccl_inits") - inits, kRanks);
    EXPECT_EQ(count("fake_nccl_splits") - splits, 2 * kRanks);
    EXPECT_EQ(open_communicators(), open);
}

// Connecting may take longer than a collective, and has a separate limit.
TEST_F(NcclTest, ConnectHasOwnTimeout) {
    set_fake_nccl({.hangs = true});
    run_ranks(2, [](World& world) {
        CudaDevice device;
        const auto nccl = make_nccl_world(world, device, {.timeout_s = 0.01, .start_timeout_s = 0.5});
        const auto begin = std::chrono::steady_clock::now();
        expect_error(ExitCode::communication, {"all ranks within 0.5 s (parallel.start_timeout_s)"}, [&] {
            (void)nccl->connect("gather", {{0, 1}, world.rank()});
        });
        EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(500));
    });
}

TEST_F(NcclTest, CapturesCollectives) {
    run_ranks(2, [](World& world) {
        CudaDevice device;
        const auto nccl = make_nccl_world(world, device, {.timeout_s = 5});
        const auto communicator = nccl->connect("recorded", {{0, 1}, world.rank()});
        const auto stream = device.create_stream("reduce");
        std::vector<float> values(3, 1.0f);
        const auto graph =
            device.capture_graph(*stream, [&] { communicator->all_reduce(view(values), *stream); });
        stream->synchronize();
        EXPECT_EQ(values[2], 1.0f) << "recording executes nothing";
        for (const float requested : {2.0f, 4.0f, 8.0f}) {
            graph->launch(*stream);
            stream->synchronize();
            EXPECT_EQ(values[2], requested);
        }
    });
}

// Sums on two communicators of two ranks, whose GPUs run one collective at a time and differ in the one that they prefer.
// before_connecting: called between the choice of an order and the first communicator.
std::vector<std::string> sum_on_two_communicators(
    double timeout_s = 30, const std::function<void()>& before_connecting = [] {}) {
    std::vector<std::string> reasons(2);
    run_ranks(2,
              [&](World& world) {
                  const auto rank = static_cast<size_t>(world.rank());
                  CudaDevice device;
                  const auto nccl = make_nccl_world(world, device, {.timeout_s = timeout_s});
                  nccl->barrier();  // both have chosen
                  if (rank == 0) before_connecting();
                  nccl->barrier();
                  try {
                      const auto reduce = nccl->connect("reduce", {{0, 1}, world.rank()});
                      const auto gather = nccl->connect("gather", {{0, 1}, world.rank()});
                      const auto first = device.create_stream("reduce"),
                                 second = device.create_stream("gather");
                      std::vector<float> x(3, 1.0f), y(3, 2.0f);
                      reduce->all_reduce(view(x), *first);
                      gather->all_reduce(view(y), *second);
                      first->synchronize();
                      second->synchronize();
                      nccl->barrier();
                      EXPECT_EQ(x[2], 2.0f);
                      EXPECT_EQ(y[2], 4.0f);
                  } catch (const Error& error) {
                      reasons[rank] = error.what();
                      world.abort(error.code(), error.what());
                  }
              },
              {.timeout_s = 2 * timeout_s});
    return reasons;
}

class LaunchOrder {
  public:
    explicit LaunchOrder(const char* value) { set(value); }
    ~LaunchOrder() { set(nullptr); }
    static void set(const char* value) {
        if (value)
            setenv("NCCL_LAUNCH_ORDER_IMPLICIT", value, 1);
        else
            unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    }
};

const std::vector<std::string> kNoReasons(2);

TEST_F(NcclTest, CollectivesOfTwoCommunicatorsStartInHostOrder) {
    const LaunchOrder unset(nullptr);
    set_fake_nccl({.one_at_a_time = true});
    EXPECT_EQ(sum_on_two_communicators(), kNoReasons);
}

TEST_F(NcclTest, OldVersionRunsOneCollectiveAtATime) {
    const LaunchOrder unset(nullptr);
    set_fake_nccl({.version = 22505, .one_at_a_time = true});
    EXPECT_EQ(sum_on_two_communicators(), kNoReasons);
}

TEST_F(NcclTest, DisabledLaunchOrderRunsOneCollectiveAtATime) {
    const LaunchOrder disabled("0");
    set_fake_nccl({.one_at_a_time = true});
    EXPECT_EQ(sum_on_two_communicators(), kNoReasons);
}

// The fault that the tests above exclude: the ranks' GPUs choose different collectives, which wait for each other.
TEST_F(NcclTest, CollectivesWithoutAnOrderDeadlock) {
    const LaunchOrder unset(nullptr);
    set_fake_nccl({.one_at_a_time = true});
    for (const std::string& reason : sum_on_two_communicators(1, [] { LaunchOrder::set("0"); }))
        EXPECT_THAT(reason, ::testing::AnyOf(HasSubstr("was not done within 1 s"),
                                             HasSubstr("ranks wait for each other")));
}

TEST_F(NcclTest, ConnectRunsEachKindOfCall) {
    run_ranks(2, [](World& world) {
        CudaDevice device;
        const auto gather = make_nccl_world(world, device, {})->connect("gather", {{0, 1}, world.rank()});
        for (const CollectiveCount& count : gather->counts()) EXPECT_EQ(count.calls, 0);
    });
    for (const char* function :
         {"ncclAllReduce", "ncclBroadcast", "ncclReduceScatter", "ncclAllGather", "ncclGroupEnd"})
        EXPECT_EQ(find<decltype(fake_nccl_calls)>("fake_nccl_calls")(function), 2) << function;
}

// Communicators over the shards: of reductions with the loss's, of gathers, of Muon's exchanges; and their parent.
TEST_F(NcclTest, PlanContainsTheMemoryOfCommunicators) {
    const auto planned = [&](const std::string& communicator) {
        const Config c = config({"device=cuda", "batch.tokens_per_step=1024", "parallel.strategy=zero1",
                                 "parallel.communicator=" + communicator});
        int64_t bytes = 0;
        run_ranks(2, [&](World& world) {
            const MemoryPlan plan = plan_memory(c, resolve_ranks(c, world));
            EXPECT_EQ(plan.needed(), plan.bytes + plan.nccl_bytes);
            if (world.rank() == 0) bytes = plan.nccl_bytes;
        });
        return bytes >> 20;
    };
    EXPECT_EQ(planned("nccl"), 4 * 300);
    EXPECT_EQ(planned("staged"), 0);
}

TEST_F(NcclTest, MemoryOfCommunicatorsIsInTheTable) {
    constexpr int64_t kBytes = int64_t{64} << 20;
    set_fake_nccl({.connected = [] {
        static std::mutex mutex;
        static int64_t used = 0;
        std::lock_guard lock(mutex);
        set_fake_gpu({.memory_bytes = (int64_t{1} << 33) - (used += kBytes)});
    }});
    run_ranks(1, [](World& world) {
        CudaDevice device;
        const auto nccl = make_nccl_world(world, device, {});
        const int64_t before = device.memory().total();
        auto first = nccl->connect("first", {{0}, 0});  // with the parent of all communicators
        const auto second = nccl->connect("second", {{0}, 0});
        const auto bytes = [&](const std::string& name) {
            for (const MemoryTable::Entry& entry : device.memory().entries())
                if (entry.name == name) return entry.bytes / kBytes;
            return int64_t{0};
        };
        EXPECT_EQ(bytes("NCCL, first"), 2);
        EXPECT_EQ(bytes("NCCL, second"), 1);
        first.reset();
        EXPECT_EQ(bytes("NCCL, first"), 0);
        EXPECT_GE(device.memory().total(), before + kBytes);
    });
}

// Both ranks end with code 5 and the reason.
std::vector<std::string> reasons_of(const std::function<void(Communicator&, Stream&, int rank)>& body) {
    std::vector<std::string> reasons(2);
    run_ranks(2,
              [&](World& world) {
                  const auto rank = static_cast<size_t>(world.rank());
                  CudaDevice device;
                  const auto nccl = make_nccl_world(world, device, {.timeout_s = 1});
                  const auto communicator = nccl->connect("gather", {{0, 1}, world.rank()});
                  const auto stream = device.create_stream("gather");
                  try {
                      body(*communicator, *stream, world.rank());
                      nccl->barrier();
                      reasons[rank] = "nothing";
                  } catch (const Error& error) {
                      EXPECT_EQ(error.code(), ExitCode::communication) << error.what();
                      reasons[rank] = error.what();
                      world.abort(error.code(), error.what());
                  }
              },
              {.timeout_s = 2});
    return reasons;
}

TEST_F(NcclTest, ErrorNamesCollective) {
    for (const std::string& reason : reasons_of([](Communicator&communicator, Stream&stream, int) {
             set_fake_nccl({.refuses = true});
             std::vector<float> values(3);
             communicator.all_reduce(view(values), stream);
         })) {
        EXPECT_EQ(reason,
                  "ncclAllReduce (all_reduce of f32[3] on 'gather'): unhandled system error: said by the "
                  "fake NCCL");
    }
}

// The watch aborts the communicator; otherwise the first rank's synchronize() would never return.
void wait_for_peer(Communicator& communicator, Stream& stream) {
    std::vector<float> values(3);
    communicator.all_reduce(view(values), stream);
    stream.synchronize();
    communicator.all_reduce(view(values), stream);
}

TEST_F(NcclTest, HangingPeerEndsAllRanks) {
    std::atomic<bool> over = false;
    const auto reasons = reasons_of([&](Communicator& communicator, Stream& stream, int rank) {
        if (rank == 0) {
            try {
                wait_for_peer(communicator, stream);
            } catch (...) {
                over = true;
                throw;
            }
        }
        while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    });
    EXPECT_EQ(reasons[0],
              "all_reduce of f32[3] on 'gather' was not done within 1 s: rank 1 did not come to barrier on "
              "'roll call of gather' within 2 s (reported by rank 0): it hangs or is gone");
    EXPECT_THAT(reasons[1], HasSubstr("rank 1 did not come"));
}

TEST_F(NcclTest, DetectsMutualWait) {
    const auto reasons = reasons_of([](Communicator& communicator, Stream& stream, int rank) {
        if (rank == 0) wait_for_peer(communicator, stream);  // the other rank is at the host's barrier
    });
    EXPECT_THAT(reasons[0], HasSubstr("ranks wait for each other"));
}

TEST_F(NcclTest, AsynchronousErrorEndsAllRanks) {
    const auto reasons = reasons_of([&](Communicator& communicator, Stream& stream, int rank) {
        if (rank == 1) return;
        set_fake_nccl({.async_error = true});
        std::vector<float> values(3);
        while (true) {  // for any next call: the watch has detected the failure
            communicator.barrier(stream);
            stream.synchronize();
        }
    });
    for (const std::string& reason : reasons)
        EXPECT_EQ(reason, "'gather': remote process exited: said by the fake NCCL");
}

// A communicator must not be aborted while the host is inside a call of NCCL.
TEST(NcclDeathTest, LossDuringACallEndsTheProcess) {
    ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
    EXPECT_EXIT(
        {
            set_fake_nccl({});
            run_ranks(2, [](World& world) {
                CudaDevice device;
                const auto nccl = make_nccl_world(world, device, {.timeout_s = 60});
                const auto communicator = nccl->connect("gather", {{0, 1}, world.rank()});
                const auto stream = device.create_stream("gather");
                std::vector<float> values(3);
                nccl->barrier();
                set_fake_nccl({.async_error = true, .blocks = true});
                communicator->all_reduce(view(values), *stream);
            });
        },
        ::testing::ExitedWithCode(static_cast<int>(ExitCode::communication)),
        "the host is blocked in a call of NCCL");
}

}  // namespace
}  // namespace speedrun::testing
