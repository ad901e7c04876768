// The threads that share the loops of a CPU device. A loop never waits for a thread that has not begun to
// help: whoever starts it works through all of it, and the others take pieces if they are awake in time. So a
// core that is busy elsewhere costs its help and not a stall, and a loop of microseconds pays for no wake-up.
// Whoever waits spins for some microseconds and then sleeps: a thread that the scheduler has put aside in the
// middle of a piece may have the core.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace speedrun::cpu {

// Calls a body for the items [begin, end); `member` is the number of the executing thread in its team.
using Piece = void (*)(const void* body, int64_t begin, int64_t end, int member);

class Team {
  public:
    // size: threads that work on one loop, its starter included; at least 1.
    explicit Team(int size);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const { return static_cast<int>(helpers_.size()) + 1; }
    // Calls piece for [0, count), cut into at most `pieces` contiguous ranges, and returns when all have run.
    // One loop at a time has the helpers: a second one, from another stream, is run by its starter alone.
    // Bodies must not throw.
    void run(int64_t count, int64_t pieces, Piece piece, const void* body);

  private:
    // The pieces that a member takes first, one after the other; on a cache line of its own.
    struct alignas(64) Share {
        std::atomic<int64_t> next{0};
        int64_t end = 0;
    };

    void help(int member);
    void work(int member);
    void wait_for_helpers();

    // Low half: helpers at work, and kOpen while they may join; high half: the number of the loop.
    static constexpr uint64_t kOpen = 1u << 31;
    static constexpr uint64_t kLoop = uint64_t{1} << 32;
    alignas(64) std::atomic<uint64_t> state_{0};
    alignas(64) std::atomic<uint32_t> posted_{0};  // what sleeping helpers watch
    alignas(64) std::atomic<uint32_t> left_{0};    // what a starter watches that sleeps
    std::atomic<bool> starter_sleeps_{false};
    std::atomic<bool> stop_{false};

    std::mutex busy_;  // held by the starter of the loop that has the helpers
    Piece piece_ = nullptr;
    const void* body_ = nullptr;
    int64_t count_ = 0, pieces_ = 0;
    std::unique_ptr<Share[]> shares_;
    std::vector<std::thread> helpers_;
};

// The team whose loops the calling thread starts; none: the thread works alone.
Team* current_team();
void set_current_team(Team* team);
// The number of the calling thread in the team that it works for, 0 where it works alone.
int member_index();

}  // namespace speedrun::cpu
