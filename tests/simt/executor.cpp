// build: in speedrun_simt_executor
#include "tests/simt/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/device/error.h"
#include "tests/simt/execution.h"

namespace speedrun::simt {

namespace {

constexpr int64_t kMaxSharedBytes = 227 << 10;  // maximum of a block of compute capability 9.0
constexpr unsigned kMaxThreads = 1024;
constexpr int64_t kRedZoneWords = 64;
constexpr uint32_t kRedZone =
    0xfffafffbu;  // a NaN as f32 and as two bf16 values, and a pattern that no kernel writes

std::string short_name(const char* file) {
    const std::string name(file);
    const size_t at = std::min(name.rfind("kernels/cuda/"), name.rfind("tests/simt/"));
    return at == std::string::npos ? name : name.substr(at);
}

}  // namespace

Executor& executor() {
    thread_local Executor instance;
    return instance;
}

void Executor::fail(const std::string& what, const Where* where) const {
    std::string at;
    if (running_) {
        const Position& p = running_->position;
        at = fmt::format("block ({},{},{}), thread ({},{},{}): ", p.block.x, p.block.y, p.block.z, p.thread.x,
                         p.thread.y, p.thread.z);
    }
    std::string place;
    if (where) place = fmt::format(" ({}:{})", short_name(where->file_name()), where->line());
    throw_internal("kernel of {}, launched at {}:{}: {}{}{}", launch_->function, short_name(launch_->file),
                   launch_->line, at, what, place);
}

void Executor::run(const Launch& launch, const Options& options) {
    launch_ = &launch;
    options_ = options;
    random_.seed(options.seed);
    running_ = nullptr;
    statistics = {};
    const uint64_t num_threads = uint64_t{launch.block.x} * launch.block.y * launch.block.z;
    const uint64_t num_blocks = uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
    if (num_threads == 0 || num_threads > kMaxThreads || num_blocks == 0 || launch.grid.y > 65535 ||
        launch.grid.z > 65535 || launch.grid.x > 0x7fffffffu || launch.shared_bytes < 0 ||
        launch.shared_bytes > kMaxSharedBytes) {
        fail(fmt::format("impossible launch of {} blocks of {} threads with {} bytes of shared memory",
                         num_blocks, num_threads, launch.shared_bytes),
             nullptr);
    }
    shared_.resize(static_cast<size_t>((launch.shared_bytes + 3) / 4 + 2 * kRedZoneWords));
    threads_.resize(num_threads);
    open_.resize((num_threads + kWarpSize - 1) / kWarpSize);

    if (options_.watch) {
        device_memory_ = device_memory();
        options_.watch->begin_launch(launch);
    }
    std::vector<uint64_t> order(num_blocks);
    for (uint64_t i = 0; i < num_blocks; ++i)
        order[i] = options.order == Order::reverse ? num_blocks - 1 - i : i;
    if (options.order == Order::random) std::shuffle(order.begin(), order.end(), random_);
    for (const uint64_t i : order) {
        const uint64_t plane = uint64_t{launch.grid.x} * launch.grid.y;
        run_block(dim3(static_cast<unsigned>(i % launch.grid.x),
                       static_cast<unsigned>(i % plane / launch.grid.x), static_cast<unsigned>(i / plane)));
    }
    if (options_.watch) options_.watch->end_launch();
}

void Executor::run_block(dim3 index) {
    const dim3 size = launch_->block;
    std::fill(shared_.begin(), shared_.end(), kRedZone);
    auto* const shared = reinterpret_cast<std::byte*>(shared_.data() + kRedZoneWords);
    std::fill(shared, shared + launch_->shared_bytes, kPoison);

    std::vector<Thread*> all;
    for (unsigned i = 0; i < threads_.size(); ++i) {
        Thread& thread = threads_[i];
        thread.position = {dim3(i % size.x, i / size.x % size.y, i / (size.x * size.y)),
                           index,
                           size,
                           launch_->grid,
                           i,
                           shared,
                           launch_->shared_bytes};
        thread.state = Thread::State::fresh;
        thread.copies.clear();
        thread.products = {};
        thread.waited = false;
        thread.registers.clear();
        all.push_back(&thread);
    }
    statistics.threads += static_cast<int64_t>(all.size());
    num_at_barrier_ = num_done_ = 0;
    arrivals_.assign(static_cast<size_t>(launch_->shared_bytes + 15) / 16, {});
    filling_.assign(arrivals_.size(), false);
    mbarriers_.clear();
    named_barriers_ = {};
    warpgroups_.clear();
    error_ = nullptr;
    ready_.clear();
    make_ready(all);

    if (options_.watch)
        options_.watch->begin_block(static_cast<unsigned>(threads_.size()), launch_->shared_bytes);
    next_ = pick();
    while (next_ && !error_) {
        Thread& thread = *next_;
        boost::context::fiber fiber;
        if (thread.state != Thread::State::fresh) {
            fiber = std::move(thread.fiber);
            running_ = &thread;
            position = &thread.position;
        } else if (!idle_.empty()) {
            fiber = std::move(idle_.back());
            idle_.pop_back();
        } else {
            fiber =
                boost::context::fiber(std::allocator_arg, stacks_, [this](boost::context::fiber&& scheduler) {
                    scheduler_ = std::move(scheduler);
                    carry();
                    return std::move(scheduler_);
                });
        }
        ++statistics.switches;
        fiber = std::move(fiber).resume();
        if (carrier_idle_) {
            carrier_idle_ = false;
            idle_.push_back(std::move(fiber));
        } else {
            running_->fiber = std::move(fiber);
        }
    }
    position = nullptr;
    if (!error_ && num_done_ < threads_.size()) {
        running_ = nullptr;
        try {
            fail(stuck(), nullptr);
        } catch (...) {
            error_ = std::current_exception();
        }
    }
    if (error_) {  // unwinds the fibers of waiting threads
        for (Thread& thread : threads_) thread.fiber = boost::context::fiber();
        for (auto& exchanges : open_) exchanges.clear();
        free_exchanges_.clear();
        for (const auto& exchange : exchanges_) free_exchanges_.push_back(exchange.get());
        std::rethrow_exception(error_);
    }
    running_ = nullptr;
    check_products();
    check_bulk_copies();
    check_registers();
    check_red_zones();
    if (options_.watch) options_.watch->end_block();
}

// One stack runs thread after thread until one of them waits: a kernel without barriers never switches.
void Executor::carry() {
    for (;;) {
        run_thread(*next_);
        next_ = error_ ? nullptr : pick();
        if (next_ && next_->state == Thread::State::fresh) continue;
        carrier_idle_ = true;
        scheduler_ = std::move(scheduler_).resume();
    }
}

void Executor::run_thread(Thread& thread) {
    running_ = &thread;
    position = &thread.position;
    try {
        launch_->kernel();
        finished(thread);
    } catch (const boost::context::detail::forced_unwind&) {
        throw;
    } catch (...) {
        error_ = std::current_exception();
    }
}

void Executor::finished(Thread& thread) {
    if (options_.kernels_wait && !thread.waited)
        fail("left the kernel without waiting for the kernels before it", nullptr);
    thread.state = Thread::State::done;
    ++num_done_;
    if (num_at_barrier_ > 0) {
        for (const Thread& other : threads_) {
            if (other.state == Thread::State::at_barrier)
                fail("left the kernel while other threads wait at a barrier", &other.where);
        }
    }
    for (const Exchange* exchange : open_[thread.position.linear / kWarpSize]) {
        if (exchange->mask >> (thread.position.linear % kWarpSize) & 1u)
            fail("left the kernel while its warp waits for it in an exchange", &exchange->where);
    }
}

// Switches directly to the next thread, also if that one waits: two switches fewer than through the
// scheduler.
void Executor::suspend() {
    next_ = pick();
    if (next_ == running_) return;
    boost::context::fiber by;
    if (!next_ || next_->state == Thread::State::fresh) {
        by = std::move(scheduler_).resume();
    } else {
        Thread& from = *running_;
        ++statistics.switches;
        running_ = next_;
        position = &next_->position;
        by = std::move(next_->fiber).resume_with([&from](boost::context::fiber&& own) {
            from.fiber = std::move(own);
            return boost::context::fiber();
        });
    }
    if (by) scheduler_ = std::move(by);  // switched by the scheduler, not by another thread
}

Thread* Executor::pick() {
    if (ready_.empty()) return nullptr;
    if (options_.order == Order::random) std::swap(ready_[random_() % ready_.size()], ready_.back());
    Thread* thread = ready_.back();
    ready_.pop_back();
    return thread;
}

void Executor::make_ready(const std::vector<Thread*>& ascending) {
    if (options_.order == Order::reverse) {
        ready_.insert(ready_.end(), ascending.begin(), ascending.end());
    } else {
        ready_.insert(ready_.end(), ascending.rbegin(), ascending.rend());
    }
}

void Executor::check_red_zones() const {
    const auto* bytes = reinterpret_cast<const std::byte*>(shared_.data());
    std::vector<uint32_t> zone(static_cast<size_t>(kRedZoneWords), kRedZone);
    if (std::memcmp(bytes, zone.data(), kRedZoneWords * 4) != 0)
        fail("something wrote before the shared memory", nullptr);
    // Words after the block's bytes; the first word may be shared with the last of them.
    const int64_t end = kRedZoneWords * 4 + launch_->shared_bytes,
                  total = static_cast<int64_t>(shared_.size()) * 4;
    const auto* pattern = reinterpret_cast<const std::byte*>(zone.data());
    for (int64_t i = end; i < total; ++i) {
        if (bytes[i] != pattern[i % 4]) fail("something wrote past the end of the shared memory", nullptr);
    }
}

std::string Executor::stuck() const {
    for (const Thread& thread : threads_) {
        if (thread.state == Thread::State::done) continue;
        const auto count = [&](Thread::State state) {
            return std::count_if(threads_.begin(), threads_.end(),
                                 [&](const Thread& t) { return t.state == state; });
        };
        return fmt::format(
            "block ({},{},{}): nobody can go on: {} threads wait at a barrier, {} in an exchange with missing "
            "lanes, {} at an mbarrier, {} at a named barrier, {} have left; thread {} waits at {}:{}",
            thread.position.block.x, thread.position.block.y, thread.position.block.z,
            count(Thread::State::at_barrier), count(Thread::State::at_exchange),
            count(Thread::State::at_mbarrier), count(Thread::State::at_named_barrier), num_done_,
            thread.position.linear, short_name(thread.where.file_name()), thread.where.line());
    }
    return "nobody can go on";
}

void fail(const char* what, Where where) {
    executor().fail(what, &where);
}

void fail_index(int64_t index, int64_t low, int64_t high, Where /*where*/) {
    executor().fail(fmt::format("index {} of shared memory is outside [{}, {})", index, low, high), nullptr);
}

void note_waited() {
    executor().self().waited = true;
}

void execute(const Launch& launch, const Options& options) {
    executor().run(launch, options);
}

Statistics last_statistics() {
    return executor().statistics;
}

}  // namespace speedrun::simt
