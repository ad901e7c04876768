#include "train/trace/trace_file.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "data/json_text.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

using SortedJson = nlohmann::json;

int process_of(const SortedJson& event) {
    return static_cast<int>(whole_number(event.at("pid")));
}

int thread_of(const SortedJson& event) {
    return static_cast<int>(whole_number(event.value("tid", SortedJson(0))));
}

void add_metadata(const SortedJson& event, Trace& trace,
                  std::map<std::pair<int, int>, std::string>& streams) {
    const int rank = process_of(event), thread = thread_of(event);
    const std::string name = event.at("name");
    if (name == "process_name") trace.ranks[rank] = event.at("args").at("name");
    if (name == "thread_name") streams[{rank, thread}] = event.at("args").at("name");
    if (name == "clock") trace.clock_error_us[rank] = event.at("args").at("error_us");
}

TraceSpan span_of(const SortedJson& event, const std::map<std::pair<int, int>, std::string>& streams) {
    TraceSpan span;
    span.rank = process_of(event);
    const auto stream = streams.find({span.rank, thread_of(event)});
    if (stream != streams.end()) span.stream = stream->second;
    span.label = event.at("name");
    span.communicates = event.value("cat", "") == "communication";
    span.begin_ms = event.at("ts").get<double>() * 1e-3;
    span.end_ms = span.begin_ms + event.at("dur").get<double>() * 1e-3;
    if (!event.contains("args")) return span;
    const SortedJson& args = event.at("args");
    span.step = whole_number(args.value("step", SortedJson(-1)));
    span.phase = args.value("phase", "");
    span.bucket = args.value("bucket", "");
    span.bytes = whole_number(args.value("bytes", SortedJson(0)));
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
    std::ifstream file(path);
    if (!file) throw_data("{}: the trace cannot be read", path);
    Trace trace;
    try {
        const SortedJson events = SortedJson::parse(file).at("traceEvents");
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
