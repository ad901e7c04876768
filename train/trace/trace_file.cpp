#include "train/trace/trace_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "data/json_text.h"
#include "data/text_file.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

using SortedJson = nlohmann::json;

constexpr size_t kMaxTraceBytes = size_t{512} << 20;
constexpr int64_t kMaxBytesSent = 1'000'000'000'000;  // per span; the sum over a file stays below 2^63
constexpr double kMaxMicroseconds = 1e15;             // 30 years

int64_t count_of(const SortedJson& object, const char* key, int64_t low, int64_t high) {
    const int64_t value = whole_number(object.at(key));
    if (value < low || value > high)
        throw JsonError(fmt::format("{}: expected {} to {}, got {}", key, low, high, value));
    return value;
}

double number_of(const SortedJson& object, const char* key, double low) {
    const double value = object.at(key).get<double>();
    if (!(value >= low && value <= kMaxMicroseconds))
        throw JsonError(
            fmt::format("{}: expected {:g} to {:g}, got {:g}", key, low, kMaxMicroseconds, value));
    return value;
}

std::string string_of(const SortedJson& object, const char* key) {
    constexpr size_t kLongest = 1000;
    const auto& text = object.at(key).get_ref<const std::string&>();
    if (text.size() > kLongest)
        throw JsonError(fmt::format("{}: a text of {} bytes, at most {}", key, text.size(), kLongest));
    return text;
}

int process_of(const SortedJson& event) {
    return static_cast<int>(count_of(event, "pid", 0, INT32_MAX));
}

int thread_of(const SortedJson& event) {
    return event.contains("tid") ? static_cast<int>(count_of(event, "tid", INT32_MIN, INT32_MAX)) : 0;
}

void add_metadata(const SortedJson& event, Trace& trace,
                  std::map<std::pair<int, int>, std::string>& streams) {
    const int rank = process_of(event), thread = thread_of(event);
    const std::string name = string_of(event, "name");
    if (name == "process_name") trace.ranks[rank] = string_of(event.at("args"), "name");
    if (name == "thread_name") streams[{rank, thread}] = string_of(event.at("args"), "name");
    if (name == "clock") trace.clock_error_us[rank] = number_of(event.at("args"), "error_us", 0);
}

TraceSpan span_of(const SortedJson& event, const std::map<std::pair<int, int>, std::string>& streams) {
    TraceSpan span;
    span.rank = process_of(event);
    const auto stream = streams.find({span.rank, thread_of(event)});
    if (stream != streams.end()) span.stream = stream->second;
    span.label = string_of(event, "name");
    span.communicates = event.value("cat", "") == "communication";
    span.begin_ms = number_of(event, "ts", -kMaxMicroseconds) * 1e-3;
    span.end_ms = span.begin_ms + number_of(event, "dur", 0) * 1e-3;
    if (!event.contains("args")) return span;
    const SortedJson& args = event.at("args");
    if (args.contains("step")) span.step = count_of(args, "step", -1, INT64_MAX - 1);
    if (args.contains("phase")) span.phase = string_of(args, "phase");
    if (args.contains("bucket")) span.bucket = string_of(args, "bucket");
    if (args.contains("bytes")) span.bytes = count_of(args, "bytes", 0, kMaxBytesSent);
    return span;
}

}  // namespace

std::vector<int64_t> Trace::steps(int rank) const {
    std::set<int64_t> found;
    for (const TraceSpan& span : spans)
        if (span.rank == rank && span.step >= 0) found.insert(span.step);
    return {found.begin(), found.end()};
}

Trace read_trace(const std::string& path) {
    Trace trace;
    const std::string text = read_text_file(path, kMaxTraceBytes);
    try {
        const auto json = parse_json<SortedJson>(text, {.bytes = kMaxTraceBytes});
        const auto& events = json.at("traceEvents").get_ref<const SortedJson::array_t&>();
        std::map<std::pair<int, int>, std::string> streams;
        for (const SortedJson& event : events)
            if (event.at("ph") == "M") add_metadata(event, trace, streams);
        for (const SortedJson& event : events)
            if (event.at("ph") == "X") trace.spans.push_back(span_of(event, streams));
    } catch (const SortedJson::exception& error) {
        throw_data("{}: not a trace of 'speedrun train --trace': {}", path, error.what());
    } catch (const JsonError& error) {
        throw_data("{}: not a trace of 'speedrun train --trace': {}", path, error.what());
    }
    if (std::none_of(trace.spans.begin(), trace.spans.end(), [](const auto& s) { return s.step >= 0; }))
        throw_data("{}: no span says which step it belongs to: not a trace of 'speedrun train --trace'",
                   path);
    std::stable_sort(trace.spans.begin(), trace.spans.end(), [](const TraceSpan& a, const TraceSpan& b) {
        return std::tie(a.rank, a.stream, a.begin_ms) < std::tie(b.rank, b.stream, b.begin_ms);
    });
    return trace;
}

}  // namespace speedrun
