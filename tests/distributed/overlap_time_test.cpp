// The engine overlaps as much communication with compute as its schedule permits, in time. Compute and network take
// virtual time (tests/distributed/virtual_clock.h), so the machine's speed and load do not matter. The bound is
// computed from durations in the trace of the same run.
// Covers: train/sharding/parameter_gatherer.cpp
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/distributed/engine.h"
#include "tests/distributed/rank_threads.h"
#include "tests/distributed/virtual_clock.h"
#include "tests/temp_dir.h"
#include "train/comm/simulated_world.h"
#include "train/trace/timeline.h"

namespace speedrun::testing::overlap_time_test {

using Json = nlohmann::json;

// ms; times closer than this are equal.
constexpr double kSameTime = 1e-5;

struct Span {
    std::string label, phase, bucket;
    int64_t step;
    double begin, end;
};

// The trace of one rank, read from its file.
struct TracedRun {
    std::map<std::string, std::vector<Span>> streams;  // in the order of time
    std::map<std::string, std::vector<double>> ready;  // end of backward by bucket, ms
    std::map<std::string, std::vector<double>> used;   // first reads by compute by bucket, ms

    explicit TracedRun(const std::string& path) {
        std::map<int, std::string> stream_of;
        const Json events = Json::parse(std::ifstream(path)).at("traceEvents");
        for (const Json& e : events)
            if (e["name"] == "thread_name") stream_of[e["tid"]] = e["args"]["name"];
        for (const Json& e : events) {
            const double at = e.value("ts", 0.0) * 1e-3;
            if (e["ph"] == "X" && e["args"].contains("step")) {
                const Json& args = e["args"];
                streams[stream_of[e["tid"]]].push_back({e["name"], args["phase"], args.value("bucket", ""),
                                                        args["step"], at,
                                                        at + e["dur"].get<double>() * 1e-3});
            } else if (e["ph"] == "s" && stream_of[e["tid"]] == "compute") {
                ready[e["name"]].push_back(at + 1e-6);  // the flow arrow begins just inside the span
            } else if (e["ph"] == "f") {
                used[e["name"]].push_back(at);
            }
        }
    }

    const std::vector<Span>& on(const std::string& stream) const {
        static const std::vector<Span> kNone;
        const auto found = streams.find(stream);
        return found == streams.end() ? kNone : found->second;
    }
    double compute_busy(double begin, double end) const {
        double sum = 0;
        for (const Span& s : on("compute"))
            sum += std::max(0.0, std::min(end, s.end) - std::max(begin, s.begin));
        return sum;
    }
};

struct Hidden {
    double total = 0, found = 0, allowed = 0;  // ms of communication, and of its overlap with compute
};

// Overlap per rank of a phase's collectives on a stream, measured and at best. A collective can begin at best when
// the last member has ended the one before it on the stream, and its inputs are ready: earliest(rank, span).
std::vector<Hidden> hidden_on(const std::vector<TracedRun>& ranks, const char* stream, const char* phase,
                              const std::function<double(const TracedRun&, const Span&)>& earliest) {
    std::vector<std::vector<Span>> calls(ranks.size());
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
        for (const Span& s : ranks[rank].on(stream))
            if (s.label == "network") calls[rank].push_back(s);
        EXPECT_EQ(calls[rank].size(), calls[0].size());
    }
    std::vector<Hidden> sums(ranks.size());
    double free = 0;
    for (size_t i = 0; i < calls[0].size(); ++i) {
        double begin = free;
        for (size_t rank = 0; rank < ranks.size(); ++rank) {
            const Span& s = calls[rank][i];
            begin = std::max(begin, s.phase == phase ? earliest(ranks[rank], s) : s.begin);
        }
        free = begin + calls[0][i].end - calls[0][i].begin;
        if (calls[0][i].phase != phase) continue;
        for (size_t rank = 0; rank < ranks.size(); ++rank) {
            const Span& s = calls[rank][i];
            sums[rank].total += s.end - s.begin;
            sums[rank].found += ranks[rank].compute_busy(s.begin, s.end);
            sums[rank].allowed += ranks[rank].compute_busy(begin, free);
        }
    }
    return sums;
}

// A reduction needs the last gradient of its bucket that backward completes before it.
std::vector<Hidden> hidden_reductions(const std::vector<TracedRun>& ranks) {
    return hidden_on(ranks, "reduce", "reduce", [](const TracedRun& run, const Span& s) {
        double latest = -1;
        for (const double at : run.ready.at(s.bucket))
            if (at <= s.begin + kSameTime) latest = at;
        EXPECT_GE(latest, 0) << s.bucket << " is reduced before backward has completed it";
        return latest;
    });
}

// A gather needs the update of its bucket.
std::vector<Hidden> hidden_gathers(const std::vector<TracedRun>& ranks) {
    return hidden_on(ranks, "gather", "gather", [](const TracedRun& run, const Span& s) {
        double stepped = 0;
        for (const Span& step : run.on("optimizer"))
            if (step.bucket == s.bucket && step.end <= s.begin + kSameTime) stepped = step.end;
        return stepped;
    });
}

// Time at which the last value that compute first reads at `at` was ready; -1 if it reads none.
double came(const TracedRun& run, double at) {
    double last = -1;
    for (const auto& [bucket, times] : run.used) {
        if (std::none_of(times.begin(), times.end(),
                         [&](double used) { return std::abs(used - at) < kSameTime; }))
            continue;
        for (const char* const stream : {"optimizer", "gather"})
            for (const Span& s : run.on(stream))
                if (s.bucket == bucket && s.end <= at + kSameTime) last = std::max(last, s.end);
    }
    return last;
}

// Idle time of compute in a phase, without waits for the values that it reads next. Step 0 is left out: its values
// are set before the trace.
double idle_for_nothing_ms(const TracedRun& run, const char* phase) {
    double sum = 0, last_end = 0;
    for (const Span& s : run.on("compute")) {
        if (s.step > 0 && s.phase == phase && s.begin > last_end + kSameTime)
            sum += s.begin - std::max(last_end, came(run, s.begin));
        last_end = s.end;
    }
    return sum;
}

// Idle time of the optimizer before updates of already reduced buckets.
double idle_optimizer_ms(const TracedRun& run) {
    double sum = 0, last_end = 0;
    for (const Span& s : run.on("optimizer")) {
        if (s.phase == "step") {
            double reduced = 0;
            for (const Span& from : run.on("reduce"))
                if (from.bucket == s.bucket && from.end <= s.begin + kSameTime) reduced = from.end;
            sum += s.begin - std::max(last_end, reduced);
        }
        last_end = s.end;
    }
    return sum;
}

// An operation of compute takes 1 ms, one of the optimizer 0.1 ms, a collective 2 ms plus its bytes.
double cost_ms(const std::string& stream, const char* label) {
    if (is_communication(label)) return 0;
    return stream == "compute" ? 1.0 : stream == "optimizer" ? 0.1 : 0.0;
}
constexpr NetworkModel kNetwork{2e-3, 20e6};

std::vector<TracedRun> train_traced(const Mode& mode, const VirtualClock::Cost& cost = cost_ms,
                                    const NetworkModel& network = kNetwork) {
    const TempDir dir;
    const auto path = [&](int rank) { return dir.file(std::to_string(rank)); };
    run_ranks(mode.num_ranks(), [&](World& threads) {
        const auto clocked = make_clocked_world(threads);
        const auto world = make_simulated_world(*clocked, {network, 0, 1}, pass_virtual_time);
        VirtualClock clock(cost);
        Timeline timeline;
        const auto watch = [&](StepRunner& runner, Runtime& runtime) {
            runner.trace(&timeline);
            runtime.device().set_trace(&timeline);
        };
        train(mode, world.get(), watch, &clock);
        timeline.write(path(threads.rank()));
    });
    std::vector<TracedRun> runs;
    for (int rank = 0; rank < mode.num_ranks(); ++rank) runs.emplace_back(path(rank));
    return runs;
}

std::vector<Mode> modes() {
    return modes_of(kStrategies, {"1x2", "1x2 muon", "1x2 /2 muon", "1x2 in_backward"});
}

TEST(OverlapTimeTest, HiddenTimeReachesBound) {
    for (const Mode& mode : modes()) {
        SCOPED_TRACE(::testing::PrintToString(mode));
        const std::vector<TracedRun> ranks = train_traced(mode);
        for (const Hidden& reductions : hidden_reductions(ranks)) {
            EXPECT_GT(reductions.allowed, 0.9 * reductions.total) << "the bound is below 90%";
            EXPECT_GE(reductions.found, reductions.allowed - kSameTime);
        }
        for (const Hidden& gathers : hidden_gathers(ranks)) {
            // Under ddp too, owners of Muon's matrices send the updated values to the other ranks.
            EXPECT_EQ(gathers.total > 0, !mode.has("ddp") || mode.has("muon"));
            EXPECT_GE(gathers.found, gathers.allowed - kSameTime);
        }
        for (const TracedRun& run : ranks) {
            EXPECT_LT(idle_for_nothing_ms(run, "forward"), kSameTime);
            // Muon's steps end after the norm of all gradients.
            if (!mode.has("muon")) {
                EXPECT_LT(idle_optimizer_ms(run), kSameTime);
            }
            // Backward may have to wait if buckets share memory or values are gathered again.
            if (mode.has("ddp") || mode.has("zero1")) {
                EXPECT_LT(idle_for_nothing_ms(run, "backward"), kSameTime);
            }
        }
    }
}

// Control: reductions that wait for the end of backward overlap less than the bound.
TEST(OverlapTimeTest, ReductionsAfterBackwardOverlapLess) {
    for (const Mode& mode : modes_of(kStrategies, {"1x2 after_backward", "1x2 muon after_backward"})) {
        SCOPED_TRACE(::testing::PrintToString(mode));
        for (const Hidden& reductions : hidden_reductions(train_traced(mode)))
            EXPECT_LT(reductions.found, reductions.allowed / 2);
    }
}

// ms of exchanges between parts of matrices that do not overlap with compute, in one pass of a step.
double exposed_values_ms(const TracedRun& run, const char* phase, int64_t step) {
    double sum = 0;
    for (const Span& s : run.on("exchange"))
        if (s.label == "network" && s.phase == phase && s.step == step)
            sum += s.end - s.begin - run.compute_busy(s.begin, s.end);
    return sum;
}

// A matmul takes 1 ms, a gather or a scatter 0.5 ms, all else nothing. Collectives before and after a matmul are
// exposed, except for dx in backward, which overlaps with the gradient of the matrix. Embedding and head overlap with
// nothing.
TEST(OverlapTimeTest, MatrixGradientsOverlapWithScatter) {
    constexpr int kLayers = 3;
    const auto cost = [](const std::string& stream, const char* label) {
        return stream == "compute" && std::string(label) == "matmul" ? 1.0 : 0.0;
    };
    constexpr double kTokens = 24 * kSequence;
    const double sent = kTokens * 48 * 4 / 2, kHalf = 0.5;  // bytes and ms of a gather or a scatter
    const NetworkModel network{0, sent / (kHalf * 1e-3)};
    const double of_losses = kHalf * kTokens * 2 * 4 / sent;  // two f32 numbers per token and rank
    for (const bool sequence : {false, true}) {
        const Mode mode =
            mode_of(std::string("ddp model=modern heads=6 tensor=2") + (sequence ? " sequence" : ""));
        SCOPED_TRACE(mode.words);
        // An all_reduce is a scatter and a gather.
        const double in_blocks = kLayers * 4 * kHalf, around = 2 * kHalf,
                     in_backward = sequence ? kLayers * 2 * kHalf : 0;
        for (const TracedRun& run : train_traced(mode, cost, network)) {
            for (const int64_t step : {1, 2}) {
                EXPECT_NEAR(exposed_values_ms(run, "forward", step), in_blocks + around, kSameTime);
                EXPECT_NEAR(exposed_values_ms(run, "backward", step), in_backward + around + of_losses,
                            kSameTime);
            }
        }
    }
}

// Operations take no time, and an exchange of keys or of their gradients 0.4 ms: both are exposed.
TEST(OverlapTimeTest, KeyExchangesAreExposed) {
    constexpr int kLayers = 3;
    constexpr double kExchange = 0.4;  // ms
    const auto cost = [](const std::string&, const char*) { return 0.0; };
    for (const Mode& mode : modes_of({"ddp"}, {"model=modern context=2", "model=modern context=4"})) {
        SCOPED_TRACE(mode.words);
        for (const TracedRun& run : train_traced(mode, cost, {kExchange * 1e-3, 0}))
            for (const int64_t step : {1, 2})
                for (const char* phase : {"forward", "backward"})
                    EXPECT_NEAR(exposed_values_ms(run, phase, step), kLayers * kExchange, kSameTime);
    }
}

}  // namespace speedrun::testing::overlap_time_test
