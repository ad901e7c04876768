// Timeline: all spans of a rank's streams and their purpose, written as Chrome trace JSON (opens in Perfetto and
// chrome://tracing).
//
// A span is one piece of work on a stream. The host marks a stream before it enqueues: later work of this stream is, for
// example, the reduction of bucket 7. Each work item carries the mark's number (Stream::set_trace_tag), which determines the
// span's step, phase and bucket without a clock. Arrows (flow events) connect a bucket's marks: the last work of its gradient
// (`ready`), reduction, step, gather, and the first work of the next forward that waited for it.
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
};  // in order of execution
constexpr int kNumPhases = 7;
const char* name_of(Phase phase);

// True for the label of work that waits for other ranks: collectives, and the simulated network's delay.
bool is_communication(const std::string& label);

// A bucket: tensors that are reduced, updated and gathered together.
struct TracedBucket {
    std::string name;
    std::vector<std::pair<std::string, int64_t>> sent;  // bytes sent by a rank, by label of the collective
};

// Rank of a timeline, and its clock relative to rank 0's.
struct TracedRank {
    int rank = 0;
    std::string host;
    int64_t clock_offset_ns = 0;  // this rank's clock minus rank 0's
    int64_t clock_error_ns = 0;   // bound on the error of clock_offset_ns
    int64_t origin_ns = 0;        // time 0 of the trace, on rank 0's clock
};

class Timeline final : public TraceSink {
  public:
    // Called by the host thread, in enqueue order.
    void describe(TracedRank rank) { rank_ = std::move(rank); }
    void describe(std::vector<TracedBucket> buckets) { buckets_ = std::move(buckets); }
    void begin_step(int64_t step) { step_ = step; }
    // Later work on this stream has this phase and bucket (-1: no bucket).
    void mark(Stream& stream, Phase phase, int bucket = -1);
    // The previous work on the compute stream completes the gradient of the bucket.
    void ready(Stream& compute, int bucket);
    // The next work on the compute stream has waited for the bucket.
    void use(Stream& compute, Phase phase, int bucket);

    void span(const std::string& stream, const char* label, int64_t begin_ns, int64_t end_ns,
              int tag = 0) override;
    size_t size() const;
    // Purpose of work with this tag. Tag 0, or an unknown tag: none.
    struct Purpose {
        Phase phase = Phase::forward;
        int bucket = -1;
        int64_t step = 0;
    };
    std::optional<Purpose> purpose(int tag) const;
    const std::vector<TracedBucket>& buckets() const { return buckets_; }

    // Writes one file per rank: complete ("X") events in microseconds from the origin, one process per rank, one thread per
    // stream, args {step, phase, bucket, bytes}; flows ("s", "t", "f"). One event per line. Throws if writing fails. No work
    // may be enqueued afterwards.
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
    // Some viewers distinguish threads by number only, across processes.
    int first_thread() const { return 100 * rank_.rank + 1; }
    double microseconds(int64_t time_ns) const {
        return static_cast<double>(time_ns - rank_.clock_offset_ns - rank_.origin_ns) * 1e-3;
    }

    TracedRank rank_;
    std::vector<TracedBucket> buckets_;
    int64_t step_ = 0;
    mutable std::mutex mutex_;  // guards the members below
    std::vector<Mark> marks_;   // mark i is tag i + 1
    std::vector<Span> spans_;
};

// Merges the files that Timeline::write wrote on all ranks into one, and removes them. The merge is line by line, so memory
// does not grow with the number of ranks. Throws data errors for a missing or truncated file; the parts and the file at `path`
// are then kept.
void merge_timelines(const std::vector<std::string>& parts, const std::string& path);

}  // namespace speedrun
