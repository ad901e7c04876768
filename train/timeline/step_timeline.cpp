#include "train/timeline/step_timeline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

namespace speedrun {

namespace {

using ItemKind = RecordedItem::Kind;

constexpr std::array<const char*, kNumPhases> kRegions{
    "validation",        "values in forward",     "values in backward", "reductions of gradients",
    "matrices in steps", "gathers of parameters", "loss, stop, norms"};

Phase phase_of(const RecordedSteps& steps, const RecordedItem& item) {
    const auto purpose = steps.timeline->purpose(item.tag);
    return purpose ? purpose->phase : Phase::forward;
}

const RecordedCollective& collective_of(const RecordedSteps& steps, const RecordedItem& item) {
    return steps.collectives[static_cast<size_t>(item.index)];
}

const Group& group_of(const RecordedSteps& steps, const RecordedItem& item) {
    return steps.groups[static_cast<size_t>(collective_of(steps, item).group)];
}

ReplayItem replayed(const RecordedSteps& steps, const RecordedItem& item, const TimeItem& time,
                    const Network& network, double straggling) {
    ReplayItem result{.stream = item.stream};
    if (item.kind == ItemKind::wait) {
        result.waits_for = item.index;
    } else if (item.kind == ItemKind::collective) {
        const CollectiveTime taken =
            collective_time(network, collective_of(steps, item), group_of(steps, item));
        result.delay_s = taken.latency_s;
        result.busy_s = {network.device_share * std::max(taken.inside_s, taken.between_s), taken.inside_s,
                         taken.between_s};
    } else if (item.kind != ItemKind::record) {
        const ItemTime taken = time(steps, item);
        result.delay_s = taken.gap_s * straggling;
        result.busy_s = {taken.busy_s * straggling, 0, 0};
    }
    return result;
}

// Returns the first item of a stream from index `from` on.
size_t first_on(const RecordedSteps& steps, int stream, size_t from) {
    while (from < steps.items.size() && steps.items[from].stream != stream) ++from;
    if (from == steps.items.size()) throw_internal("a recorded step has nothing on its compute stream");
    return from;
}

int compute_stream(const RecordedSteps& steps) {
    const auto found = std::find(steps.streams.begin(), steps.streams.end(), "compute");
    if (found == steps.streams.end()) throw_internal("recorded steps have no compute stream");
    return static_cast<int>(found - steps.streams.begin());
}

struct Window {
    double begin, end;
    double clipped(const ReplaySpan& span) const {
        return std::max(0.0, std::min(end, span.end_s) - std::max(begin, span.begin_s));
    }
};

// While ranks communicate and no compute runs, the time is exposed and attributed to the collective that started first.
void measure_exposure(const RecordedSteps& steps, const Window& window, double per_step,
                      StepTimeline& result) {
    struct Edge {
        double at;
        bool begins;
        size_t item;
    };
    std::vector<Edge> edges;
    for (size_t i = 0; i < steps.items.size(); ++i) {
        const ItemKind kind = steps.items[i].kind;
        if (kind == ItemKind::record || kind == ItemKind::wait || window.clipped(result.spans[i]) == 0)
            continue;
        edges.push_back({std::max(window.begin, result.spans[i].begin_s), true, i});
        edges.push_back({std::min(window.end, result.spans[i].end_s), false, i});
    }
    std::stable_sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.at < b.at; });
    int computing = 0;
    std::set<std::pair<double, size_t>> active_collectives;  // sorted by start
    double last = window.begin;
    for (const Edge& edge : edges) {
        const double ms = (edge.at - last) * 1e3 * per_step;
        last = edge.at;
        if (computing > 0) {
            result.compute_ms += ms;
        } else if (!active_collectives.empty()) {
            result.exposed_ms += ms;
            const RecordedItem& first = steps.items[active_collectives.begin()->second];
            result.regions[static_cast<size_t>(phase_of(steps, first))].exposed_ms += ms;
        }
        const std::pair key{result.spans[edge.item].begin_s, edge.item};
        if (steps.items[edge.item].kind != ItemKind::collective) {
            computing += edge.begins ? 1 : -1;
        } else if (edge.begins) {
            active_collectives.insert(key);
        } else {
            active_collectives.erase(key);
        }
    }
}

// Returns the end of backward of each step.
std::map<int64_t, double> ends_of_backward(const RecordedSteps& steps, const std::vector<ReplaySpan>& spans) {
    std::map<int64_t, double> ends;
    const int compute = compute_stream(steps);
    for (size_t i = 0; i < steps.items.size(); ++i) {
        const RecordedItem& item = steps.items[i];
        if (item.stream != compute || (item.kind != ItemKind::operation && item.kind != ItemKind::work))
            continue;
        const auto purpose = steps.timeline->purpose(item.tag);
        if (purpose && purpose->phase == Phase::backward)
            ends[purpose->step] = std::max(ends[purpose->step], spans[i].end_s);
    }
    return ends;
}

void add_collectives(const RecordedSteps& steps, const Network& network, double per_step,
                     StepTimeline& result) {
    const auto backward = ends_of_backward(steps, result.spans);
    for (size_t i = steps.step_begins[steps.first_measured()]; i < steps.step_begins[steps.end_measured()];
         ++i) {
        const RecordedItem& item = steps.items[i];
        if (item.kind != ItemKind::collective || group_of(steps, item).size() == 1) continue;
        const Phase phase = phase_of(steps, item);
        CommunicationRegion& region = result.regions[static_cast<size_t>(phase)];
        const double ms = (result.spans[i].end_s - result.spans[i].begin_s) * 1e3 * per_step;
        const double bytes = collective_of(steps, item).sent_bytes(group_of(steps, item).size()) * per_step;
        region.calls += per_step;
        region.bytes += bytes;
        region.ms += ms;
        result.communication_ms += ms;
        result.latency_ms +=
            collective_time(network, collective_of(steps, item), group_of(steps, item)).latency_s * 1e3 *
            per_step;
        if (phase != Phase::reduce) continue;
        result.reduced_bytes += bytes;
        const auto purpose = steps.timeline->purpose(item.tag);
        const auto end = backward.find(purpose ? purpose->step : -1);
        if (end != backward.end() && result.spans[i].begin_s >= end->second) result.late_bytes += bytes;
    }
}

// Follows the causes from the last item back to the window's start.
void follow_causes(const RecordedSteps& steps, const Window& window, size_t last, double per_step,
                   StepTimeline& result) {
    std::map<std::string, CriticalSegment> parts;
    for (int i = result.spans[last].cause; i >= 0; i = result.spans[static_cast<size_t>(i)].cause) {
        const ReplaySpan& span = result.spans[static_cast<size_t>(i)];
        if (span.end_s <= window.begin) break;
        const double ms = window.clipped(span) * 1e3 * per_step;
        if (ms == 0) continue;
        const RecordedItem& item = steps.items[static_cast<size_t>(i)];
        const Phase phase = phase_of(steps, item);
        const std::string name =
            item.kind == ItemKind::collective
                ? fmt::format("{} ({})", item.label, kRegions[static_cast<size_t>(phase)])
                : fmt::format("{} on stream {}", name_of(phase),
                              steps.streams[static_cast<size_t>(item.stream)]);
        CriticalSegment& part = parts[name];
        part.name = name;
        part.ms += ms;
        part.pieces += per_step;
    }
    for (auto& [name, part] : parts) result.critical_path.push_back(std::move(part));
    std::stable_sort(result.critical_path.begin(), result.critical_path.end(),
                     [](const CriticalSegment& a, const CriticalSegment& b) { return a.ms > b.ms; });
}

}  // namespace

TimeItem gpu_times(const OperationTimes& times) {
    return [times](const RecordedSteps& steps, const RecordedItem& item) {
        if (item.kind != ItemKind::operation) return ItemTime{};
        const ModelledCall call = times.of(steps.operations[static_cast<size_t>(item.index)]);
        return ItemTime{call.gap_ms * 1e-3, (call.ms - call.gap_ms) * 1e-3};
    };
}

StepTimeline predict_steps(const RecordedSteps& steps, const TimeItem& time, const Network& network,
                           bool device_shared) {
    const double straggling = straggler_factor(network.spread, steps.ranks);
    std::vector<ReplayItem> items;
    items.reserve(steps.items.size());
    for (const RecordedItem& item : steps.items)
        items.push_back(replayed(steps, item, time, network, straggling));
    const double links = network.shared ? 1 : 0;
    StepTimeline result;
    result.spans =
        replay(items, static_cast<int>(steps.streams.size()), {device_shared ? 1.0 : 0.0, links, links});
    const int compute = compute_stream(steps);
    const size_t first = first_on(steps, compute, steps.step_begins[steps.first_measured()]),
                 last = first_on(steps, compute, steps.step_begins[steps.end_measured()]);
    const Window window{result.spans[first].begin_s, result.spans[last].begin_s};
    const double per_step = 1.0 / static_cast<double>(steps.period);
    result.step_ms = (window.end - window.begin) * 1e3 * per_step;
    for (const char* name : kRegions) result.regions.push_back({.name = name});
    measure_exposure(steps, window, per_step, result);
    add_collectives(steps, network, per_step, result);
    follow_causes(steps, window, last, per_step, result);
    std::erase_if(result.regions, [](const CommunicationRegion& r) { return r.calls == 0; });
    return result;
}

PredictedStep predict_gpu_step(const Config& stage, const Ranks& ranks, const GpuModel& gpu,
                               const MeasuredKernels* measured, const Network& network) {
    const DryStep dry = dry_gpu_step(stage, gpu_compute_type(stage), kernel_choice(stage, gpu));
    PredictedStep step;
    step.steps = record_steps(dry.config, dry.runtime, ranks);
    step.timeline = predict_steps(step.steps, gpu_times(OperationTimes(stage, gpu, measured)), network);
    return step;
}

void write_predicted_trace(const RecordedSteps& steps, const StepTimeline& timeline,
                           const std::string& path) {
    constexpr double kNanoseconds = 1e9;
    steps.timeline->describe(TracedRank{.rank = 0, .host = "modelled"});
    for (size_t i = steps.step_begins[steps.first_measured()]; i < steps.step_begins[steps.end_measured()];
         ++i) {
        const RecordedItem& item = steps.items[i];
        const ReplaySpan& span = timeline.spans[i];
        if (item.kind == ItemKind::record || item.kind == ItemKind::wait || span.end_s == span.begin_s)
            continue;
        steps.timeline->span(steps.streams[static_cast<size_t>(item.stream)], item.label,
                             std::llround(span.begin_s * kNanoseconds),
                             std::llround(span.end_s * kNanoseconds), item.tag);
    }
    steps.timeline->write(path);
}

}  // namespace speedrun
