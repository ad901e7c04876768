#include "train/trace/timeline.h"

#include <algorithm>
#include <fstream>
#include <map>

#include "kernels/device/error.h"

namespace speedrun {

void Timeline::span(const std::string& stream, const char* label, int64_t begin_ns, int64_t end_ns) {
    std::lock_guard lock(mutex_);
    spans_.push_back({stream, label, begin_ns, end_ns});
}

size_t Timeline::size() const {
    std::lock_guard lock(mutex_);
    return spans_.size();
}

void Timeline::write(const std::string& path) const {
    std::lock_guard lock(mutex_);
    int64_t origin = spans_.empty() ? 0 : spans_.front().begin_ns;
    std::map<std::string, int> threads;
    for (const Span& span : spans_) {
        origin = std::min(origin, span.begin_ns);
        threads.emplace(span.stream, static_cast<int>(threads.size()) + 1);
    }
    std::ofstream file(path);
    file << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
    const char* separator = "\n";
    for (const auto& [stream, thread] : threads) {
        file << separator
             << fmt::format(R"({{"name":"thread_name","ph":"M","pid":0,"tid":{},"args":{{"name":"{}"}}}})",
                            thread, stream);
        separator = ",\n";
    }
    for (const Span& span : spans_) {
        file << separator
             << fmt::format(R"({{"name":"{}","ph":"X","pid":0,"tid":{},"ts":{:.3f},"dur":{:.3f}}})",
                            span.label, threads[span.stream],
                            static_cast<double>(span.begin_ns - origin) * 1e-3,
                            static_cast<double>(span.end_ns - span.begin_ns) * 1e-3);
        separator = ",\n";
    }
    file << "\n]}\n";
    file.close();
    if (!file) throw Error(ExitCode::failure, fmt::format("{}: writing the trace failed (disk full?)", path));
}

}  // namespace speedrun
