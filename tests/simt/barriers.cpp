// Barriers of a block, of some of its warps, and of a warp. A watch may remove one.
// build: in speedrun_simt_executor
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/simt/execution.h"

namespace speedrun::simt {

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

void Executor::warp_barrier(uint32_t mask, Where where) {
    if (options_.watch && options_.watch->is_removed(*launch_, where)) return;
    leave(arrive(mask, nullptr, 0, where));
}

void Executor::named_barrier(int id, int threads, bool waits, bool orders, const Where& where) {
    if (id < 1 || id >= NamedBarrier::kCount)
        fail(fmt::format("named barrier {} is outside [1, 15]", id), &where);
    NamedBarrier& b = named_barriers_[static_cast<size_t>(id)];
    if (b.arrived > 0 && b.threads != threads)
        fail(fmt::format("named barrier {} of {} threads: others call it with {}", id, threads, b.threads),
             &where);
    const int key = NamedBarrier::kFirstKey + id;
    Watch* const watch = orders ? options_.watch : nullptr;
    if (watch) watch->release(running_->position.linear, key);
    b.threads = threads;
    Thread& self = *running_;
    if (waits) {
        self.where = where;
        self.state = Thread::State::at_named_barrier;
        b.waiting.push_back(&self);
    }
    if (++b.arrived == threads) {
        if (watch) watch->phase_end(key);
        std::sort(b.waiting.begin(), b.waiting.end());
        for (Thread* thread : b.waiting) thread->state = Thread::State::ready;
        make_ready(std::exchange(b.waiting, {}));
        b.arrived = 0;
    }
    if (!waits) return;
    suspend();
    if (watch) watch->acquire(self.position.linear, key);
}

// Warpgroups change their registers together. A block has the registers that its threads begin with: at most 64 Ki in a multiprocessor,
// in units of 8 per thread. Decreases go below that number and increases above it.
void Executor::check_registers() const {
    constexpr size_t kWarpgroup = 128;
    size_t total = 0;
    for (const Thread& thread : threads_) {
        if (thread.registers != threads_[thread.position.linear / kWarpgroup * kWarpgroup].registers)
            fail(fmt::format("thread {} has not changed its registers with its warpgroup",
                             thread.position.linear),
                 nullptr);
        total +=
            static_cast<size_t>(thread.registers.empty() ? registers_at_entry() : thread.registers.back());
    }
    const size_t block = threads_.size() * static_cast<size_t>(registers_at_entry());
    if (total > block) fail(fmt::format("{} registers, of {} of the block", total, block), nullptr);
}

int Executor::registers_at_entry() const {
    constexpr int kMultiprocessor = 64 << 10, kMost = 255;
    return std::min(kMultiprocessor / static_cast<int>(threads_.size()), kMost) / 8 * 8;
}

void Executor::change_registers(int count, bool increase, const Where& where) {
    const int entry = registers_at_entry();
    if (count % 8 != 0 || count < 24 || count > 256 || (increase ? count < entry : count > entry))
        fail(fmt::format("{} to {} registers per thread, from {}", increase ? "an increase" : "a decrease",
                         count, entry),
             &where);
    running_->registers.push_back(count);
}

void named_barrier(int id, int threads, bool waits, Where where) {
    if (!executor().removed(where)) executor().named_barrier(id, threads, waits, true, where);
}

void named_turn(int id, int threads, bool waits, Where where) {
    executor().named_barrier(id, threads, waits, false, where);
}

void warpgroup_registers(int count, bool increase, Where where) {
    executor().change_registers(count, increase, where);
}

void barrier(Where where) {
    executor().barrier(where);
}

void warp_barrier(uint32_t mask, Where where) {
    executor().warp_barrier(mask, where);
}

}  // namespace speedrun::simt
