// Timeline of every stream, written as Chrome trace JSON (opens in Perfetto and chrome://tracing).
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "kernels/device/device.h"

namespace speedrun {

class Timeline final : public TraceSink {
  public:
    void span(const std::string& stream, const char* label, int64_t begin_ns, int64_t end_ns) override;
    size_t size() const;
    // Complete ("X") events in microseconds from the first one, one thread per stream. Throws if writing
    // fails.
    void write(const std::string& path) const;

  private:
    struct Span {
        std::string stream;
        const char* label;
        int64_t begin_ns, end_ns;
    };
    mutable std::mutex mutex_;
    std::vector<Span> spans_;
};

}  // namespace speedrun
