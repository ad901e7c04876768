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

TEST_F(NcclTest, RanksWithGpusOfTheirOwnTakeIt) {
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
TEST_F(NcclTest, RanksConnectOnceAndSplitForEachAxis) {
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
TEST_F(NcclTest, ConnectingIsNotBoundByTheLimitOfCollectives) {
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

TEST_F(NcclTest, CollectivesAreRecordedInGraphs) {
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
        for (const float wanted : {2.0f, 4.0f, 8.0f}) {
            graph->launch(*stream);
            stream->synchronize();
            EXPECT_EQ(values[2], wanted);
        }
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

TEST_F(NcclTest, AnErrorNamesTheCollective) {
    set_fake_nccl({.refuses = true});
    for (const std::string& reason : reasons_of([](Communicator&communicator, Stream&stream, int) {
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

TEST_F(NcclTest, APeerThatHangsIsNamedAndEndsAllRanks) {
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

TEST_F(NcclTest, PeersThatWaitForEachOtherAreTold) {
    const auto reasons = reasons_of([](Communicator& communicator, Stream& stream, int rank) {
        if (rank == 0) wait_for_peer(communicator, stream);  // the other rank is at the host's barrier
    });
    EXPECT_THAT(reasons[0], HasSubstr("ranks wait for each other"));
}

TEST_F(NcclTest, AnErrorThatComesLaterEndsAllRanks) {
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

}  // namespace
}  // namespace speedrun::testing
