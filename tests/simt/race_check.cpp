// build: in watch_tests
#include "tests/simt/race_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/device/error.h"

namespace speedrun::simt {

namespace {

constexpr uintptr_t kCellBytes = 2;  // no kernel splits cells of two bytes between threads
constexpr size_t kMaxMbarriers = 64;

}  // namespace

void RaceWatch::begin_launch(const Launch& launch) {
    kernel_ = kernel_name(launch);
    kernel_ = kernel_.substr(0, kernel_.find('<'));
    block_ = -1;
    device_.clear();
    published_.clear();
}

void RaceWatch::begin_block(unsigned num_threads, int64_t shared_bytes) {
    ++block_;
    block_epoch_ = 0;
    warp_epoch_.assign((num_threads + kWarpSize - 1) / kWarpSize, 0);
    clocked_ = false;
    clocks_.assign(num_threads, Clock(num_threads + kMaxMbarriers, 0));
    syncs_.clear();
    block_barrier_ = 0;
    warp_barriers_.assign(warp_epoch_.size(), 0);
    proxy_fences_.assign(num_threads, 0);
    fences_.clear();
    read_.clear();
    seen_.clear();
    shared_.assign((static_cast<size_t>(shared_bytes) + kCellBytes - 1) / kCellBytes, Cell{});
}

bool RaceWatch::races(const Mark& mark, const Mark& now) const {
    if (mark.block == kNone) return false;
    // Only cells of device memory keep accesses of other blocks: shared memory is new in each block.
    if (mark.block != now.block) return !ordered(mark, now);
    if (mark.thread == now.thread || mark.block_epoch < now.block_epoch) return false;
    if (mark.warp == now.warp && mark.warp_epoch < now.warp_epoch) return false;
    return !clocked_ || mark.thread < 0 ||
           clocks_[static_cast<size_t>(now.thread)][static_cast<size_t>(mark.thread)] < mark.access;
}

void RaceWatch::raise(Clock& clock, const Clock& to) {
    for (size_t i = 0; i < to.size(); ++i) clock[i] = std::max(clock[i], to[i]);
}

RaceWatch::Sync& RaceWatch::sync_of(int key) {
    const size_t size = proxy_fences_.size() + kMaxMbarriers;
    return syncs_.try_emplace(key, Sync{Clock(size, 0), Clock(size, 0)}).first->second;
}

void RaceWatch::block_barrier() {
    ++block_epoch_;
    block_barrier_ = num_accesses_;
}

void RaceWatch::warp_barrier(unsigned warp) {
    ++warp_epoch_[warp];
    warp_barriers_[warp] = num_accesses_;
    if (!clocked_) return;
    const auto first = clocks_.begin() + warp * kWarpSize, last = first + kWarpSize;
    for (auto lane = first + 1; lane != last; ++lane) raise(*first, *lane);
    std::fill(first + 1, last, *first);
}

void RaceWatch::release(unsigned thread, int key) {
    clocked_ = true;
    Clock& clock = clocks_[thread];
    const unsigned warp = thread / kWarpSize;
    for (unsigned other = 0; other < clocks_.size(); ++other) {
        const int64_t barrier =
            other / kWarpSize == warp ? std::max(warp_barriers_[warp], block_barrier_) : block_barrier_;
        clock[other] = std::max(clock[other], barrier);
    }
    clock[thread] = num_accesses_;
    raise(sync_of(key).arrived, clock);
}

void RaceWatch::phase_end(int key) {
    Sync& sync = sync_of(key);
    sync.complete = sync.arrived;
}

void RaceWatch::acquire(unsigned thread, int key) {
    raise(clocks_[thread], sync_of(key).complete);
}

RaceWatch::Mark RaceWatch::mark_of(unsigned thread) const {
    const auto warp = static_cast<int>(thread) / kWarpSize;
    return {block_, block_epoch_, warp_epoch_[static_cast<size_t>(warp)], static_cast<int>(thread),
            warp,   num_accesses_};
}

void RaceWatch::bulk_begin(unsigned thread, int key, uintptr_t to, int bytes) {
    if (static_cast<size_t>(key) >= kMaxMbarriers)
        throw_internal("more than {} mbarriers in a block", kMaxMbarriers);
    clocked_ = true;
    ++num_accesses_;
    const Mark now = mark_of(thread);
    for (uintptr_t at = to; at < to + static_cast<uintptr_t>(bytes); at += kCellBytes) {
        Cell& cell = shared_[at / kCellBytes];
        const Access access{Access::Kind::copy_begin,     true,    at,
                            static_cast<int>(kCellBytes), nullptr, thread};
        if (cell.in_flight)
            report("starts a bulk copy into bytes that a copy is writing", access, cell.writer, at);
        if (races(cell.writer, now))
            report("starts a bulk copy that races with a write", access, cell.writer, at);
        check_proxy(cell, access, at);
        check_readers(cell, access, now, at);
        cell.readers.clear();
        cell.writer = now;
        cell.writer.thread = agent_of(key);
        cell.writer.warp = -1 - key;
        cell.in_flight = true;
    }
}

void RaceWatch::bulk_end(int key, uintptr_t to, int bytes) {
    ++num_accesses_;
    for (uintptr_t at = to; at < to + static_cast<uintptr_t>(bytes); at += kCellBytes) {
        Cell& cell = shared_[at / kCellBytes];
        cell.in_flight = false;
        cell.writer.block_epoch = block_epoch_;
        cell.writer.access = num_accesses_;
    }
    sync_of(key).arrived[static_cast<size_t>(agent_of(key))] = num_accesses_;
}

void RaceWatch::check_proxy(const Cell& cell, const Access& access, uintptr_t address) const {
    const auto writer = static_cast<size_t>(cell.writer.thread);
    if (cell.writer.block == block_ && writer < proxy_fences_.size() &&
        cell.writer.access > proxy_fences_[writer])
        report("reaches, by a matmul or a bulk copy, a write without fence.proxy.async:", access, cell.writer,
               address);
}

void RaceWatch::note_reader(Cell& cell, const Mark& now) {
    const auto own = std::find_if(cell.readers.begin(), cell.readers.end(), [&](const Mark& m) {
        return m.thread == now.thread && m.block == now.block;
    });
    if (own != cell.readers.end())
        *own = now;
    else
        cell.readers.push_back(now);
}

void RaceWatch::check_readers(const Cell& cell, const Access& access, const Mark& now,
                              uintptr_t address) const {
    const char* const message = "overwrites bytes that others still read";
    if (races(cell.reader, now)) report(message, access, cell.reader, address);
    for (const Mark& reader : cell.readers) {
        if (races(reader, now)) report(message, access, reader, address);
    }
}

bool RaceWatch::ordered(const Mark& mark, const Mark& now) const {
    const auto found = seen_.find(mark.block);
    if (found == seen_.end()) return false;
    const auto& [fence, epoch, thread] = found->second;
    const bool before =
        mark.block_epoch < fence.block_epoch || (mark.thread == fence.thread && mark.access <= fence.access);
    return before && (now.thread == thread || now.block_epoch > epoch);
}

void RaceWatch::fence(unsigned thread) {
    const auto self = static_cast<int>(thread);
    fences_[thread] = {block_, block_epoch_, self, num_accesses_};
    for (const Fence& fence : std::exchange(read_[thread], {}))
        seen_[fence.block] = {fence, block_epoch_, self};
}

void RaceWatch::atomic(unsigned thread, uintptr_t address) {
    std::vector<Fence>& published = published_[address];
    std::vector<Fence>& read = read_[thread];
    read.insert(read.end(), published.begin(), published.end());
    if (const auto own = fences_.find(thread); own != fences_.end()) published.push_back(own->second);
}

void RaceWatch::access(const Access& access) {
    ++num_accesses_;
    const Mark now = mark_of(access.thread);
    if (access.bytes % static_cast<int>(kCellBytes) != 0)
        report("an access of single bytes, which are not checked,", access, {}, access.address);
    for (uintptr_t at = access.address; at < access.address + static_cast<uintptr_t>(access.bytes);
         at += kCellBytes)
        touch(access.shared ? shared_[at / kCellBytes] : device_[at / kCellBytes], access, now, at);
}

void RaceWatch::touch(Cell& cell, const Access& access, const Mark& now, uintptr_t address) {
    if (access.kind == Access::Kind::copy_end) {
        cell.in_flight = false;
        cell.writer = now;  // from now on for this thread, for others after a barrier
        return;
    }
    if (cell.in_flight)
        report("touches bytes that an asynchronous copy is writing", access, cell.writer, address);
    if (races(cell.writer, now)) report("races with a write", access, cell.writer, address);
    if (access.kind == Access::Kind::product) check_proxy(cell, access, address);
    if (access.kind != Access::Kind::write && access.kind != Access::Kind::copy_begin) {
        if (access.shared && cell.writer.block == kNone)
            report("reads shared memory that nobody has written", access, {}, address);
        if (clocked_) return note_reader(cell, now);
        // One mark represents all readers since the last barrier: one thread, one warp, or many.
        Mark& reader = cell.reader;
        if (reader.block == kNone || reader.block != now.block || reader.block_epoch < now.block_epoch) {
            const bool other_block = reader.block != kNone && reader.block != now.block;
            reader = now;
            if (other_block) reader.warp = reader.thread = kMany, reader.block = kMany;
        } else if (reader.warp != now.warp) {
            reader.warp = reader.thread = kMany;
        } else if (reader.warp_epoch < now.warp_epoch) {
            reader = now;
        } else if (reader.thread != now.thread) {
            reader.thread = kMany;
        }
        return;
    }
    check_readers(cell, access, now, address);
    cell.readers.clear();
    cell.writer = now;
    cell.in_flight = access.kind == Access::Kind::copy_begin;
}

void RaceWatch::report(const char* what, const Access& access, const Mark& other, uintptr_t address) const {
    const std::string writer = other.thread >= static_cast<int>(proxy_fences_.size())
                                   ? fmt::format(" (a bulk copy of mbarrier {})", other.thread - agent_of(0))
                               : other.thread >= 0
                                   ? fmt::format(" (thread {} of block {})", other.thread, other.block)
                               : other.thread == kMany ? " (several threads)"
                                                       : "";
    throw_internal("race in {}: thread {} of block {} {}{}: {} memory at {:#x}", kernel_, access.thread,
                   block_, what, writer, access.shared ? "shared" : "device", address);
}

bool RaceWatch::is_removed(const Launch& /*launch*/, Where where) {
    const std::string file = where.file_name();
    const Barrier barrier{kernel_, fmt::format("{}:{}", file.substr(file.rfind('/') + 1), where.line())};
    barriers_.insert(barrier);
    return barrier == removed_;
}

}  // namespace speedrun::simt
