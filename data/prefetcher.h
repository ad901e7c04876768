// Prefetcher: a background thread fills training batches ahead of time, so that disk reads and page faults overlap with
// the step.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "data/batch_loader.h"

namespace speedrun {

struct PrefetcherOptions {
    // Rows per batch on one rank; index: stage of the loader.
    std::vector<int64_t> rows_per_microbatch;
    int64_t rank = 0;  // index of this rank among ranks with different data
    int64_t num_ranks = 1;
    int64_t start_step = 0;  // first step returned by next()
    int64_t depth = 4;       // batches filled ahead, at least 1; see made_through()
};

// The rank's microbatches in order. Microbatch m of a step has the rows from (m * num_ranks + rank) *
// rows_per_microbatch on. One microbatch of all ranks is thus a contiguous range of rows. Only one thread may call
// next().
class Prefetcher {
  public:
    // The loader must outlive the prefetcher. Starts the thread. Throws a usage error unless rows_per_microbatch *
    // num_ranks divides rows_per_step in each stage and the other options are in range.
    Prefetcher(const BatchLoader& loader, const PrefetcherOptions& options);
    // Waits at most for the batch that is being filled.
    ~Prefetcher();
    Prefetcher(const Prefetcher&) = delete;
    Prefetcher& operator=(const Prefetcher&) = delete;

    // Returns the next microbatch; the reference is valid until the next call. Rethrows an exception of
    // BatchLoader::fill after the earlier batches were returned, and in every later call.
    const Batch& next();

    // Waits for the batches of all steps up to this one. Returns false if one of them failed: next() will throw. For
    // the thread that calls next(), between steps. Throws an internal error if `depth` is below the number of batches
    // of these steps.
    bool made_through(int64_t step);
    // Returns the exception that next() will throw; null: none so far.
    std::exception_ptr error() const;

    // Total milliseconds that next() and made_through() waited for the thread. For the thread that calls next().
    double wait_ms() const { return wait_ms_; }

  private:
    void run();
    void release();  // requires mutex_
    void wait_for(std::unique_lock<std::mutex>& lock, const std::function<bool()>& ready);

    const BatchLoader& loader_;
    PrefetcherOptions options_;
    std::vector<Batch> ring_;  // depth + 1 batches: the caller uses one

    mutable std::mutex mutex_;  // guards the members up to the blank line, and the transfer of filled batches
    std::condition_variable changed_;
    int64_t produced_ = 0;  // batches filled so far
    int64_t returned_ = 0;  // batches returned to the caller so far
    int64_t released_ = 0;  // batches that the caller has finished with
    int64_t next_step_;     // first step with missing batches
    bool stop_ = false;
    std::exception_ptr error_;

    double wait_ms_ = 0;
    std::thread thread_;  // last member: starts when all others are initialized
};

}  // namespace speedrun
