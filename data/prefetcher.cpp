#include "data/prefetcher.h"

#include <chrono>

#include "kernels/device/error.h"
#include "kernels/device/start_thread.h"

namespace speedrun {

Prefetcher::Prefetcher(const BatchLoader& loader, const PrefetcherOptions& options)
    : loader_(loader), options_(options), next_step_(options.start_step) {
    const std::vector<LoaderStage>& stages = loader.options().stages;
    if (options.rows_per_microbatch.size() != stages.size())
        throw_internal("microbatches of {} stages, the loader has {}", options.rows_per_microbatch.size(),
                       stages.size());
    for (size_t i = 0; i < stages.size(); ++i) {
        const int64_t rows = options.rows_per_microbatch[i];
        if (rows < 1 || options.num_ranks < 1 || stages[i].rows_per_step % (rows * options.num_ranks) != 0) {
            throw_usage("{} rows per microbatch * {} ranks must divide {} rows per step", rows,
                        options.num_ranks, stages[i].rows_per_step);
        }
    }
    if (options.rank < 0 || options.rank >= options.num_ranks) {
        throw_usage("rank {} of {} ranks", options.rank, options.num_ranks);
    }
    if (options.start_step < 0) throw_usage("start step is {}, expected 0 or more", options.start_step);
    if (options.depth < 1) throw_usage("prefetch depth is {}, expected 1 or more", options.depth);
    ring_.resize(static_cast<size_t>(options.depth) + 1);
    thread_ = start_thread("prefetcher", [this] { run(); });
}

Prefetcher::~Prefetcher() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
}

void Prefetcher::run() {
    const int64_t capacity = static_cast<int64_t>(ring_.size());
    int64_t step = options_.start_step, microbatch = 0;
    for (int64_t index = 0;; ++index) {
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, [&] { return stop_ || produced_ - released_ < capacity; });
            if (stop_) return;
        }
        std::exception_ptr error;
        try {
            const int64_t rows = options_.rows_per_microbatch[loader_.stage_at(step)];
            loader_.fill(step,
                         {.first = (microbatch * options_.num_ranks + options_.rank) * rows, .count = rows},
                         ring_[static_cast<size_t>(index % capacity)]);
            const int64_t rows_per_step = loader_.options().stages[loader_.stage_at(step)].rows_per_step;
            if (++microbatch * rows * options_.num_ranks == rows_per_step) ++step, microbatch = 0;
        } catch (...) {
            error = std::current_exception();
        }
        {
            const std::lock_guard lock(mutex_);
            if (error) {
                error_ = error;
            } else {
                ++produced_;
                next_step_ = step;
            }
        }
        changed_.notify_all();
        if (error) return;
    }
}

void Prefetcher::release() {
    if (released_ == returned_) return;
    released_ = returned_;
    changed_.notify_all();
}

void Prefetcher::wait_for(std::unique_lock<std::mutex>& lock, const std::function<bool()>& ready) {
    using Clock = std::chrono::steady_clock;
    if (ready()) return;
    const Clock::time_point start = Clock::now();
    changed_.wait(lock, ready);
    wait_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

bool Prefetcher::made_through(int64_t step) {
    std::unique_lock lock(mutex_);
    release();
    const auto full = [&] { return produced_ - released_ == static_cast<int64_t>(ring_.size()); };
    wait_for(lock, [&] { return next_step_ > step || error_ != nullptr || full(); });
    if (next_step_ <= step && !error_)
        throw_internal("{} batches do not reach the end of step {}", ring_.size(), step);
    return next_step_ > step;
}

std::exception_ptr Prefetcher::error() const {
    const std::lock_guard lock(mutex_);
    return error_;
}

const Batch& Prefetcher::next() {
    std::unique_lock lock(mutex_);
    release();
    wait_for(lock, [&] { return produced_ > returned_ || error_ != nullptr; });
    if (produced_ == returned_) std::rethrow_exception(error_);
    return ring_[static_cast<size_t>(returned_++ % static_cast<int64_t>(ring_.size()))];
}

}  // namespace speedrun
