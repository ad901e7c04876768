#include "train/runlog/op_profile.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace speedrun {

namespace {

struct Window {
    double begin_ms, end_ms;
    double length() const { return end_ms - begin_ms; }
    // Milliseconds of the call inside the window.
    double share_of(const TimedCall& call) const {
        return std::max(0.0, std::min(end_ms, call.end_ms) - std::max(begin_ms, call.begin_ms));
    }
};

// Window of each step but the first: from the end of all operations of the previous step to the end of its own.
std::vector<Window> windows_of(const std::vector<TimedCall>& calls) {
    std::vector<double> ends;
    const int64_t first = calls.empty() ? 0 : calls.front().step;
    for (const TimedCall& call : calls) {
        const auto index = static_cast<size_t>(call.step - first);
        if (index >= ends.size()) ends.resize(index + 1, call.end_ms);
        ends[index] = std::max(ends[index], call.end_ms);
    }
    std::vector<Window> windows;
    for (size_t i = 1; i < ends.size(); ++i) windows.push_back({ends[i - 1], ends[i]});
    return windows;
}

// Rows by name, and totals, over the added periods.
struct Sums {
    std::map<std::string, OperationStats> rows;
    std::map<std::string, double> compute_ms;  // compute-bound part of a row's bound
    double busy_ms = 0;

    void add(const std::vector<TimedCall>& calls, const Window& window, int64_t first_step, int64_t period,
             const Peaks& peaks);
};

void Sums::add(const std::vector<TimedCall>& calls, const Window& window, int64_t first_step, int64_t period,
               const Peaks& peaks) {
    std::vector<Window> busy;
    for (const TimedCall& call : calls) {
        // The next step's first operations may overlap this step's last.
        if (call.step < first_step || call.step > first_step + period) continue;
        OperationStats& row = rows[call.cost.name()];
        const double ms = window.share_of(call);
        row.ms += ms;
        if (ms > 0)
            busy.push_back({std::max(window.begin_ms, call.begin_ms), std::min(window.end_ms, call.end_ms)});
        if (call.step == first_step + period) continue;
        const RooflineBound floor =
            roofline_bound(static_cast<double>(call.cost.flops), static_cast<double>(call.cost.bytes), peaks);
        row.calls += 1;
        row.flops += static_cast<double>(call.cost.flops);
        row.bytes += static_cast<double>(call.cost.bytes);
        row.bound_ms += floor.ms;
        if (floor.compute_bound) compute_ms[call.cost.name()] += floor.ms;
    }
    std::sort(busy.begin(), busy.end(),
              [](const Window& a, const Window& b) { return a.begin_ms < b.begin_ms; });
    double until = window.begin_ms;
    for (const Window& one : busy) {
        busy_ms += std::max(0.0, one.end_ms - std::max(until, one.begin_ms));
        until = std::max(until, one.end_ms);
    }
}

}  // namespace

std::vector<size_t> middle_half(const std::vector<double>& values) {
    std::vector<size_t> order(values.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
    const auto dropped = static_cast<std::ptrdiff_t>(values.size() / 4);
    return {order.begin() + dropped, order.end() - dropped};
}

double mean_of_middle_half(const std::vector<double>& values) {
    if (values.empty()) throw_internal("no values to take the mean of");
    const std::vector<size_t> middle = middle_half(values);
    double sum = 0;
    for (const size_t i : middle) sum += values[i];
    return sum / static_cast<double>(middle.size());
}

StepProfile profile_steps(const std::vector<TimedCall>& calls, int64_t period, const Peaks& peaks) {
    const std::vector<Window> steps = windows_of(calls);
    std::vector<Window> periods;
    for (size_t i = 0; i + period <= steps.size(); i += period)
        periods.push_back({steps[i].begin_ms, steps[i + period - 1].end_ms});
    if (periods.empty()) throw_internal("{} steps are less than a period of {}", steps.size(), period);
    std::vector<double> lengths;
    for (const Window& one : periods) lengths.push_back(one.length());

    StepProfile profile;
    Sums sums;
    for (const size_t i : middle_half(lengths)) {
        const int64_t first = calls.front().step + 1 + static_cast<int64_t>(i) * period;
        sums.add(calls, periods[i], first, period, peaks);
        profile.step_ms += lengths[i];
        profile.steps += period;
    }
    const double per_step = 1.0 / static_cast<double>(profile.steps);
    for (auto& [name, row] : sums.rows) {
        row.name = name;
        row.compute_bound = sums.compute_ms[name] > row.bound_ms / 2;
        for (double* value : {&row.calls, &row.ms, &row.flops, &row.bytes, &row.bound_ms}) *value *= per_step;
        profile.operations_ms += row.ms;
        profile.flops += row.flops;
        profile.bytes += row.bytes;
        profile.bound_ms += row.bound_ms;
        profile.operations.push_back(row);
    }
    profile.step_ms *= per_step;
    profile.gaps_ms = profile.step_ms - sums.busy_ms * per_step;
    profile.overlapped_ms = profile.operations_ms - sums.busy_ms * per_step;
    std::stable_sort(profile.operations.begin(), profile.operations.end(),
                     [](const OperationStats& a, const OperationStats& b) { return a.ms > b.ms; });
    return profile;
}

}  // namespace speedrun
