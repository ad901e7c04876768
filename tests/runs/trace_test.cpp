// The timeline of a run on several ranks, its analysis, and the order in which buckets are stepped.
// Covers: train/comm/clock_offset.cpp train/engine/run_trace.cpp train/trace/t*.cpp
#include <set>

#include "tests/runs/rank_run_fixture.h"
#include "train/comm/clock_offset.h"
#include "train/model/build_model.h"
#include "train/sharding/reducer.h"
#include "train/sharding/step_collectives.h"
#include "train/trace/overlap.h"
#include "train/trace/timeline_svg.h"

namespace speedrun::testing::trace_test {

constexpr int64_t kFirst = 2, kLast = 4;  // traced steps

class TraceTest : public RankRunFixture {
  protected:
    Config two_ranks(const Settings& settings = {}) const {
        return config(
            {"schedule.steps=5", "batch.microbatch_tokens=256", "threads=1", "device=cpu", by("zero1")},
            settings);
    }
    void traced(const Config& c, const std::string& name) {
        train(c, 2, name, "", {.trace_first = kFirst, .trace_last = kLast});
    }

    // Names of all buckets, or of buckets with or without an optimizer that needs whole matrices.
    static std::vector<std::string> names(const BucketLayout& layout, StepOrder order,
                                          std::optional<bool> whole_matrix) {
        std::vector<std::string> names;
        for (const int id : layout.backward_order()) {
            const Bucket& bucket = layout[id];
            if (whole_matrix && layout.whole_matrix(bucket.group) != *whole_matrix) continue;
            names.insert(order == StepOrder::reverse ? names.end() : names.begin(), bucket.name());
        }
        return names;
    }
    Json events(const std::string& name) const {
        std::ifstream file(path_of(name));
        return Json::parse(file).at("traceEvents");
    }
    std::string path_of(const std::string& name) const {
        return (folder_ / "logs" / name / "trace.json").string();
    }
    // Writes a file with these events of rank 0, each {phase, stream, bucket, step, begin, end, communicates}.
    std::string write_trace(const std::vector<std::string>& lines) const {
        const std::string path = (folder_ / "made.json").string();
        std::ofstream file(path);
        file
            << R"({"traceEvents":[{"name":"process_name","ph":"M","pid":0,"tid":0,"args":{"name":"rank 0 here"
}
},)"
            << R"({"name":"thread_name","ph":"M","pid":0,"tid":1,"args":{"name":"compute"}},)"
            << R"({"name":"thread_name","ph":"M","pid":0,"tid":2,"args":{"name":"reduce"}},)"
            << R"({"name":"thread_name","ph":"M","pid":0,"tid":4,"args":{"name":"gather"}})";
        for (const std::string& line : lines) file << "," << line;
        file << "]}";
        return path;
    }
    static std::string span(int thread, const char* phase, int step, double begin_ms, double end_ms,
                            const char* bucket = "") {
        return fmt::format(
            R"({{"name":"x","cat":"{}","ph":"X","pid":0,"tid":{},"ts":{},"dur":{},"args":{{"step":{},"phase":"{}","bucket":"{}"}}}})",
            thread == 1 ? "work" : "communication", thread, begin_ms * 1e3, (end_ms - begin_ms) * 1e3, step,
            phase, bucket);
    }
};

using SlicesOfThread = std::map<std::pair<int, int>, std::vector<const Json*>>;  // key: pid and tid

// Returns the span that contains a flow event, or null; at a boundary, the later span.
const Json* slice_at(const SlicesOfThread& slices, const Json& flow) {
    const double ts = flow["ts"];
    const Json* found = nullptr;
    for (const Json* e : slices.at({flow["pid"], flow["tid"]})) {
        const double begin = (*e)["ts"], end = begin + (*e)["dur"].get<double>();
        if (begin <= ts && ts <= end && (!found || begin > (*found)["ts"].get<double>())) found = e;
    }
    return found;
}

TEST_F(TraceTest, ArrowsFollowEachBucketThroughItsStep) {
    // Validation in between is not a step: no arrow ends in it.
    traced(two_ranks({"parallel.simulate_latency_us=200", "parallel.simulate_jitter_us=300", "eval.every=3"}),
           "run");
    EXPECT_FALSE(fs::exists(folder_ / "logs" / "run" / "trace_rank0.json"));
    EXPECT_FALSE(fs::exists(folder_ / "logs" / "run" / "trace_rank1.json"));
    const Json all = events("run");
    std::map<int64_t, std::vector<Json>> flows;
    SlicesOfThread slices;
    std::set<std::string> processes;
    for (const Json& e : all) {
        const std::string phase = e["ph"];
        if (e["name"] == "process_name") processes.insert(e["args"]["name"].get<std::string>().substr(0, 8));
        if (phase == "s" || phase == "t" || phase == "f") flows[e["id"]].push_back(e);
        if (phase != "X") continue;
        slices[{e["pid"], e["tid"]}].push_back(&e);
        EXPECT_GE(e["ts"].get<double>(), 0.0);
        EXPECT_GE(e["dur"].get<double>(), 0.0);
        if (!e["args"].contains("step")) continue;
        EXPECT_GE(e["args"]["step"].get<int64_t>(), kFirst);
        EXPECT_LE(e["args"]["step"].get<int64_t>(), kLast);
    }
    EXPECT_EQ(processes, (std::set<std::string>{"rank 0 (", "rank 1 ("}));

    const Config c = two_ranks();
    const ParameterTable table = parameters_of(c.model, c.batch.sequence_length);
    const Ranks ranks = plan_ranks(c, 2);
    const BucketLayout layout(table, bucket_rules(ranks, table, c.optimizers));
    // Every bucket of every traced step of both ranks; no forward follows the last one.
    ASSERT_EQ(flows.size(), static_cast<size_t>(2 * layout.size() * (kLast - kFirst + 1)));
    std::map<std::string, int> chains;
    for (const auto& [id, points] : flows) {
        std::string chain;
        double time = -1;
        int64_t step = -1;  // step of the gradient
        for (const Json& point : points) {
            chain += point["ph"].get<std::string>();
            EXPECT_GE(point["ts"].get<double>(), time) << id;
            time = point["ts"];
            const Json* const slice = slice_at(slices, point);
            ASSERT_NE(slice, nullptr) << point;
            chain += " " + (*slice)["args"]["phase"].get<std::string>() + " ";
            const Json& args = (*slice)["args"];
            if (step < 0) step = args["step"];
            EXPECT_EQ(args["step"], args["phase"] == "forward" ? step + 1 : step) << point;
            EXPECT_TRUE(!args.contains("bucket") || args["bucket"] == point["name"]) << point;
        }
        EXPECT_EQ(points.back()["bp"], "e");
        ++chains[chain];
    }
    // Muon's step has two parts.
    const int at_once = static_cast<int>(names(layout, StepOrder::reverse, false).size()),
              halved = layout.size() - at_once;
    EXPECT_EQ(chains, (std::map<std::string, int>{
                          {"s backward t reduce t step t gather f forward ", 2 * 2 * at_once},
                          {"s backward t reduce t step f gather ", 2 * at_once},
                          {"s backward t reduce t step t step t gather f forward ", 2 * 2 * halved},
                          {"s backward t reduce t step t step f gather ", 2 * halved}}));

    // Bytes of the spans, of the step lines and of the plan are equal, and the totals are their sum.
    std::map<std::string, double> planned, traced;
    for (const CollectiveRow& row : step_collectives(layout, ranks, DType::f32))
        for (const StepCollective& one : row.collectives) planned[name_of(one.kind)] += one.sent_bytes;
    for (const Json& e : all)
        if (e["ph"] == "X" && e["pid"] == 0 && e["args"].contains("bytes"))
            traced[e["name"]] += e["args"]["bytes"].get<double>() / (kLast - kFirst + 1);
    EXPECT_DOUBLE_EQ(traced["reduce_scatter"], planned["reduce_scatter"]);
    EXPECT_DOUBLE_EQ(traced["all_gather"], planned["all_gather"]);
    int64_t steps = 0;
    for (const Json& line : metrics("run")) {
        if (line["event"] != "step") continue;
        ++steps;
        EXPECT_EQ(line["bytes"].size(), planned.size());
        for (const auto& [kind, bytes] : planned) EXPECT_EQ(line["bytes"][kind], std::llround(bytes)) << kind;
        // A reduction per bucket, at least as long as the network's latency; gathers may end within the next step.
        const double exposed = line["comm_exposed_ms"], optimizer = line["optimizer_ms"];
        EXPECT_GE(line["comm_ms"].get<double>(), 0.2 * layout.size());
        EXPECT_GE(line["comm_ms"].get<double>(), exposed);
        EXPECT_GE(line["step_ms"].get<double>(), exposed + optimizer);
        EXPECT_GE(exposed, 0);
        EXPECT_GE(optimizer, -1e-9);
    }
    std::ifstream file(folder_ / "logs" / "run" / "summary.json");
    const Json summary = Json::parse(file);
    EXPECT_EQ(summary["bytes"]["all_gather"], steps * std::llround(planned["all_gather"]));
    EXPECT_GT(summary["comm_ms"], 0.0);

    const Trace trace = read_trace(path_of("run"));
    for (const int rank : {0, 1}) {
        const OverlapTable overlap = measure_overlap(trace, rank, std::nullopt);
        EXPECT_EQ(overlap.steps, (std::vector<int64_t>{2, 3, 4}));
        EXPECT_EQ(overlap.gather_steps, 2);
        EXPECT_EQ(overlap.buckets.size(), static_cast<size_t>(layout.size()) + 1);
        for (const BucketOverlap& bucket : overlap.buckets) {
            EXPECT_GE(bucket.times.reduce_ms, 0.2) << bucket.bucket;
            EXPECT_GE(bucket.times.exposed_ms(), -1e-9) << bucket.bucket;
        }
        EXPECT_LT(draw_timeline(trace, rank, 3, "a title").size(), 200000u);
    }
}

// The order of steps and gathers; neither order nor launch affects values.
TEST_F(TraceTest, StepOrderIsTheReverseOfDeclarationUnlessAskedOtherwise) {
    const Config c = two_ranks();
    const ParameterTable table = parameters_of(c.model, c.batch.sequence_length);
    const BucketLayout layout(table, bucket_rules(plan_ranks(c, 2), table, c.optimizers));
    for (const char* launch : {"ready", "after_backward"}) {
        for (const char* order : {"reverse", "forward"}) {
            if (kSanitized && std::string(launch) != "ready") continue;
            const std::string name = fmt::format("{}-{}", launch, order);
            traced(two_ranks({fmt::format("parallel.launch={}", launch),
                              fmt::format("parallel.step_order={}", order)}),
                   name);
            const Trace trace = read_trace(path_of(name));
            for (const char* phase : {"step", "gather"}) {
                std::vector<std::string> seen;
                for (const TraceSpan& span : trace.spans) {
                    if (span.rank != 1 || span.step != kFirst || span.phase != phase || span.bucket.empty())
                        continue;
                    if (seen.empty() || seen.back() != span.bucket) seen.push_back(span.bucket);
                }
                // All start in this order; Muon's, which end later, complete in the order of use by the next forward.
                const StepOrder kind =
                    std::string(order) == "forward" ? StepOrder::forward : StepOrder::reverse;
                std::vector<std::string> expected = names(layout, kind, false);
                if (std::string(phase) == "step") expected = names(layout, kind, {});
                for (const std::string& bucket : names(layout, StepOrder::forward, true))
                    expected.push_back(bucket);
                EXPECT_EQ(seen, expected) << name << " " << phase;
            }
            EXPECT_EQ(curve(name), curve("ready-reverse")) << name;
        }
    }
}

TEST_F(TraceTest, HiddenIsWhatComputeWasBusyBeside) {
    const Trace trace = read_trace(write_trace({
        span(1, "forward", 0, 0, 10), span(1, "backward", 0, 10, 20), span(1, "forward", 1, 30, 40),
        span(1, "backward", 1, 40, 50),
        span(2, "reduce", 0, 15, 25, "w"),  // 5 of 10 overlapped with backward
        span(4, "gather", 0, 26, 34, "w"),  // 4 of 8 overlapped with forward
        span(2, "reduce", 1, 44, 50, "w"),  // all 6
        span(4, "gather", 1, 50, 60, "w"),  // the trace ends here: not counted
    }));
    const OverlapTable both = measure_overlap(trace, 0, std::nullopt);
    ASSERT_EQ(both.buckets.size(), 1u);
    const CommunicationTimes& t = both.buckets[0].times;
    EXPECT_NEAR(t.reduce_ms, 8, 1e-9);
    EXPECT_NEAR(t.reduce_hidden_ms, 5.5, 1e-9);
    EXPECT_NEAR(t.gather_ms, 8, 1e-9);
    EXPECT_NEAR(t.gather_hidden_ms, 4, 1e-9);
    EXPECT_NEAR(t.exposed_ms(), 6.5, 1e-9);
    EXPECT_NEAR(both.step_ms, 30, 1e-9);
    EXPECT_NEAR(both.compute_ms, 20, 1e-9);
    EXPECT_NEAR(both.stalled_ms, (5 + 4) / 2.0, 1e-9);
    const OverlapTable second = measure_overlap(trace, 0, 1);
    EXPECT_NEAR(second.total.reduce_ms, 6, 1e-9);
    EXPECT_EQ(second.gather_steps, 0);
    EXPECT_EQ(Json::parse(to_json(both))["buckets"][0]["bucket"], "w");
    EXPECT_THAT(to_text(both, 0), HasSubstr("hidden 59%"));  // 9.5 of 16
    EXPECT_THROW(measure_overlap(trace, 3, std::nullopt), Error);
    EXPECT_THROW(measure_overlap(trace, 0, 7), Error);
}

// The picture is small: 10000 spans, each of another kind or bucket than the previous one.
TEST_F(TraceTest, PicturesOfManySpansAreSmall) {
    std::vector<std::string> lines;
    for (int i = 0; i < 10000; ++i)
        lines.push_back(
            span(i % 2 ? 1 : 2, i % 4 < 2 ? "backward" : "reduce", 0, i, i + 0.9, i % 3 ? "w" : "v"));
    const std::string svg = draw_timeline(read_trace(write_trace(lines)), 0, std::nullopt, "a < b & c");
    EXPECT_LT(svg.size(), 200000u);
    EXPECT_GT(svg.size(), 10000u);
    EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; c"));
}

TEST_F(TraceTest, FilesThatAreNoTraceAreDataErrors) {
    const auto refused = [&](const std::string& text) {
        const std::string path = (folder_ / "bad.json").string();
        std::ofstream(path) << text;
        expect_error(ExitCode::data, {"bad.json"}, [&] { read_trace(path); });
    };
    refused("no JSON");
    refused("[1, 2]");
    refused(R"({"traceEvents": 7})");
    refused(R"({"traceEvents": [{"ph": "X", "name": "x", "pid": "zero", "ts": 1, "dur": 1}]})");
    refused(R"({"traceEvents": [{"ph": "X", "name": "x", "pid": 0, "ts": 1, "dur": 1}]})");
    refused(
        R"({"traceEvents": [{"ph": "X", "name": "x", "pid": 1e300, "ts": 1, "dur": 1, "args": {"step": 1}}]})");
    EXPECT_THROW(read_trace((folder_ / "none.json").string()), Error);

    // Parts of ranks: one missing, one truncated; the other files are kept.
    const std::string whole = (folder_ / "whole").string(), cut = (folder_ / "cut").string();
    Timeline().write(whole);
    std::string text;
    std::getline(std::ifstream(whole), text, '\0');
    std::ofstream(cut) << text.substr(0, text.size() / 2);
    for (const std::string& other : {cut, (folder_ / "none").string()})
        EXPECT_THROW(merge_timelines({whole, other}, (folder_ / "merged").string()), Error);
    EXPECT_TRUE(fs::exists(whole));
    EXPECT_FALSE(fs::exists(folder_ / "merged"));
}

// Clocks with an offset of one hour: the bounds include the true offset for any waiting times.
TEST(ClockOffsetTest, BoundsHoldTheTruth) {
    constexpr int64_t kHour = int64_t{3600} * 1'000'000'000;
    run_ranks(3, [&](World& world) {
        const int64_t truth = kHour * world.rank();
        const auto now = [&] { return steady_now_ns() + truth; };
        const ClockOffset offset = align_clocks(world, now, fmt::format("kernel {}", world.rank()));
        EXPECT_LE(std::abs(offset.offset_ns - truth), offset.error_ns);
        EXPECT_LT(offset.error_ns, kHour / 100);
        EXPECT_LE(offset.origin_ns, steady_now_ns());
        const ClockOffset same = align_clocks(world, steady_now_ns, "one kernel");
        EXPECT_EQ(same.offset_ns, 0);
        EXPECT_EQ(same.error_ns, 0);
    });
}

}  // namespace speedrun::testing::trace_test
