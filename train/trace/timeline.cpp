#include "train/trace/timeline.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "data/durable_file.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

constexpr const char* kHead = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
constexpr const char* kTail = "]}";

std::string quoted(const std::string& text) {
    return nlohmann::json(text).dump();
}

// Streams in the order in which data flows through them, then others by name.
int row_of_stream(const std::string& stream) {
    constexpr std::array<const char*, 5> kOrder{"compute", "exchange", "reduce", "optimizer", "gather"};
    const auto* const found = std::find(kOrder.begin(), kOrder.end(), stream);
    return static_cast<int>(found - kOrder.begin());
}

std::string metadata(int rank, int thread, const char* name, const std::string& args) {
    return fmt::format(R"({{"name":"{}","ph":"M","pid":{},"tid":{},"args":{{{}}}}})", name, rank, thread,
                       args);
}

}  // namespace

const char* name_of(Phase phase) {
    constexpr std::array<const char*, kNumPhases> kNames{"validation", "forward", "backward",  "reduce",
                                                         "step",       "gather",  "statistics"};
    return kNames[static_cast<size_t>(phase)];
}

bool is_communication(const std::string& label) {
    constexpr std::array<const char*, 7> kLabels{"all_reduce", "reduce_scatter", "all_gather", "all_to_all",
                                                 "broadcast",  "barrier",        "network"};
    return std::find(kLabels.begin(), kLabels.end(), label) != kLabels.end() || label.starts_with("nccl");
}

void Timeline::add(Stream& stream, Point point, Phase phase, int bucket) {
    std::lock_guard lock(mutex_);
    marks_.push_back({point, phase, bucket, step_, stream.name()});
    stream.set_trace_tag(static_cast<int>(marks_.size()));
}

void Timeline::mark(Stream& stream, Phase phase, int bucket) {
    add(stream, Point::work, phase, bucket);
}

void Timeline::ready(Stream& compute, int bucket) {
    add(compute, Point::ready, Phase::backward, bucket);
}

void Timeline::use(Stream& compute, Phase phase, int bucket) {
    add(compute, Point::use, phase, bucket);
}

void Timeline::span(const std::string& stream, const char* label, int64_t begin_ns, int64_t end_ns, int tag) {
    std::lock_guard lock(mutex_);
    spans_.push_back({stream, label, begin_ns, end_ns, tag});
}

size_t Timeline::size() const {
    std::lock_guard lock(mutex_);
    return spans_.size();
}

std::optional<Timeline::Purpose> Timeline::purpose(int tag) const {
    std::lock_guard lock(mutex_);
    if (tag < 1 || tag > static_cast<int>(marks_.size())) return std::nullopt;
    const Mark& mark = marks_[static_cast<size_t>(tag - 1)];
    return Purpose{mark.phase, mark.point == Point::work ? mark.bucket : -1, mark.step};
}

std::string Timeline::event_of(const Span& span, int thread) const {
    const bool communicates = is_communication(span.label);
    std::string args;
    if (span.tag > 0) {
        const Mark& mark = marks_[static_cast<size_t>(span.tag - 1)];
        args = fmt::format(R"("step":{},"phase":"{}")", mark.step, name_of(mark.phase));
        if (mark.point == Point::work && mark.bucket >= 0) {
            const TracedBucket& bucket = buckets_.at(static_cast<size_t>(mark.bucket));
            args += fmt::format(R"(,"bucket":{})", quoted(bucket.name));
            const auto sent = std::find_if(bucket.sent.begin(), bucket.sent.end(),
                                           [&](const auto& one) { return one.first == span.label; });
            if (sent != bucket.sent.end()) args += fmt::format(R"(,"bytes":{})", sent->second);
        }
    }
    return fmt::format(
        R"({{"name":{},"cat":"{}","ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"args":{{{}}}}})",
        quoted(span.label), communicates ? "communication" : "work", rank_.rank, thread,
        microseconds(span.begin_ns), static_cast<double>(span.end_ns - span.begin_ns) * 1e-3, args);
}

// `sorted`: the spans that have a tag, by stream and then in enqueue order.
std::vector<std::string> Timeline::flows(const std::vector<const Span*>& sorted) const {
    std::map<std::string, std::pair<size_t, size_t>> of_stream;  // half-open range
    for (size_t i = 0; i < sorted.size(); ++i) {
        const auto [at, added] = of_stream.try_emplace(sorted[i]->stream, i, i);
        at->second.second = i + 1;
    }
    // Returns {last span with a smaller tag, first span with this or a larger tag}.
    const auto boundary = [&](const std::string& stream, int tag) {
        const auto found = of_stream.find(stream);
        const auto [first, last] = found == of_stream.end() ? std::pair<size_t, size_t>{} : found->second;
        const auto begin = sorted.begin() + static_cast<std::ptrdiff_t>(first),
                   end = sorted.begin() + static_cast<std::ptrdiff_t>(last);
        const auto at = std::partition_point(begin, end, [&](const Span* s) { return s->tag < tag; });
        return std::pair{at == begin ? nullptr : *(at - 1), at == end ? nullptr : *at};
    };
    struct Stop {
        const Span* span;
        int64_t time_ns;
        Phase phase;
    };
    std::vector<std::string> events;
    std::map<int, std::vector<Stop>> open;  // key: bucket
    int64_t next_id = 0;
    const auto close = [&](int bucket) {
        std::vector<Stop>& stops = open[bucket];
        for (size_t i = 0; stops.size() > 1 && i < stops.size(); ++i) {
            const char* const phase = i == 0 ? "s" : i + 1 < stops.size() ? "t" : "f";
            // Viewers require numeric ids; these are unique across ranks.
            events.push_back(
                fmt::format(R"({{"name":{},"cat":"flow","ph":"{}","id":{},"pid":{},"tid":{},"ts":{:.3f}{}}})",
                            quoted(buckets_.at(static_cast<size_t>(bucket)).name), phase,
                            (int64_t{rank_.rank} << 32) + next_id, rank_.rank,
                            first_thread() + row_of_stream(stops[i].span->stream),
                            microseconds(stops[i].time_ns), i + 1 == stops.size() ? R"(,"bp":"e")" : ""));
        }
        ++next_id;
        stops.clear();
    };
    for (size_t i = 0; i < marks_.size(); ++i) {
        const Mark& mark = marks_[i];
        if (mark.bucket < 0) continue;
        std::vector<Stop>& stops = open[mark.bucket];
        const int tag = static_cast<int>(i) + 1;
        const auto [before, behind] = boundary(mark.stream, tag);
        if (mark.point == Point::ready) {
            close(mark.bucket);
            // 1 ns before the end, which already belongs to the next span.
            if (before) stops.push_back({before, std::max(before->begin_ns, before->end_ns - 1), mark.phase});
        } else if (mark.point == Point::use) {
            // No work waits for a bucket that has only been reduced.
            if (stops.empty() || stops.back().phase < Phase::step) continue;
            if (behind) stops.push_back({behind, behind->begin_ns, mark.phase});
            close(mark.bucket);
        } else if (behind && behind->tag == tag) {
            // A second gather without a step in between does not depend on the reduction.
            if (mark.phase == Phase::gather && !stops.empty() && stops.back().phase != Phase::step)
                close(mark.bucket);
            stops.push_back({behind, behind->begin_ns, mark.phase});
        }
    }
    for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) close(static_cast<int>(bucket));
    return events;
}

void Timeline::write(const std::string& path) const {
    std::lock_guard lock(mutex_);
    std::map<std::string, int> threads;
    std::vector<const Span*> sorted;
    int others = first_thread() + row_of_stream("");
    for (const Span& span : spans_) {
        const int row = row_of_stream(span.stream);
        if (threads.try_emplace(span.stream, first_thread() + row).second && row == row_of_stream(""))
            threads[span.stream] = others++;
        if (span.tag > 0) sorted.push_back(&span);
    }
    std::stable_sort(sorted.begin(), sorted.end(), [](const Span* a, const Span* b) {
        return std::tie(a->stream, a->tag, a->begin_ns) < std::tie(b->stream, b->tag, b->begin_ns);
    });
    const int process = first_thread() - 1;
    std::ostringstream file;
    file << kHead << '\n'
         << metadata(rank_.rank, process, "process_name",
                     fmt::format(R"("name":{})", quoted(fmt::format("rank {} ({})", rank_.rank, rank_.host))))
         << ",\n"
         << metadata(rank_.rank, process, "process_sort_index", fmt::format(R"("sort_index":{})", rank_.rank))
         << ",\n"
         << metadata(rank_.rank, process, "clock",
                     fmt::format(R"("offset_us":{:.3f},"error_us":{:.3f})",
                                 static_cast<double>(rank_.clock_offset_ns) * 1e-3,
                                 static_cast<double>(rank_.clock_error_ns) * 1e-3));
    for (const auto& [stream, thread] : threads) {
        file << ",\n"
             << metadata(rank_.rank, thread, "thread_name", fmt::format(R"("name":{})", quoted(stream)));
        file << ",\n"
             << metadata(rank_.rank, thread, "thread_sort_index", fmt::format(R"("sort_index":{})", thread));
    }
    for (const Span& span : spans_) file << ",\n" << event_of(span, threads[span.stream]);
    for (const std::string& flow : flows(sorted)) file << ",\n" << flow;
    file << '\n' << kTail << '\n';
    write_file(path, file.view());
}

void merge_timelines(const std::vector<std::string>& parts, const std::string& path) {
    OutputFile merged(path);
    merged.write(kHead);
    const char* separator = "\n";
    for (const std::string& part : parts) {
        std::ifstream file(part);
        std::string line;
        if (!std::getline(file, line) || line != kHead)
            throw_data("{}: the timeline of a rank is not there or was not written whole", part);
        bool whole = false;
        while (!whole && std::getline(file, line)) {
            whole = line == kTail;
            if (whole) continue;
            if (line.ends_with(',')) line.pop_back();
            merged.write(separator + line);
            separator = ",\n";
        }
        if (!whole) throw_data("{}: the timeline of a rank was cut short", part);
    }
    merged.write(fmt::format("\n{}\n", kTail));
    merged.finish();
    for (const std::string& part : parts) std::remove(part.c_str());
}

}  // namespace speedrun
