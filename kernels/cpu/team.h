// Threads that share the loops of a CPU device. A loop never waits for a thread that has not begun to help:
// its starter works through all pieces, and awake helpers take some. So a busy core costs its help but no
// stall, and a loop of microseconds needs no wake-up. A waiting thread spins for some microseconds, then
// sleeps: a thread preempted in the middle of a piece may need the core.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace speedrun::cpu {

// Calls a body for the items [begin, end); `member` is the index of the executing thread in its team.
using Piece = void (*)(const void* body, int64_t begin, int64_t end, int member);

class Team {
  public:
    // size: threads that work on one loop, including its starter; at least 1.
    explicit Team(int size);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const { return static_cast<int>(helpers_.size()) + 1; }
    // Calls piece for [0, count), cut into at most `pieces` contiguous ranges, and returns when all have run.
    // Only one loop at a time has the helpers: a concurrent one, from another stream, runs on its starter
    // alone. Bodies must not throw.
    void run(int64_t count, int64_t pieces, Piece piece, const void* body);

  private:
    // Pieces that a member runs first, in order; on its own cache line.
    struct alignas(64) Share {
        std::atomic<int64_t> next{0};
        int64_t end = 0;
    };

    void help(int member);
    void work(int member);
    void wait_for_helpers();

    // Low half: number of helpers at work, plus kOpen while they may join; high half: the loop's number.
    static constexpr uint64_t kOpen = 1u << 31;
    static constexpr uint64_t kLoop = uint64_t{1} << 32;
    alignas(64) std::atomic<uint64_t> state_{0};
    alignas(64) std::atomic<uint32_t> posted_{0};  // sleeping helpers wait on it
    alignas(64) std::atomic<uint32_t> left_{0};    // a sleeping starter waits on it
    std::atomic<bool> starter_sleeps_{false};
    std::atomic<bool> stop_{false};

    std::mutex busy_;  // held by the starter of the loop that has the helpers
    Piece piece_ = nullptr;
    const void* body_ = nullptr;
    int64_t count_ = 0, pieces_ = 0;
    std::unique_ptr<Share[]> shares_;
    std::vector<std::thread> helpers_;
};

// Team of the calling thread's loops; null: the thread works alone.
Team* current_team();
void set_current_team(Team* team);
// Index of the calling thread in its team; 0 if it works alone.
int member_index();

}  // namespace speedrun::cpu
