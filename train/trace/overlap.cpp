#include "train/trace/overlap.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/device/error.h"
#include "train/trace/intervals.h"

namespace speedrun {

namespace {

template <class Values>
std::string list(const Values& values) {
    constexpr size_t kMax = 100;
    std::string text;
    size_t count = 0;
    for (const auto& value : values) {
        if (++count > kMax) return text + fmt::format(", ... ({} in all)", values.size());
        text += fmt::format("{}{}", text.empty() ? "" : ", ", value);
    }
    return text;
}

std::vector<int64_t> chosen_steps(const Trace& trace, int rank, std::optional<int64_t> step) {
    if (!trace.ranks.count(rank)) {
        std::vector<int> ranks;
        for (const auto& [known, name] : trace.ranks) ranks.push_back(known);
        throw_usage("--rank {}: the trace has ranks {}", rank, list(ranks));
    }
    std::vector<int64_t> steps = trace.steps(rank);
    if (steps.empty()) throw_usage("--rank {}: none of its spans says which step it belongs to", rank);
    if (!step) return steps;
    if (std::find(steps.begin(), steps.end(), *step) == steps.end())
        throw_usage("--step {}: the trace has steps {}", *step, list(steps));
    return {*step};
}

// Rows by bucket name, in order of insertion.
class Rows {
  public:
    explicit Rows(std::vector<BucketOverlap>& rows) : rows_(rows) {}
    BucketOverlap& of(const std::string& bucket) {
        const auto [at, is_new] = index_.try_emplace(bucket, rows_.size());
        if (is_new) rows_.push_back({.bucket = bucket, .bytes = 0, .times = {}});
        return rows_[at->second];
    }

  private:
    std::vector<BucketOverlap>& rows_;
    std::map<std::string, size_t> index_;
};

void operator+=(CommunicationTimes& sum, const CommunicationTimes& t) {
    sum.reduce_ms += t.reduce_ms;
    sum.reduce_hidden_ms += t.reduce_hidden_ms;
    sum.gather_ms += t.gather_ms;
    sum.gather_hidden_ms += t.gather_hidden_ms;
}

// A shorter gap between two compute operations is launch latency, not a wait.
constexpr double kLaunchMs = 0.01;

struct RankSpans {
    Intervals compute;
    StreamTimes times;
    std::map<int64_t, double> begins, ends;  // ms; key: step
};

// A step ends with the copy of its statistics to the host. Predicted traces have no such span: a step then ends with its last
// span other than a gather.
RankSpans spans_of(const Trace& trace, int rank) {
    RankSpans all;
    std::map<int64_t, double> last;
    for (const TraceSpan& span : trace.spans) {
        if (span.rank != rank) continue;
        const Interval time{span.begin_ms, span.end_ms};
        const bool by_optimizer = span.stream == "optimizer";
        if (span.communicates) all.times.collectives.push_back(time);
        if (span.communicates && by_optimizer) all.times.exchanges.push_back(time);
        if (by_optimizer) all.times.optimizer.push_back(time);
        if (span.stream == "compute") all.compute.push_back(time);
        if (span.step < 0) continue;
        if (span.stream == "compute") all.begins.try_emplace(span.step, span.begin_ms);
        if (by_optimizer && !span.communicates && span.phase == "statistics")
            all.ends.try_emplace(span.step, span.end_ms);
        double& end = last.try_emplace(span.step, span.end_ms).first->second;
        if (span.phase != "gather") end = std::max(end, span.end_ms);
    }
    all.ends.merge(last);
    for (Interval& i : all.compute) i.end += kLaunchMs;
    all.compute = merged_intervals(std::move(all.compute));
    for (Interval& i : all.compute) i.end -= kLaunchMs;
    constexpr double kAlways = std::numeric_limits<double>::infinity();
    all.times.idle = without({{-kAlways, kAlways}}, all.compute);
    return all;
}

// Returns the step's window as in metrics.jsonl: from the end of the previous step to the end of this one. The first traced
// step starts with the first compute work.
Interval window_of(const RankSpans& all, int64_t step) {
    const auto before = all.ends.find(step - 1);
    const double end = all.ends.at(step), first = all.compute.empty() ? end : all.compute.front().begin;
    return {before != all.ends.end() ? before->second : first, end};
}

}  // namespace

OverlapTable measure_overlap(const Trace& trace, int rank, std::optional<int64_t> step) {
    OverlapTable table;
    table.rank = rank;
    table.steps = chosen_steps(trace, rank, step);
    const int64_t last_traced = trace.steps(rank).back();
    const auto chosen = [&](int64_t s) {
        return std::binary_search(table.steps.begin(), table.steps.end(), s);
    };
    table.gather_steps = static_cast<int64_t>(table.steps.size()) - (chosen(last_traced) ? 1 : 0);

    const RankSpans all = spans_of(trace, rank);
    for (const TraceSpan& span : trace.spans)
        if (span.rank == rank && span.stream == "compute" && chosen(span.step))
            table.compute_ms += span.end_ms - span.begin_ms;
    std::vector<Interval> computing = all.compute;
    for (const Interval& i :
         without(merged_intervals(all.times.optimizer), merged_intervals(all.times.exchanges)))
        computing.push_back(i);
    const Intervals work = merged_intervals(std::move(computing));

    constexpr const char *kStatistics = "loss, stop, norms", *kValues = "values";
    const auto num_steps = static_cast<double>(table.steps.size());
    const auto num_gathers = static_cast<double>(std::max<int64_t>(1, table.gather_steps));
    BucketOverlap statistics{.bucket = kStatistics, .bytes = 0, .times = {}};
    Rows rows(table.buckets);
    std::vector<const TraceSpan*> spans;
    for (const TraceSpan& span : trace.spans)
        if (span.rank == rank && span.communicates && chosen(span.step)) spans.push_back(&span);
    std::stable_sort(spans.begin(), spans.end(),
                     [](const auto* a, const auto* b) { return a->begin_ms < b->begin_ms; });
    for (const TraceSpan* span : spans) {
        const bool of_values = span->stream == "exchange";
        BucketOverlap& row = of_values              ? rows.of(kValues)
                             : span->bucket.empty() ? statistics
                                                    : rows.of(span->bucket);
        const bool gather = span->phase == "gather";
        row.bytes += span->bytes;
        if (gather && span->step == last_traced) continue;
        const double ms = span->end_ms - span->begin_ms,
                     hidden = length(common({{span->begin_ms, span->end_ms}}, work));
        (gather ? row.times.gather_ms : row.times.reduce_ms) += ms / (gather ? num_gathers : num_steps);
        (gather ? row.times.gather_hidden_ms : row.times.reduce_hidden_ms) +=
            hidden / (gather ? num_gathers : num_steps);
    }
    if (statistics.times.total_ms() > 0) table.buckets.push_back(statistics);
    for (BucketOverlap& row : table.buckets) {
        row.bytes /= static_cast<int64_t>(table.steps.size());
        table.total += row.times;
    }
    const Intervals stalls = exposed(all.times);
    for (const int64_t s : table.steps)
        table.stalled_ms += length(common(stalls, {window_of(all, s)})) / num_steps;
    table.compute_ms /= num_steps;
    int64_t whole = 0;
    for (const int64_t s : table.steps) {
        const auto here = all.begins.find(s), next = all.begins.upper_bound(s);
        if (here == all.begins.end() || next == all.begins.end()) continue;
        table.step_ms += next->second - here->second;
        ++whole;
    }
    if (whole > 0) table.step_ms /= static_cast<double>(whole);
    return table;
}

std::string to_text(const OverlapTable& table, int top) {
    std::vector<BucketOverlap> rows = table.buckets;
    if (top > 0) {
        std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
            return a.times.exposed_ms() > b.times.exposed_ms();
        });
        rows.resize(std::min(rows.size(), static_cast<size_t>(top)));
    }
    size_t width = 6;
    for (const BucketOverlap& row : rows) width = std::max(width, row.bucket.size());
    const auto share = [](double hidden, double ms) {
        return ms > 0 ? fmt::format("{:>6.0f}%", 100 * hidden / ms) : fmt::format("{:>7}", "-");
    };
    const auto line = [&](const std::string& name, int64_t bytes, const CommunicationTimes& t) {
        const std::string sent =
            bytes > 0 ? fmt::format("{:.1f}", static_cast<double>(bytes) / 1024) : std::string("-");
        return fmt::format("{:<{}} {:>9} {:>10.3f} {} {:>10.3f} {} {:>10.3f}\n", name, width, sent,
                           t.reduce_ms, share(t.reduce_hidden_ms, t.reduce_ms), t.gather_ms,
                           share(t.gather_hidden_ms, t.gather_ms), t.exposed_ms());
    };
    std::string text = fmt::format(
        "rank {}, mean of steps {}: compute busy {:.3f} ms{}\n{:<{}} {:>9} {:>10} {:>7} {:>10} {:>7} "
        "{:>10}\n",
        table.rank, list(table.steps), table.compute_ms,
        table.step_ms > 0 ? fmt::format(" of {:.3f} ms", table.step_ms) : "", "bucket", width, "sent KiB",
        "reduce ms", "hidden", "gather ms", "hidden", "exposed ms");
    int64_t bytes = 0;
    for (const BucketOverlap& row : table.buckets) bytes += row.bytes;
    for (const BucketOverlap& row : rows) text += line(row.bucket, row.bytes, row.times);
    if (rows.size() < table.buckets.size())
        text += fmt::format("... and {} buckets more\n", table.buckets.size() - rows.size());
    text += line("total", bytes, table.total);
    const double total = table.total.total_ms();
    return text +
           fmt::format(
               "communication {:.3f} ms, hidden {:.0f}%; compute was idle beside it for {:.3f} ms a step\n",
               total, total > 0 ? 100 * (1 - table.total.exposed_ms() / total) : 0, table.stalled_ms);
}

std::string to_json(const OverlapTable& table) {
    using Json = nlohmann::ordered_json;
    const auto times = [](const CommunicationTimes& t) {
        return Json{{"reduce_ms", t.reduce_ms},
                    {"reduce_hidden_ms", t.reduce_hidden_ms},
                    {"gather_ms", t.gather_ms},
                    {"gather_hidden_ms", t.gather_hidden_ms},
                    {"exposed_ms", t.exposed_ms()}};
    };
    Json buckets = Json::array();
    for (const BucketOverlap& row : table.buckets) {
        Json entry = times(row.times);
        entry["bucket"] = row.bucket;
        entry["bytes"] = row.bytes > 0 ? Json(row.bytes) : Json(nullptr);
        buckets.push_back(std::move(entry));
    }
    const Json json = {{"rank", table.rank},
                       {"steps", table.steps},
                       {"step_ms", table.step_ms},
                       {"compute_ms", table.compute_ms},
                       {"stalled_ms", table.stalled_ms},
                       {"total", times(table.total)},
                       {"buckets", buckets}};
    return json.dump(2) + "\n";
}

}  // namespace speedrun
