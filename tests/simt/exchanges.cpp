// Exchanges between the lanes of a warp: waiting, and violations of CUDA's rules.
// build: in speedrun_simt_executor
#include <fmt/format.h>

#include <cstring>

#include "tests/simt/execution.h"

namespace speedrun::simt {

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
    const char *const file = exchange->where.file_name(), *const own = where.file_name();
    if (exchange->bytes != bytes || exchange->where.line() != where.line() ||
        (file != own && std::strcmp(file, own) != 0)) {
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
        // Shuffles do not order memory, and neither does a barrier of a partial warp: stricter than CUDA.
        if (options_.watch && bytes == 0 && mask == ~0u) options_.watch->warp_barrier(warp);
        std::erase(open_[warp], exchange);
        met_.clear();
        for (unsigned i = 0; i < kWarpSize; ++i) {
            if (!(mask >> i & 1u)) continue;
            threads_[first + i].state = Thread::State::ready;
            met_.push_back(&threads_[first + i]);
        }
        make_ready(met_);
    }
    suspend();
    return *exchange;
}

void Executor::leave(Exchange& exchange) {
    exchange.left |= 1u << (running_->position.linear % kWarpSize);
    if (exchange.left == exchange.mask) free_exchanges_.push_back(&exchange);
}

const Exchange& arrive(uint32_t mask, const void* value, size_t bytes, Where where) {
    return executor().arrive(mask, value, bytes, where);
}

void leave(const Exchange& exchange) {
    executor().leave(const_cast<Exchange&>(exchange));
}

}  // namespace speedrun::simt
