// Barrier objects in shared memory (mbarrier) and bulk copies to it.
// build: in speedrun_simt_executor
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cuda/blocks/tensor_map.h"
#include "tests/simt/execution.h"
#include "tests/simt/warpgroup.h"

namespace speedrun {

TensorMap map_rows(const Tensor& x, int64_t sequence_length, int box_rows, Stream& /*stream*/) {
    return {.data = static_cast<const std::byte*>(x.data),
            .element_bytes = static_cast<int>(size_of(x.dtype)),
            .columns = x.cols(),
            .rows = sequence_length,
            .sequences = x.rows() / sequence_length,
            .row_stride = x.row_stride,
            .sequence_stride = sequence_length * x.row_stride,
            .box_rows = box_rows};
}

namespace simt {

namespace {

constexpr uintptr_t kSwizzledRow = TensorMap::kBoxRowBytes, kChunk = 16, kTileAlignment = 1024;

}  // namespace

Mbarrier& Executor::barrier_at(uint64_t* barrier, const Where& where) {
    const uint32_t offset = shared_offset(barrier);
    const auto found = mbarriers_.find(offset);
    if (found == mbarriers_.end()) fail("uses an mbarrier that is not initialised", &where);
    Mbarrier& b = found->second;
    if (b.initialiser != running_ && (!b.published || b.block_barriers == statistics.barriers))
        fail("uses an mbarrier before its initialisation is published and a block barrier has followed",
             &where);
    return b;
}

void Executor::mbarrier_init(uint64_t* barrier, int arrivals, const Where& where) {
    const Position& p = running_->position;
    const auto* const at = reinterpret_cast<std::byte*>(barrier);
    if (at < p.shared || at + sizeof *barrier > p.shared + p.shared_bytes)
        fail("an mbarrier outside the shared memory", &where);
    if (reinterpret_cast<uintptr_t>(barrier) % sizeof *barrier != 0)
        fail("an mbarrier is not aligned to 8 bytes", &where);
    if (arrivals < 1) fail(fmt::format("an mbarrier for {} arrivals", arrivals), &where);
    Mbarrier b;
    b.initialiser = running_;
    b.block_barriers = statistics.barriers;
    b.expected = b.pending = arrivals;
    b.agent = static_cast<int>(mbarriers_.size());
    if (!mbarriers_.emplace(shared_offset(barrier), std::move(b)).second)
        fail("initialises an mbarrier twice", &where);
}

void Executor::mbarrier_publish() {
    for (auto& [offset, b] : mbarriers_) b.published |= b.initialiser == running_;
}

void Executor::mbarrier_arrive(uint64_t* barrier, int64_t bytes, const Where& where) {
    Mbarrier& b = barrier_at(barrier, where);
    if (b.pending == 0)
        fail(fmt::format("arrives at an mbarrier that has all its {} arrivals", b.expected), &where);
    if (options_.watch) options_.watch->release(running_->position.linear, b.key());
    b.bytes += bytes;
    --b.pending;
    if (b.bytes == 0 || !b.waiting.empty()) advance(b, where);
}

// Delivers the copies of a barrier that has all its arrivals, and completes its phase if nothing is missing.
void Executor::advance(Mbarrier& b, const Where& where) {
    if (b.pending > 0) return;
    if (b.bytes > 0) {
        for (const BulkCopy& copy : b.copies) {
            std::byte* const shared = running_->position.shared;
            for (const auto& [to, chunk] : copy.chunks) {
                std::memcpy(shared + to, chunk.data(), chunk.size());
                filling_[to / kChunk] = false;
            }
            if (options_.watch) options_.watch->bulk_end(b.key(), copy.to, copy.bytes);
            b.bytes -= copy.bytes;
        }
        b.copies.clear();
        if (b.bytes < 0)
            fail(fmt::format("{} bytes more than an mbarrier expects arrive at it", -b.bytes), &where);
        if (b.bytes > 0) return;
    }
    ++b.phase;
    b.pending = b.expected;
    if (options_.watch) options_.watch->phase_end(b.key());
    for (Thread* thread : b.waiting) thread->state = Thread::State::ready;
    make_ready(std::exchange(b.waiting, {}));
}

void Executor::mbarrier_wait(uint64_t* barrier, int parity, const Where& where) {
    for (;;) {
        Mbarrier& b = barrier_at(barrier, where);
        if (b.phase % 2 == parity) advance(b, where);
        if (b.phase % 2 != parity) {
            if (options_.watch) options_.watch->acquire(running_->position.linear, b.key());
            return;
        }
        running_->where = where;
        running_->state = Thread::State::at_mbarrier;
        b.waiting.push_back(running_);
        suspend();
    }
}

void Executor::copy_box(void* tile, const TensorMap& map, uint64_t* barrier, const BoxAt& at,
                        const Where& where) {
    Mbarrier& b = barrier_at(barrier, where);
    if (!b.published) fail("a bulk copy signals an mbarrier that is not published", &where);
    const Position& p = running_->position;
    auto* const to = static_cast<std::byte*>(tile);
    if (to < p.shared || to + map.box_bytes() > p.shared + p.shared_bytes)
        fail("a bulk copy ends outside the shared memory", &where);
    const uint32_t base = shared_offset(tile);
    if (base % kTileAlignment != 0) fail("a bulk copy's tile is not aligned to 1024 bytes", &where);
    if (at.sequence < 0 || at.sequence >= map.sequences)
        fail(fmt::format("a bulk copy of sequence {} of {}", at.sequence, map.sequences), &where);
    BulkCopy copy{base, map.box_bytes(), {}};
    const std::byte* const sequence = map.data + at.sequence * map.sequence_stride * map.element_bytes;
    for (int row = 0; row < map.box_rows; ++row) {
        const int64_t y = at.row + row,
                      columns = std::min<int64_t>(TensorMap::kBoxRowBytes,
                                                  (map.columns - at.column) * map.element_bytes);  // bytes
        const bool inside = y >= 0 && y < map.rows && columns > 0;
        const std::byte* const from = sequence + (y * map.row_stride + at.column) * map.element_bytes;
        if (inside && options_.watch)
            note_access(Access::Kind::bulk_read, from, static_cast<size_t>(columns), nullptr);
        for (int chunk = 0; chunk < static_cast<int>(kSwizzledRow / kChunk); ++chunk) {
            const auto place = static_cast<uint32_t>(row * static_cast<int>(kSwizzledRow) +
                                                     (chunk ^ row % 8) * static_cast<int>(kChunk));
            std::array<std::byte, kChunk> bytes{};
            const int64_t begin = chunk * static_cast<int64_t>(kChunk),
                          valid = inside ? std::clamp<int64_t>(columns - begin, 0, kChunk) : 0;
            if (valid > 0) std::memcpy(bytes.data(), from + begin, static_cast<size_t>(valid));
            copy.chunks.emplace_back(base + place, bytes);
        }
    }
    if (options_.watch) options_.watch->bulk_begin(p.linear, b.key(), copy.to, copy.bytes);
    for (const auto& [place, bytes] : copy.chunks) {
        if (filling_[place / kChunk]) fail("a bulk copy into bytes that another one is writing", &where);
        filling_[place / kChunk] = true;
        arrivals_[place / kChunk] = {};
    }
    std::memset(to, static_cast<int>(kPoison), static_cast<size_t>(copy.bytes));
    b.copies.push_back(std::move(copy));
    if (!b.waiting.empty()) advance(b, where);
}

void Executor::check_bulk_copies() const {
    for (const auto& [offset, b] : mbarriers_) {
        if (!b.copies.empty())
            fail(fmt::format("{} bulk copies of the mbarrier at {} are in flight at the end of the block",
                             b.copies.size(), offset),
                 nullptr);
    }
}

bool Executor::removed(const Where& where) {
    return options_.watch && options_.watch->is_removed(*launch_, where);
}

void mbarrier_init(uint64_t* barrier, int arrivals, Where where) {
    executor().mbarrier_init(barrier, arrivals, where);
}
void mbarrier_publish(Where where) {
    if (!executor().removed(where)) executor().mbarrier_publish();
    fence_shared_proxy();
}
void mbarrier_arrive(uint64_t* barrier, Where where) {
    if (!executor().removed(where)) executor().mbarrier_arrive(barrier, 0, where);
}
void mbarrier_expect(uint64_t* barrier, int bytes, Where where) {
    if (!executor().removed(where)) executor().mbarrier_arrive(barrier, bytes, where);
}
void mbarrier_wait(uint64_t* barrier, int parity, Where where) {
    if (!executor().removed(where)) executor().mbarrier_wait(barrier, parity, where);
}
void copy_box(void* tile, const TensorMap& map, uint64_t* barrier, const BoxAt& at, Where where) {
    executor().copy_box(tile, map, barrier, at, where);
}

}  // namespace simt
}  // namespace speedrun
