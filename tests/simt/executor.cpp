#include "tests/simt/executor.h"

#include <fmt/format.h>

#include <boost/context/fiber.hpp>
#include <boost/context/pooled_fixedsize_stack.hpp>
#include <deque>
#include <exception>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/device/error.h"
#include "tests/simt/simt_device.h"
#include "tests/simt/watch.h"

namespace speedrun::simt {

namespace {

constexpr size_t kStackBytes = 128 << 10;
constexpr int64_t kMaxSharedBytes = 227 << 10;  // that a block of compute capability 9.0 can have
constexpr unsigned kMaxThreads = 1024;
constexpr int64_t kRedZoneWords = 64;
constexpr uint32_t kRedZone =
    0xfffafffbu;  // a NaN as f32, as two bf16, and nothing that a kernel would write
constexpr std::byte kPoison{0xff};

struct Thread {
    enum class State : uint8_t { fresh, ready, at_barrier, at_exchange, done };
    struct Copy {
        void* to;
        const void* from;
        int bytes, valid;
    };

    Position position;
    State state = State::fresh;
    Where where;                           // of the call that it waits in
    Exchange* exchange = nullptr;          // that it waits in
    boost::context::fiber fiber;           // its suspended self, where it waits or is ready again
    std::deque<std::vector<Copy>> copies;  // groups of asynchronous copies; the last one is open
};

class Executor {
  public:
    void run(const Launch& launch, const Options& options);

    void barrier(Where where);
    Exchange& arrive(uint32_t mask, const void* value, size_t bytes, Where where);
    void leave(Exchange& exchange);
    [[noreturn]] void fail(const std::string& what, const Where* where) const;
    void note_access(Access::Kind kind, const void* address, size_t bytes, const void* instruction);
    void note_mma();
    void warp_barrier(uint32_t mask, Where where);
    Thread& self() { return *running_; }

    Statistics statistics;

  private:
    void run_block(dim3 index);
    void run_thread(Thread& thread);
    void carry();  // body of a fiber: runs fresh threads, one after the other
    void suspend();
    void finished(Thread& thread);
    Thread* pick();
    void make_ready(const std::vector<Thread*>& ascending);
    void check_red_zones() const;
    std::string stuck() const;

    const Launch* launch_ = nullptr;
    Options options_;
    std::vector<DeviceRange> device_memory_;  // where a watch looks
    std::mt19937_64 random_;
    boost::context::pooled_fixedsize_stack stacks_{kStackBytes, 16};

    std::vector<Thread> threads_;
    std::vector<Thread*> ready_;  // a stack: the last one runs next, unless the order is random
    std::vector<uint32_t> shared_;
    Thread* running_ = nullptr;
    Thread* next_ = nullptr;
    bool carrier_idle_ = false;
    unsigned num_at_barrier_ = 0, num_done_ = 0;
    Where barrier_where_;  // of the thread that came first, barrier_first_
    unsigned barrier_first_ = 0;
    std::vector<std::vector<Exchange*>> open_;  // by warp: exchanges that lanes still wait for
    std::vector<std::unique_ptr<Exchange>> exchanges_;
    std::vector<Exchange*> free_exchanges_;
    std::exception_ptr error_;

    boost::context::fiber scheduler_;
    std::vector<boost::context::fiber> idle_;  // last: unwinds while the rest is still there
};

Executor& executor() {
    thread_local Executor instance;
    return instance;
}

std::string short_name(const char* file) {
    const std::string name(file);
    const size_t at = std::min(name.rfind("kernels/cuda/"), name.rfind("tests/simt/"));
    return at == std::string::npos ? name : name.substr(at);
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
        all.push_back(&thread);
    }
    statistics.threads += static_cast<int64_t>(all.size());
    num_at_barrier_ = num_done_ = 0;
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
            next_ = pick();
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
    if (error_) {  // unwinds the fibers of threads that wait
        for (Thread& thread : threads_) thread.fiber = boost::context::fiber();
        for (auto& exchanges : open_) exchanges.clear();
        free_exchanges_.clear();
        for (const auto& exchange : exchanges_) free_exchanges_.push_back(exchange.get());
        std::rethrow_exception(error_);
    }
    running_ = nullptr;
    check_red_zones();
    if (options_.watch) options_.watch->end_block();
}

// One stack serves thread after thread for as long as none of them waits: a kernel without barriers never
// switches.
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

void Executor::suspend() {
    scheduler_ = std::move(scheduler_).resume();
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

void Executor::barrier(Where where) {
    if (options_.watch && options_.watch->is_removed(*launch_, where)) return;
    Thread& thread = *running_;
    if (num_done_ > 0)
        fail("waits at a barrier that other threads cannot reach: they left the kernel", &where);
    if (num_at_barrier_ == 0) {
        barrier_where_ = where;
        barrier_first_ = thread.position.linear;
    } else if (barrier_where_.line() != where.line() ||
               std::strcmp(barrier_where_.file_name(), where.file_name()) != 0) {
        fail(fmt::format("waits at another barrier than thread {}, which waits at line {}", barrier_first_,
                         barrier_where_.line()),
             &where);
    }
    thread.where = where;
    thread.state = Thread::State::at_barrier;
    if (++num_at_barrier_ == threads_.size()) {
        ++statistics.barriers;
        if (options_.watch) options_.watch->block_barrier();
        num_at_barrier_ = 0;
        std::vector<Thread*> all;
        for (Thread& other : threads_) {
            other.state = Thread::State::ready;
            all.push_back(&other);
        }
        make_ready(all);
    }
    suspend();
}

Exchange& Executor::arrive(uint32_t mask, const void* value, size_t bytes, Where where) {
    Thread& thread = *running_;
    const unsigned warp = thread.position.linear / kWarpSize, lane = thread.position.linear % kWarpSize;
    const unsigned first = warp * kWarpSize;
    if (!(mask >> lane & 1u)) fail("is not in the mask of its own exchange", &where);
    Exchange* exchange = nullptr;
    for (Exchange* other : open_[warp]) {
        if (other->mask == mask) exchange = other;
        if (other->mask != mask && (other->mask & mask) != 0)
            fail("lanes of a warp exchange with different masks", &where);
    }
    if (!exchange) {
        for (unsigned i = 0; i < kWarpSize; ++i) {
            if (!(mask >> i & 1u)) continue;
            if (first + i >= threads_.size())
                fail("the mask names lanes that the block does not have", &where);
            if (threads_[first + i].state == Thread::State::done)
                fail(fmt::format("exchanges with lane {}, which left the kernel", i), &where);
        }
        if (free_exchanges_.empty()) {
            exchanges_.push_back(std::make_unique<Exchange>());
            free_exchanges_.push_back(exchanges_.back().get());
        }
        exchange = free_exchanges_.back();
        free_exchanges_.pop_back();
        exchange->mask = mask;
        exchange->arrived = exchange->left = 0;
        exchange->bytes = bytes;
        exchange->where = where;
        open_[warp].push_back(exchange);
    }
    if (exchange->bytes != bytes || exchange->where.line() != where.line() ||
        std::strcmp(exchange->where.file_name(), where.file_name()) != 0) {
        fail(fmt::format("lanes of a warp are in different exchanges: others at line {}",
                         exchange->where.line()),
             &where);
    }
    if (bytes > 0) std::memcpy(exchange->data[lane], value, bytes);
    exchange->arrived |= 1u << lane;
    thread.where = where;
    thread.state = Thread::State::at_exchange;
    if (exchange->arrived == mask) {
        ++statistics.exchanges;
        // Shuffles do not order memory, and a barrier of a part of the warp counts for nothing: stricter than
        // CUDA's.
        if (options_.watch && bytes == 0 && mask == ~0u) options_.watch->warp_barrier(warp);
        std::erase(open_[warp], exchange);
        std::vector<Thread*> lanes;
        for (unsigned i = 0; i < kWarpSize; ++i) {
            if (!(mask >> i & 1u)) continue;
            threads_[first + i].state = Thread::State::ready;
            lanes.push_back(&threads_[first + i]);
        }
        make_ready(lanes);
    }
    suspend();
    return *exchange;
}

void Executor::warp_barrier(uint32_t mask, Where where) {
    if (options_.watch && options_.watch->is_removed(*launch_, where)) return;
    leave(arrive(mask, nullptr, 0, where));
}

void Executor::leave(Exchange& exchange) {
    exchange.left |= 1u << (running_->position.linear % kWarpSize);
    if (exchange.left == exchange.mask) free_exchanges_.push_back(&exchange);
}

void Executor::note_access(Access::Kind kind, const void* address, size_t bytes, const void* instruction) {
    if (!running_ || !options_.watch) return;
    const Position& p = running_->position;
    const auto at = reinterpret_cast<uintptr_t>(address), shared = reinterpret_cast<uintptr_t>(p.shared);
    Access access{kind, false, at, static_cast<int>(bytes), instruction, p.linear};
    if (at - shared < static_cast<uintptr_t>(p.shared_bytes)) {
        access.shared = true;
        access.address = at - shared;
    } else {
        const auto range = std::upper_bound(device_memory_.begin(), device_memory_.end(), at,
                                            [](uintptr_t a, const DeviceRange& r) { return a < r.begin; });
        if (range == device_memory_.begin() || at >= std::prev(range)->end) return;
    }
    if (bytes > 16) fail(fmt::format("moves {} bytes in one piece: no instruction does", bytes), nullptr);
    options_.watch->access(access);
}

void Executor::note_mma() {
    if (running_ && options_.watch) options_.watch->mma(running_->position.linear);
}

void Executor::check_red_zones() const {
    const auto* bytes = reinterpret_cast<const std::byte*>(shared_.data());
    std::vector<uint32_t> zone(static_cast<size_t>(kRedZoneWords), kRedZone);
    if (std::memcmp(bytes, zone.data(), kRedZoneWords * 4) != 0)
        fail("something wrote before the shared memory", nullptr);
    // The words behind: the first may be shared with the block's last bytes.
    const int64_t end = kRedZoneWords * 4 + launch_->shared_bytes,
                  total = static_cast<int64_t>(shared_.size()) * 4;
    const auto* pattern = reinterpret_cast<const std::byte*>(zone.data());
    for (int64_t i = end; i < total; ++i) {
        if (bytes[i] != pattern[i % 4]) fail("something wrote past the end of the shared memory", nullptr);
    }
}

std::string Executor::stuck() const {
    for (const Thread& thread : threads_) {
        if (thread.state != Thread::State::at_exchange && thread.state != Thread::State::at_barrier) continue;
        unsigned barrier = 0, exchange = 0;
        for (const Thread& other : threads_) {
            barrier += other.state == Thread::State::at_barrier;
            exchange += other.state == Thread::State::at_exchange;
        }
        return fmt::format(
            "block ({},{},{}): nobody can go on: {} threads wait at a barrier, {} in an exchange with lanes "
            "that do not "
            "come, {} have left; thread {} waits at {}:{}",
            thread.position.block.x, thread.position.block.y, thread.position.block.z, barrier, exchange,
            num_done_, thread.position.linear, short_name(thread.where.file_name()), thread.where.line());
    }
    return "nobody can go on";
}

}  // namespace

void fail(const char* what, Where where) {
    executor().fail(what, &where);
}

void fail_index(int64_t index, int64_t low, int64_t high, Where /*where*/) {
    executor().fail(fmt::format("index {} of shared memory is outside [{}, {})", index, low, high), nullptr);
}

void barrier(Where where) {
    executor().barrier(where);
}

void warp_barrier(uint32_t mask, Where where) {
    executor().warp_barrier(mask, where);
}

void note_access(Access::Kind kind, const void* address, size_t bytes, const void* instruction) {
    if (position) executor().note_access(kind, address, bytes, instruction);
}

void count_mma() {
    executor().note_mma();
}

const Exchange& arrive(uint32_t mask, const void* value, size_t bytes, Where where) {
    return executor().arrive(mask, value, bytes, where);
}

void leave(const Exchange& exchange) {
    executor().leave(const_cast<Exchange&>(exchange));
}

void copy_async(void* shared, const void* global, int bytes, int valid_bytes) {
    Thread& thread = executor().self();
    const auto* const to = static_cast<const std::byte*>(shared);
    const Position& p = thread.position;
    if (to < p.shared || to + bytes > p.shared + p.shared_bytes)
        executor().fail("an asynchronous copy ends outside the shared memory", nullptr);
    if (reinterpret_cast<uintptr_t>(shared) % static_cast<uintptr_t>(bytes) != 0 ||
        reinterpret_cast<uintptr_t>(global) % static_cast<uintptr_t>(bytes) != 0)
        executor().fail("an asynchronous copy is not aligned to its size", nullptr);
    std::memset(shared, static_cast<int>(kPoison), static_cast<size_t>(bytes));
    if (thread.copies.empty()) thread.copies.emplace_back();
    thread.copies.back().push_back({shared, global, bytes, valid_bytes});
    const void* const instruction = __builtin_return_address(0);
    if (valid_bytes > 0)
        executor().note_access(Access::Kind::read, global, static_cast<size_t>(bytes), instruction);
    executor().note_access(Access::Kind::copy_begin, shared, static_cast<size_t>(bytes), instruction);
}

void copy_async_commit() {
    Thread& thread = executor().self();
    if (thread.copies.empty()) thread.copies.emplace_back();
    thread.copies.emplace_back();  // the new open group
}

void copy_async_wait(int groups_in_flight) {
    Thread& thread = executor().self();
    while (static_cast<int>(thread.copies.size()) - 1 > groups_in_flight) {
        for (const Thread::Copy& copy : thread.copies.front()) {
            std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.valid));
            std::memset(static_cast<std::byte*>(copy.to) + copy.valid, 0,
                        static_cast<size_t>(copy.bytes - copy.valid));
            executor().note_access(Access::Kind::copy_end, copy.to, static_cast<size_t>(copy.bytes),
                                   __builtin_return_address(0));
        }
        thread.copies.pop_front();
    }
}

void execute(const Launch& launch, const Options& options) {
    executor().run(launch, options);
}

Statistics last_statistics() {
    return executor().statistics;
}

}  // namespace speedrun::simt
