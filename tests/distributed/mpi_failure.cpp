// A run with a failure on one rank: mpirun -np N mpi_failure MODE. mpi_failure_test.sh states the expected behaviour
// of the other ranks. The timeout of a lost peer is two seconds.
// build: in mpi_failure
#include <fmt/core.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "train/comm/mesh.h"
#include "train/comm/supervisor.h"
#include "train/comm/world.h"

namespace {

using namespace speedrun;
using namespace std::chrono_literals;

constexpr AxisSet kEverybody{Axis::replicate, Axis::shard};

struct Run {
    explicit Run(World& all) : world(all), mesh({1, all.size(), 1, 1}) {}

    std::unique_ptr<Communicator> connect(const std::string& name, AxisSet axes = kEverybody) {
        return world.connect(name, mesh.group(world.rank(), axes));
    }
    // Waits for the collective.
    void all_reduce(Communicator& communicator, int64_t count = 1000) {
        std::vector<float> values(static_cast<size_t>(count), 1.0f);
        communicator.all_reduce(Tensor(values.data(), DType::f32, {count}), *stream);
        stream->synchronize();
    }

    World& world;
    Mesh mesh;
    CpuDevice device{1};
    std::unique_ptr<Stream> stream = device.create_stream("reduce");
};

// Rank 1 calls `last_deed` between two collectives.
void part_from_rank_1(Run& run, void (*last_deed)()) {
    const auto communicator = run.connect("gradients");
    run.all_reduce(*communicator);
    if (run.world.rank() == 1) last_deed();
    run.all_reduce(*communicator);
}

void hang(Run& run) {
    part_from_rank_1(run, [] { std::this_thread::sleep_for(60s); });
}
// The stream's error is never read: all ranks are stuck in other code.
void stuck(Run& run) {
    const auto communicator = run.connect("gradients");
    std::vector<float> values(1000);
    if (run.world.rank() != 1)
        communicator->all_reduce(Tensor(values.data(), DType::f32, {1000}), *run.stream);
    std::this_thread::sleep_for(60s);
}
void stop(Run& run) {
    part_from_rank_1(run, [] { raise(SIGSTOP); });
}
void leave(Run& run) {
    part_from_rank_1(run, [] { _exit(0); });
}
void die(Run& run) {
    part_from_rank_1(run, [] { raise(SIGKILL); });
}
// No failure: all ranks end normally, and the launcher must see success.
void nothing(Run& run) {
    part_from_rank_1(run, [] {});
}
void fail(Run& run) {
    part_from_rank_1(run, [] { throw_data("shard 7 is damaged"); });
}

// All ranks are stopped for longer than the timeout, and continue half a second after each other.
void pause(Run& run) {
    const auto communicator = run.connect("gradients");
    run.all_reduce(*communicator);
    const pid_t rank = getpid();
    if (fork() == 0) {
        kill(rank, SIGSTOP);
        usleep(3'500'000 + 500'000 * static_cast<useconds_t>(run.world.rank()));
        kill(rank, SIGCONT);
        _exit(0);
    }
    for (int i = 0; i < 400; ++i) {
        run.all_reduce(*communicator);
        std::this_thread::sleep_for(1ms);
    }
}

// Rank 0 waits for 2, which waits for 3, which hangs; rank 0 gives up first and must still name 3.
void chain(Run& run) {
    run.mesh = Mesh({2, 2, 1, 1});
    const auto over_shard = run.connect("shard", {Axis::shard}),
               over_replicate = run.connect("replicate", {Axis::replicate});
    if (run.world.rank() == 3) std::this_thread::sleep_for(60s);
    if (run.world.rank() == 2) std::this_thread::sleep_for(500ms);
    run.all_reduce(run.world.rank() < 2 ? *over_replicate : *over_shard);
}

// Rank 1 enqueues its collectives in another order.
void swap(Run& run) {
    const auto first = run.connect("first"), second = run.connect("second");
    const bool swapped = run.world.rank() == 1;
    run.all_reduce(swapped ? *second : *first);
    run.all_reduce(swapped ? *first : *second);
}

void resize(Run& run) {
    const auto communicator = run.connect("gradients");
    run.all_reduce(*communicator, run.world.rank() == 1 ? 2000 : 1000);
}

void plan(Run& run) {
    expect_same_on_all_ranks(run.world, "plan", {"a", run.world.rank() == 1 ? "c" : "b"});
}

}  // namespace

int main(int argc, char** argv) {
    const std::map<std::string, void (*)(Run&)> modes{
        {"hang", hang},   {"stuck", stuck}, {"stop", stop},     {"leave", leave},
        {"die", die},     {"fail", fail},   {"pause", pause},   {"nothing", nothing},
        {"chain", chain}, {"swap", swap},   {"resize", resize}, {"plan", plan}};
    const auto mode = argc == 2 ? modes.find(argv[1]) : modes.end();
    if (mode == modes.end()) {
        fmt::print(stderr,
                   "usage: mpirun -np N mpi_failure "
                   "nothing|hang|stuck|stop|leave|die|fail|pause|chain|swap|resize|plan\n");
        return 2;
    }
    return run_supervised([&] {
        const auto world = make_world({.timeout_s = 2});
        return run_rank(*world, [&] {
            Run run(*world);
            mode->second(run);
            return 0;
        });
    });
}
