// Finds accesses of a launch that nothing orders: to shared memory, and to device memory inside one launch.
// Two threads' accesses to one byte, at least one of them a write, need a block barrier between them, or, in
// one warp, a __syncwarp of all its lanes. Threads of different blocks are ordered by fences and atomics alone: what a thread
// has done, or others of its block before a barrier, and then a fence and an atomic, comes before what a thread does
// that has seen that atomic by one of its own and then fences (PTX ISA, "Memory Consistency Model": fence-fence synchronisation).
// Asynchronous copies are writes from their start until their thread has waited for them. Reads of shared memory that the block
// has not written are found, too. Stricter than CUDA: shuffles order nothing, and equal values written by two
// threads are a race. Laxer: an atomic never races, as with plain accesses of its word.
#pragma once

#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/simt/watch.h"

namespace speedrun::simt {

class RaceWatch final : public Watch {
  public:
    // A barrier: the kernel's name without template arguments, and the place of the call in its file.
    struct Barrier {
        std::string kernel, place;
        auto operator<=>(const Barrier&) const = default;
    };
    // Those that launches have come to.
    const std::set<Barrier>& barriers() const { return barriers_; }
    int64_t num_accesses() const { return num_accesses_; }
    // Runs launches from here on as if this barrier were not there; an empty one: as written.
    void remove(Barrier barrier) { removed_ = std::move(barrier); }

    void begin_launch(const Launch& launch) override;
    void begin_block(unsigned num_threads, int64_t shared_bytes) override;
    void access(const Access& access) override;
    void block_barrier() override { ++block_epoch_; }
    void warp_barrier(unsigned warp) override { ++warp_epoch_[warp]; }
    void mma(unsigned /*thread*/) override {}
    void fence(unsigned thread) override;
    void atomic(unsigned thread, uintptr_t address) override;
    void end_block() override {}
    void end_launch() override { device_.clear(); }
    bool is_removed(const Launch& launch, Where barrier) override;

  private:
    static constexpr int kNone = -1, kMany = -2;
    // When and by whom: the latest writer or the readers since. Epochs count barriers passed.
    struct Mark {
        int64_t block = kNone;
        int block_epoch = 0, warp_epoch = 0;
        int thread = kNone, warp = kNone;
        int64_t access = 0;  // its number
    };
    // A fence: what comes before it in its thread, and, of its block, before the barrier before it. The number of the latest access.
    struct Fence {
        int64_t block = kNone;
        int block_epoch = 0, thread = kNone;
        int64_t access = 0;
    };
    // One of another block that is known to be past; to the thread that has seen it and, behind a barrier, to its block.
    struct Seen {
        Fence fence;
        int block_epoch, thread;
    };
    bool ordered(const Mark& mark, const Mark& now) const;
    struct Cell {
        Mark writer, reader;
        bool in_flight = false;
    };
    // Is `mark` of another thread, with nothing between it and now?
    bool races(const Mark& mark, const Mark& now) const;
    void touch(Cell& cell, const Access& access, const Mark& now, uintptr_t address);
    [[noreturn]] void report(const char* what, const Access& access, const Mark& other,
                             uintptr_t address) const;

    std::string kernel_;  // of the running launch
    std::set<Barrier> barriers_;
    Barrier removed_;
    int64_t num_accesses_ = 0;
    int64_t block_ = 0;
    int block_epoch_ = 0;
    std::vector<int> warp_epoch_;
    std::unordered_map<uintptr_t, std::vector<Fence>> published_;  // by an atomic's address
    // What each thread of the running block fenced last, and which fences its atomics have read since.
    std::unordered_map<unsigned, Fence> fences_;
    std::unordered_map<unsigned, std::vector<Fence>> read_;
    std::unordered_map<int64_t, Seen> seen_;  // by the other block
    std::vector<Cell> shared_;
    std::unordered_map<uintptr_t, Cell> device_;
};

}  // namespace speedrun::simt
