// Barriers of a block and of a warp. A watch may remove one.
// build: in speedrun_simt_executor
#include <fmt/format.h>

#include <cstring>

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

void barrier(Where where) {
    executor().barrier(where);
}

void warp_barrier(uint32_t mask, Where where) {
    executor().warp_barrier(mask, where);
}

}  // namespace speedrun::simt
