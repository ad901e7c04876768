// Training batches made ahead of time by a background thread, so that disk reads and page faults happen while
// the step computes.
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
    // Rows of one batch on one rank, in each of the loader's stages.
    std::vector<int64_t> rows_per_microbatch;
    int64_t rank = 0;  // this rank among those that hold different data
    int64_t num_ranks = 1;
    int64_t start_step = 0;  // first step that next() returns
    int64_t depth = 4;       // batches made ahead, at least 1; see made_through()
};

// The rank's microbatches in order: microbatch m of a step is the rows from (m * num_ranks + rank) *
// rows_per_microbatch on, so that one microbatch of all ranks is a contiguous range of rows. One thread calls
// next().
class Prefetcher {
  public:
    // The loader must outlive the prefetcher. Starts the thread. Throws a usage error unless in each stage
    // rows_per_microbatch * num_ranks divides the loader's rows_per_step and the other options are in range.
    Prefetcher(const BatchLoader& loader, const PrefetcherOptions& options);
    // Waits for at most the one batch that is being filled.
    ~Prefetcher();
    Prefetcher(const Prefetcher&) = delete;
    Prefetcher& operator=(const Prefetcher&) = delete;

    // The next microbatch; the reference holds until the following call. Rethrows what BatchLoader::fill
    // threw, after the batches before it were returned, and on every call from then on.
    const Batch& next();

    // Waits for the batches of all steps up to this one. Returns false if one of them could not be made: next() will throw.
    // For the thread that calls next(), between steps. Throws an internal error if `depth` is below the number of batches of
    // these steps.
    bool made_through(int64_t step);
    // The exception that next() will throw; null: none yet.
    std::exception_ptr error() const;

    // Milliseconds that next() and made_through() have waited for the thread, in total. For the thread that calls next().
    double wait_ms() const { return wait_ms_; }

  private:
    void run();
    void release();  // mutex_ is held
    void wait_for(std::unique_lock<std::mutex>& lock, const std::function<bool()>& ready);

    const BatchLoader& loader_;
    PrefetcherOptions options_;
    std::vector<Batch> ring_;  // depth + 1: one is in the caller's hands

    mutable std::mutex
        mutex_;  // guards the members up to the blank line; a filled batch is handed over under it too
    std::condition_variable changed_;
    int64_t produced_ = 0;  // batches filled so far
    int64_t returned_ = 0;  // batches given to the caller so far
    int64_t released_ = 0;  // batches that the caller is done with
    int64_t next_step_;     // the first step of which batches are missing
    bool stop_ = false;
    std::exception_ptr error_;

    double wait_ms_ = 0;
    std::thread thread_;  // last: starts when everything else is ready
};

}  // namespace speedrun
