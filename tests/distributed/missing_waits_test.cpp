// A test of the tests: removes the engine's stream waits one at a time and trains with random network delays, as
// EngineGraphsTest does. Each removal must change a bit, throw or crash. kNotShown lists the exceptions with reasons.
// With all waits, two runs agree in every bit, and snapshots equal copies that end before the next step begins.
// build: in missing_waits_tests
#include <cxxabi.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "kernels/cpu/cpu_device.h"
#include "tests/distributed/engine.h"
#include "tests/distributed/rank_threads.h"
#include "train/checkpoint/state_pieces.h"
#include "train/comm/simulated_world.h"
#include "train/engine/runner_state.h"

namespace speedrun {
namespace {

std::mutex mutex;
std::set<const void*> callers;  // call sites of Stream::wait
std::atomic<const void*> removed = nullptr;

}  // namespace

// CpuStream calls this for recorded events, in this build only.
bool wait_is_removed(const void* caller) {
    const std::lock_guard lock(mutex);
    callers.insert(caller);
    return caller == removed;
}

// Adds a random delay where a stream records or waits for an event. Some delays exceed a step, so that each stream is
// sometimes the slower one.
void inject_delay(CpuStream& stream) {
    thread_local std::minstd_rand random(7);
    const auto draw = random();
    const int64_t microseconds = draw % 97 == 0 ? 20'000 : draw % 5 == 0 ? (draw / 97) % 1'500 : 0;
    if (microseconds == 0) return;
    stream.submit("dawdle",
                  [microseconds] { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); });
}

namespace testing {
namespace {

using namespace std::chrono_literals;

// "speedrun::BucketSchedule::reduce"
std::string function_of(const void* address) {
    Dl_info info{};
    if (dladdr(address, &info) == 0 || !info.dli_sname) return "unknown";
    int status = 0;
    char* const name = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
    const std::string text = status == 0 ? name : info.dli_sname;
    std::free(name);
    return text.substr(0, text.find('('));
}

std::string name_of(const void* caller) {
    Dl_info info{};
    dladdr(caller, &info);
    const auto offset = static_cast<const char*>(caller) - static_cast<const char*>(info.dli_saddr);
    return fmt::format("{} + {}", function_of(caller), offset);
}

struct Trial {
    Mode mode;
    bool saves = false;    // takes a snapshot of the state after every step, like a checkpoint
    bool overlaps = true;  // trains the next steps during the copies of a snapshot
};

std::vector<Trial> trials() {
    std::vector<Mode> modes =
        modes_of({"zero3", "zero2", "zero1", "ddp"}, {"1x3 /2 muon", "1x3 muon in_backward"});
    for (const char* words :
         {"zero1 1x3 /2 after_backward",
          "zero1 1x3 in_backward",  // updates must not overtake backward's reads
          "zero1 1x3 muon clip=0.2",
          // Values exchanged over the tensor axis, and keys over the context axis.
          "zero1 model=parts heads=6 tensor=2 sequence", "zero1 model=modern heads=6 tensor=2",
          "zero1 model=parts context=2",
          // Scales of the next step, reduced over all ranks long before forward reads them.
          "ddp 1x3 model=scales in_backward", "zero1 context=4"})
        modes.push_back(mode_of(words));
    std::vector<Trial> trials;
    for (const Mode& mode : modes) trials.push_back({mode});
    // A step changes these while they are copied: masters, state of both kinds of optimizers, scales, and the matrix
    // of a head that is refreshed for every snapshot.
    for (const char* words : {"ddp 1x2 muon", "zero3 1x2", "zero1 1x2 model=scales",
                              // The head is untied after the first stage.
                              "zero1 1x2 muon model=newest heads=6 heads_per_matrix=2 stages"})
        trials.push_back({mode_of(words), true});
    return trials;
}

// Number of waits per function that no test here shows to be needed. finish_updates: guards the coefficient that
// refuses a step, which changes only if a gradient is not finite. StepStatistics: guards the host's copy of the
// statistics, which would have to take as long as the next step. copy: a checkpoint's read of an inactive matrix is
// hidden by reads of the buckets copied after it. renew: shows only if the next step ends within the delay of a copy,
// which a loaded machine prevents. begin_copy: shows only if a copy begins within the reduction of the scales. ScaleStoreTest shows
// both on any machine (NextScalesWaitForCopies, CopiesWaitForNewScales).
const std::map<std::string, int> kNotShown{
    {"speedrun::BucketSchedule::copy", 1},      {"speedrun::BucketSchedule::finish_updates", 1},
    {"speedrun::ScaleStore::begin_copy", 1},    {"speedrun::ScaleStore::renew", 1},
    {"speedrun::StepStatistics::take_loss", 1}, {"speedrun::StepStatistics::combine", 1}};

// Returns the state of a rank after each step.
std::vector<std::vector<char>> snapshots_of(const Trial& trial, World* world) {
    const Mode& mode = trial.mode;
    const Ranks ranks = mode.ranks(world);
    Runtime runtime(
        {.device = DeviceKind::cpu, .precision = *mode.config.precision, .threads = 1, .communicates = true});
    StepRunner runner(mode.config, runtime, ranks);
    runner.warm_up();
    runner.state().initialize(3);
    std::vector<std::vector<StatePiece>> pieces;  // pieces by bucket, scales last
    int64_t bytes = 0;
    const auto add = [&](std::vector<StatePiece> some) {
        for (const StatePiece& piece : some) bytes += piece.values.bytes();
        pieces.push_back(std::move(some));
    };
    const ShardedState& state = runner.state().schedule.state();
    for (const Bucket& bucket : state.layout().all()) add(state_pieces(state, bucket));
    add(state_pieces(state.scales()));
    const auto source = batches_of(mode, ranks);
    std::vector<std::unique_ptr<Event>> updated;  // index: step
    std::vector<std::vector<char>> snapshots(kSteps, std::vector<char>(static_cast<size_t>(bytes)));
    for (int64_t step = 0; step < kSteps; ++step) {
        char* to = snapshots[static_cast<size_t>(step)].data();
        StateCopies copies;
        for (const std::vector<StatePiece>& some : pieces) {
            std::vector<HostCopy>& all = copies.buckets.emplace_back();
            for (const StatePiece& piece : some) {
                all.push_back({piece.values, to});
                to += piece.values.bytes();
            }
        }
        copies.scales = std::move(copies.buckets.back());
        copies.buckets.pop_back();
        runner.enqueue(step, *source);
        // Copies begin 80 ms after this step's updates, when most of the next step has run.
        updated.push_back(runtime.device().create_event());
        runtime.optimizer().record(*updated.back());
        if (step % 3 != 0)
            static_cast<CpuStream&>(runtime.copy()).submit("slow copy", [event = updated.back().get()] {
                event->synchronize();
                std::this_thread::sleep_for(80ms);
            });
        RunnerState(runner).snapshot(copies);
        if (!trial.overlaps) runtime.synchronize();
        if (runner.uncollected() == 2) runner.collect();
    }
    runner.collect();
    runtime.synchronize();
    return snapshots;
}

struct Trained {
    Curve curve;
    std::vector<std::vector<char>> snapshots;
};

// Training result of each rank; empty if any rank threw.
std::vector<Trained> train(const Trial& trial, uint64_t seed) {
    std::vector<Trained> all(static_cast<size_t>(trial.mode.num_ranks()));
    try {
        run_ranks(trial.mode.num_ranks(), [&](World& world) {
            const auto slow = make_simulated_world(
                world, {.model = {}, .jitter_s = 2e-3, .seed = seed + static_cast<uint64_t>(world.rank())});
            Trained& mine = all[static_cast<size_t>(world.rank())];
            if (trial.saves)
                mine.snapshots = snapshots_of(trial, slow.get());
            else
                mine.curve = train(trial.mode, slow.get());
        });
    } catch (const std::exception& error) {
        if (!removed) std::printf("%s\n", error.what());
        return {};
    }
    return all;
}

// Compares the common curve, and the snapshots of each rank.
bool same(const std::vector<Trained>& all, const std::vector<Trained>& expected) {
    const Curve& curve = expected.front().curve;
    for (size_t rank = 0; rank < all.size(); ++rank)
        if (all[rank].curve.losses != curve.losses || all[rank].curve.norms != curve.norms ||
            all[rank].curve.masters != curve.masters || all[rank].snapshots != expected[rank].snapshots)
            return false;
    return !all.empty();
}

constexpr int kNoticed = 1, kFailed = 2;

// Forks a process that exits with the result of `work`.
pid_t start(const std::function<int()>& work) {
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child < 0) throw_internal("fork: {}", std::strerror(errno));
    if (child > 0) return child;
    int code = kFailed;
    try {
        code = work();
    } catch (const std::exception& error) {
        std::printf("%s\n", error.what());
    }
    std::fflush(nullptr);
    _exit(code);
}

// Trains in a separate process: a mistimed write may leave an invalid id, and its look-up ends the process.
bool changes(const Trial& trial, uint64_t seed, const std::vector<Trained>& expected) {
    const pid_t child = start([&] { return same(train(trial, seed), expected) ? 0 : kNoticed; });
    int status = 0;
    if (waitpid(child, &status, 0) != child) throw_internal("waitpid: {}", std::strerror(errno));
    if (WIFSIGNALED(status)) std::printf("signal %d: ", WTERMSIG(status));
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

TEST(MissingWaitsTest, DetectsEachRemovedWait) {
    const std::vector<Trial> all = trials();
    std::vector<std::vector<Trained>> expected;
    std::map<const void*, std::vector<size_t>> users;  // trials by caller
    for (size_t i = 0; i < all.size(); ++i) {
        Trial apart = all[i];
        apart.overlaps = false;
        expected.push_back(train(apart, 10));
        ASSERT_FALSE(expected.back().empty()) << "trial " << i;
        callers.clear();
        ASSERT_TRUE(same(train(all[i], 10), expected.back())) << "trial " << i << ": a wait is missing";
        for (const void* caller : callers) users[caller].push_back(i);
    }
    const auto is_noticed = [&](const void* caller, const std::vector<size_t>& used_by) {
        removed = caller;
        const uint64_t last = kNotShown.count(function_of(caller)) ? 10 : 60;
        for (uint64_t seed = 10; seed <= last; seed += 10) {
            for (const size_t trial : used_by) {
                if (changes(all[trial], seed, expected[trial])) return true;
            }
        }
        return false;
    };
    EXPECT_GE(users.size(), 14u) << "fewer waits than the engine has";
    // The processes sleep most of the time, so several run concurrently.
    constexpr size_t kAtOnce = 6;
    std::map<pid_t, const void*> at_work;
    std::map<std::string, int> unseen;  // waits per function
    const auto end_one = [&] {
        int status = 0;
        const pid_t child = ::wait(&status);
        const auto of = at_work.find(child);
        if (of == at_work.end())
            throw_internal("wait: process {} is none of ours: {}", child, std::strerror(errno));
        const void* caller = of->second;
        at_work.erase(of);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) != kFailed)
            << name_of(caller) << ": status " << status;
        const bool noticed = WIFEXITED(status) && WEXITSTATUS(status) == kNoticed;
        unseen[function_of(caller)] += !noticed;
        std::printf("%s %s\n", noticed ? "noticed " : "not seen", name_of(caller).c_str());
    };
    for (const auto& [caller, used_by] : users) {
        if (at_work.size() == kAtOnce) end_one();
        at_work[start([&, caller = caller, &used_by = used_by] {
            return is_noticed(caller, used_by) ? kNoticed : 0;
        })] = caller;
    }
    while (!at_work.empty()) end_one();
    for (const auto& [function, count] : unseen) {
        const auto explained = kNotShown.find(function);
        EXPECT_LE(count, explained == kNotShown.end() ? 0 : explained->second)
            << function << ": removed waits that no trial detects";
    }
}

}  // namespace
}  // namespace testing
}  // namespace speedrun
