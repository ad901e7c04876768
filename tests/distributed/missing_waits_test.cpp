// A test of the tests: removes the waits of the engine's streams one by one, wherever one is enqueued, and
// trains with random delays of the network (as EngineOrderTest does). Each must change a bit or end in an
// error or a crash; what does not is listed with its reason.
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
#include "train/comm/simulated_world.h"

namespace speedrun {
namespace {

std::mutex mutex;
std::set<const void*> callers;  // of Stream::wait
std::atomic<const void*> removed = nullptr;

}  // namespace

// What CpuStream does in this build, of events that have been recorded.
bool wait_is_removed(const void* caller) {
    const std::lock_guard lock(mutex);
    callers.insert(caller);
    return caller == removed;
}

// Where streams meet they dawdle at random, now and then for longer than a step takes, so that each is the
// slower one at some time.
void dawdle(CpuStream& stream) {
    thread_local std::minstd_rand random(7);
    const auto draw = random();
    const int64_t microseconds = draw % 97 == 0 ? 20'000 : draw % 5 == 0 ? (draw / 97) % 1'500 : 0;
    if (microseconds == 0) return;
    stream.submit("dawdle",
                  [microseconds] { std::this_thread::sleep_for(std::chrono::microseconds(microseconds)); });
}

namespace testing {
namespace {

// "speedrun::GradientSync::launch"
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

std::vector<Mode> modes() {
    std::vector<Mode> modes;
    for (const Strategy strategy : {Strategy::zero3, Strategy::zero2, Strategy::zero1, Strategy::ddp}) {
        for (const OptimizerStep step : {OptimizerStep::after_backward, OptimizerStep::in_backward}) {
            Mode mode{strategy,     1, 3, step == OptimizerStep::in_backward ? 1 : 2, OptimizerKind::muon,
                      Launch::ready};
            mode.optimizer_step = step;
            modes.push_back(mode);
        }
    }
    modes.push_back({Strategy::zero1, 1, 3, 2, OptimizerKind::adamw, Launch::after_backward});
    modes.push_back({Strategy::zero1, 1, 3, 1, OptimizerKind::adamw, Launch::ready});
    modes.back().optimizer_step = OptimizerStep::in_backward;  // which must not overtake backward's reads
    modes.push_back(
        {Strategy::zero1, 1, 3, 1, OptimizerKind::muon, Launch::ready, DType::f32, 0.2});  // clipped
    // Values that travel between ranks, in chunks and whole, and what is fetched of rows.
    for (const bool sequence : {true, false}) {
        Mode mode{Strategy::zero1, 1, 1, 1, OptimizerKind::adamw, Launch::ready};
        mode.family = sequence ? "parts" : "modern";
        mode.heads = 6;
        mode.tensor = 2;
        mode.sequence = sequence;
        mode.chunks = sequence ? 3 : 1;
        modes.push_back(mode);
    }
    modes.push_back({Strategy::zero1, 1, 1, 1, OptimizerKind::adamw, Launch::ready});
    modes.back().family = "parts";
    modes.back().context = 2;
    // Scales that all ranks make of a step for the next one: what forward reads before them is there long before.
    modes.push_back({Strategy::ddp, 1, 3, 1, OptimizerKind::adamw, Launch::ready});
    modes.back().family = "scales";
    modes.back().optimizer_step = OptimizerStep::in_backward;
    // Keys and their gradients on their way beside the attention of other steps.
    modes.push_back({Strategy::zero1, 1, 1, 1, OptimizerKind::adamw, Launch::ready});
    modes.back().context = 4;
    modes.back().ring = true;
    return modes;
}

// Waits that nothing here can show to be needed, by function: how many. That of finish_steps guards the
// coefficient that refuses a step, which changes only if a gradient is not finite. Those of the statistics
// guard the host's copy of them, which would have to take as long as the whole next step.
const std::map<std::string, int> kNotShown{{"speedrun::UpdatePipeline::finish_steps", 1},
                                           {"speedrun::StepStatistics::take_loss", 1},
                                           {"speedrun::StepStatistics::combine", 1}};

// What each rank trained; empty if one of them ended with an error.
std::vector<Curve> curves_of(const Mode& mode, uint64_t seed) {
    std::vector<Curve> curves(static_cast<size_t>(mode.ranks()));
    try {
        run_ranks(mode.ranks(), [&](World& world) {
            const auto slow = make_simulated_world(
                world, {.model = {}, .jitter_s = 2e-3, .seed = seed + static_cast<uint64_t>(world.rank())});
            curves[static_cast<size_t>(world.rank())] = train(mode, slow.get());
        });
    } catch (const std::exception&) {
        return {};
    }
    return curves;
}

bool same(const std::vector<Curve>& curves, const Curve& expected) {
    for (const Curve& curve : curves)
        if (curve.losses != expected.losses || curve.norms != expected.norms ||
            curve.masters != expected.masters)
            return false;
    return !curves.empty();
}

constexpr int kNoticed = 1, kFailed = 2;

// A process of its own, which ends with what `work` returns.
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

// Trains in a process of its own: memory that is written too late or too early may hold ids, and a look-up of what is no id
// ends the process.
bool changes(const Mode& mode, uint64_t seed, const Curve& expected) {
    const pid_t child = start([&] { return same(curves_of(mode, seed), expected) ? 0 : kNoticed; });
    int status = 0;
    if (waitpid(child, &status, 0) != child) throw_internal("waitpid: {}", std::strerror(errno));
    if (WIFSIGNALED(status)) std::printf("signal %d: ", WTERMSIG(status));
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

TEST(MissingWaitsTest, EachIsNoticed) {
    const std::vector<Mode> all = modes();
    std::vector<Curve> expected;
    std::map<const void*, std::vector<size_t>> users;  // by caller: modes
    for (size_t i = 0; i < all.size(); ++i) {
        callers.clear();
        const std::vector<Curve> curves = curves_of(all[i], 10);
        ASSERT_TRUE(!curves.empty() && same(curves, curves[0])) << "with all waits";
        expected.push_back(curves[0]);
        for (const void* caller : callers) users[caller].push_back(i);
    }
    const auto is_noticed = [&](const void* caller, const std::vector<size_t>& used_by) {
        removed = caller;
        const uint64_t last = kNotShown.count(function_of(caller)) ? 10 : 60;
        for (uint64_t seed = 10; seed <= last; seed += 10) {
            for (const size_t mode : used_by) {
                if (changes(all[mode], seed, expected[mode])) return true;
            }
        }
        return false;
    };
    EXPECT_GE(users.size(), 14u) << "all of the engine's waits are here";
    // They sleep most of the time, so several at once.
    constexpr size_t kAtOnce = 6;
    std::map<pid_t, const void*> at_work;
    std::map<std::string, int> unseen;  // by function
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
            << function << ": waits that nobody would miss";
    }
}

}  // namespace
}  // namespace testing
}  // namespace speedrun
