// build: in watch_tests
#include "tests/simt/race_check.h"

#include <fmt/format.h>

#include "kernels/device/error.h"

namespace speedrun::simt {

namespace {

constexpr uintptr_t kCellBytes = 2;  // no kernel splits cells of two bytes between threads

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
    return mark.warp != now.warp || mark.warp_epoch == now.warp_epoch;
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
    const int warp = static_cast<int>(access.thread) / kWarpSize;
    const Mark now{
        block_, block_epoch_, warp_epoch_[static_cast<size_t>(warp)], static_cast<int>(access.thread),
        warp,   num_accesses_};
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
    if (cell.in_flight) report("touches what an asynchronous copy is writing", access, cell.writer, address);
    if (races(cell.writer, now)) report("races with a write", access, cell.writer, address);
    if (access.kind == Access::Kind::read || access.kind == Access::Kind::product) {
        if (access.shared && cell.writer.block == kNone)
            report("reads shared memory that nobody has written", access, {}, address);
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
    if (races(cell.reader, now)) report("overwrites what others still read", access, cell.reader, address);
    cell.writer = now;
    cell.in_flight = access.kind == Access::Kind::copy_begin;
}

void RaceWatch::report(const char* what, const Access& access, const Mark& other, uintptr_t address) const {
    const std::string writer = other.thread >= 0
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
