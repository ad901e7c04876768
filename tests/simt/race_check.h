// Finds unordered accesses of a launch, to shared memory, and to device memory inside one launch.
//
// Two threads' accesses to one byte, at least one of them a write, need a barrier between them: a block barrier or,
// in one warp, a __syncwarp of all its lanes. Accesses of different blocks are ordered only by fences and atomics. A
// fence followed by an atomic orders earlier accesses of its thread, and accesses of its block before the preceding
// barrier. They precede accesses of a thread that observes this atomic with one of its own and then fences. Source:
// PTX ISA, "Memory Consistency Model", fence-fence synchronization.
//
// Mbarriers and named barriers order accesses before an arrival and those after a wait for its phase: each thread has a vector
// clock of the accesses that precede its next one. A bulk copy is a write by its mbarrier, as if by a further thread. Matmuls and bulk
// copies are in another proxy: plain writes precede them only with fence.proxy.async by the writing thread.
//
// An asynchronous copy is a write from its start until its thread has waited for it. Reads of shared memory that the
// block has not written are reported, too. Stricter than CUDA: shuffles do not order memory, and two threads that
// write equal values race. Less strict: atomics never race, even with plain accesses of their word.
#pragma once

#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/simt/watch.h"

namespace speedrun::simt {

class RaceWatch final : public Watch {
  public:
    // A barrier: the kernel's name without template arguments, and the location of the call in its file.
    struct Barrier {
        std::string kernel, place;
        auto operator<=>(const Barrier&) const = default;
    };
    // Barriers that launches have reached.
    const std::set<Barrier>& barriers() const { return barriers_; }
    int64_t num_accesses() const { return num_accesses_; }
    // Runs later launches without this barrier; an empty one: unchanged.
    void remove(Barrier barrier) { removed_ = std::move(barrier); }

    void begin_launch(const Launch& launch) override;
    void begin_block(unsigned num_threads, int64_t shared_bytes) override;
    void access(const Access& access) override;
    void block_barrier() override;
    void warp_barrier(unsigned warp) override;
    void release(unsigned thread, int key) override;
    void phase_end(int key) override;
    void acquire(unsigned thread, int key) override;
    void proxy_fence(unsigned thread) override { proxy_fences_[thread] = num_accesses_; }
    void bulk_begin(unsigned thread, int key, uintptr_t to, int bytes) override;
    void bulk_end(int key, uintptr_t to, int bytes) override;
    void mma(unsigned /*thread*/) override {}
    void fence(unsigned thread) override;
    void atomic(unsigned thread, uintptr_t address) override;
    void end_block() override {}
    void end_launch() override { device_.clear(); }
    bool is_removed(const Launch& launch, Where barrier) override;

  private:
    static constexpr int kNone = -1, kMany = -2;
    // Time and thread of an access: the latest writer, or the readers since. Epochs count barriers passed.
    struct Mark {
        int64_t block = kNone;
        int block_epoch = 0, warp_epoch = 0;
        int thread = kNone, warp = kNone;
        int64_t access = 0;  // index of the access
    };
    // A fence orders earlier accesses of its thread and, for its block, the accesses before the preceding
    // barrier. Holds the index of the latest such access.
    struct Fence {
        int64_t block = kNone;
        int block_epoch = 0, thread = kNone;
        int64_t access = 0;
    };
    // Latest access of another block that is known to be complete: to the thread that has observed it and,
    // after a barrier, to its block.
    struct Seen {
        Fence fence;
        int block_epoch, thread;
    };
    bool ordered(const Mark& mark, const Mark& now) const;
    struct Cell {
        Mark writer, reader;
        bool in_flight = false;
        std::vector<Mark> readers;  // one per thread, instead of `reader` in blocks with vector clocks
    };
    // For each thread, then each mbarrier: index of its latest access that precedes.
    using Clock = std::vector<int64_t>;
    struct Sync {
        Clock arrived, complete;  // all arrivals; arrivals of complete phases
    };
    static void raise(Clock& clock, const Clock& to);
    Mark mark_of(unsigned thread) const;
    int agent_of(int key) const { return static_cast<int>(proxy_fences_.size()) + key; }
    Sync& sync_of(int key);
    void note_reader(Cell& cell, const Mark& now);
    void check_proxy(const Cell& cell, const Access& access, uintptr_t address) const;
    void check_readers(const Cell& cell, const Access& access, const Mark& now, uintptr_t address) const;
    // True if `mark` is of another thread and nothing orders it before `now`.
    bool races(const Mark& mark, const Mark& now) const;
    void touch(Cell& cell, const Access& access, const Mark& now, uintptr_t address);
    [[noreturn]] void report(const char* what, const Access& access, const Mark& other,
                             uintptr_t address) const;

    std::string kernel_;  // name of the running launch's kernel
    std::set<Barrier> barriers_;
    Barrier removed_;
    int64_t num_accesses_ = 0;
    int64_t block_ = 0;
    int block_epoch_ = 0;
    std::vector<int> warp_epoch_;
    bool clocked_ = false;  // the block has used an mbarrier or a named barrier
    std::vector<Clock> clocks_;
    std::map<int, Sync> syncs_;
    int64_t block_barrier_ = 0;           // accesses before the last block barrier …
    std::vector<int64_t> warp_barriers_;  // … and the last barrier of each warp
    std::vector<int64_t> proxy_fences_;   // … and the last proxy fence of each thread
    std::unordered_map<uintptr_t, std::vector<Fence>> published_;  // key: address of the atomic
    // Last fence of each thread of the running block, and the fences that its atomics have observed since.
    std::unordered_map<unsigned, Fence> fences_;
    std::unordered_map<unsigned, std::vector<Fence>> read_;
    std::unordered_map<int64_t, Seen> seen_;  // key: index of the other block
    std::vector<Cell> shared_;
    std::unordered_map<uintptr_t, Cell> device_;
};

}  // namespace speedrun::simt
