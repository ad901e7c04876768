// Timeline: what every stream of a rank did and what it was for, written as Chrome trace JSON (opens in
// Perfetto and chrome://tracing).
//
// A span is one piece of work on a stream. While the host enqueues, it marks the streams: "from here on, this
// stream's work is the reduction of bucket 7". The mark's number travels with the work
// (Stream::set_trace_tag), so that a span knows its step, phase and bucket, and no clock is needed to tell
// what belongs together. Arrows (flow events) follow a bucket from mark to mark: from the last work of its
// gradient (`ready`) to its reduction, its step, its gather, and the first work of the next forward that
// waited for it.
#pragma once

#include <array>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/device/device.h"

namespace speedrun {

enum class Phase : uint8_t {
    validation,
    forward,
    backward,
    reduce,
    step,
    gather,
    statistics
};  // in this order
constexpr int kNumPhases = 7;
const char* name_of(Phase phase);

// Work that waits for other ranks, by its label: collectives, and the simulated network's time.
bool is_communication(const std::string& label);

// What is reduced, stepped and gathered as one, as the reader of a trace wants to know it.
struct TracedBucket {
    std::string name;
    std::vector<std::pair<std::string, int64_t>> sent;  // by label of the collective: bytes that a rank sends
};

// Whose timeline it is, and how its clock relates to rank 0's.
struct TracedRank {
    int rank = 0;
    std::string host;
    int64_t clock_offset_ns = 0;  // this rank's clock minus rank 0's
    int64_t clock_error_ns = 0;   // the offset is right within this
    int64_t origin_ns = 0;        // what the trace counts from, on rank 0's clock
};

class Timeline final : public TraceSink {
  public:
    // Called by the host thread, in the order in which it enqueues.
    void describe(TracedRank rank) { rank_ = std::move(rank); }
    void describe(std::vector<TracedBucket> buckets) { buckets_ = std::move(buckets); }
    void begin_step(int64_t step) { step_ = step; }
    // Work enqueued on this stream from here on is this phase, of this bucket (-1: of none in particular).
    void mark(Stream& stream, Phase phase, int bucket = -1);
    // The work before on the compute stream completes the gradient of the bucket.
    void ready(Stream& compute, int bucket);
    // The work behind on the compute stream has waited for the bucket.
    void use(Stream& compute, Phase phase, int bucket);

    void span(const std::string& stream, const char* label, int64_t begin_ns, int64_t end_ns,
              int tag = 0) override;
    size_t size() const;
    // What work with this tag is for. 0, or unknown: nothing was said.
    struct Purpose {
        Phase phase = Phase::forward;
        int bucket = -1;
        int64_t step = 0;
    };
    std::optional<Purpose> purpose(int tag) const;
    const std::vector<TracedBucket>& buckets() const { return buckets_; }

    // One file per rank: complete ("X") events in microseconds from the origin, one process per rank, one
    // thread per stream, args {step, phase, bucket, bytes}; flows ("s", "t", "f"). One event a line. Throws
    // if writing fails. Nothing may be enqueued any more.
    void write(const std::string& path) const;

  private:
    enum class Point : uint8_t { work, ready, use };
    struct Mark {
        Point point;
        Phase phase;
        int bucket;
        int64_t step;
        std::string stream;
    };
    struct Span {
        std::string stream;
        const char* label;
        int64_t begin_ns, end_ns;
        int tag;
    };
    void add(Stream& stream, Point point, Phase phase, int bucket);
    std::string event_of(const Span& span, int thread) const;
    std::vector<std::string> flows(const std::vector<const Span*>& sorted) const;
    // Some readers tell threads apart by their number alone, whatever the process.
    int first_thread() const { return 100 * rank_.rank + 1; }
    double microseconds(int64_t time_ns) const {
        return static_cast<double>(time_ns - rank_.clock_offset_ns - rank_.origin_ns) * 1e-3;
    }

    TracedRank rank_;
    std::vector<TracedBucket> buckets_;
    int64_t step_ = 0;
    mutable std::mutex mutex_;  // of what follows
    std::vector<Mark> marks_;   // mark i is tag i + 1
    std::vector<Span> spans_;
};

// Puts the files of all ranks, each as Timeline::write left it, into one, and removes them. Line by line, so
// that any number of ranks needs no more memory than one. Throws data errors for a file that is not there or
// was cut short; the parts then stay, and what is at `path` too.
void merge_timelines(const std::vector<std::string>& parts, const std::string& path);

}  // namespace speedrun
