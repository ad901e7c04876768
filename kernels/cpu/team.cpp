#include "kernels/cpu/team.h"

#include <algorithm>
#include <chrono>
#include <string>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "kernels/device/start_thread.h"

namespace speedrun::cpu {

namespace {

// Time that a thread spins, in ticks of the time-stamp counter (2 to 4 per ns): about 30 µs. Longer than the
// gap between two operations, and too short to matter to other processes. The pause instruction takes 10
// times as long on some processors, so its count is no measure.
constexpr uint64_t kAwakeTicks = 100'000;

thread_local Team* team_of_thread = nullptr;
thread_local int member_of_thread = 0;

void pause() {
#ifdef __x86_64__
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

uint64_t ticks() {
#ifdef __x86_64__
    return __rdtsc();
#else
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(3 * std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
#endif
}

// Spins until done() or a time limit; returns done().
template <class Done>
bool spin(Done&& done) {
    const uint64_t start = ticks();
    while (!done()) {
        if (ticks() - start > kAwakeTicks) return false;
        pause();
    }
    return true;
}

// Stops and joins helpers that sleep until `posted` changes.
void end_all(std::atomic<bool>& stop, std::atomic<uint32_t>& posted, std::vector<std::thread>& helpers) {
    stop = true;
    posted.fetch_add(1);
    posted.notify_all();
    for (std::thread& helper : helpers) helper.join();
}

}  // namespace

Team* current_team() {
    return team_of_thread;
}
void set_current_team(Team* team) {
    team_of_thread = team;
}
int member_index() {
    return member_of_thread;
}

Team::Team(int size) : shares_(std::make_unique<Share[]>(static_cast<size_t>(std::max(size, 1)))) {
    try {
        for (int member = 1; member < size; ++member)
            helpers_.push_back(
                start_thread("worker " + std::to_string(member + 1) + " of " + std::to_string(size),
                             [this, member] { help(member); }));
    } catch (...) {
        end_all(stop_, posted_, helpers_);
        throw;
    }
}

Team::~Team() {
    end_all(stop_, posted_, helpers_);
}

void Team::run(int64_t count, int64_t pieces, Piece piece, const void* body) {
    pieces = std::min(count, pieces);
    std::unique_lock busy(busy_, std::defer_lock);
    if (pieces < 2 || helpers_.empty() || member_of_thread != 0 || !busy.try_lock()) {
        if (count > 0) piece(body, 0, count, member_of_thread);
        return;
    }
    piece_ = piece;
    body_ = body;
    count_ = count;
    pieces_ = pieces;
    for (int member = 0; member < size(); ++member) {
        shares_[member].next.store(pieces * member / size(), std::memory_order_relaxed);
        shares_[member].end = pieces * (member + 1) / size();
    }
    state_.fetch_add(kLoop | kOpen, std::memory_order_release);
    posted_.fetch_add(1);
    posted_.notify_all();

    work(0);
    state_.fetch_and(~kOpen);
    wait_for_helpers();
}

// Helpers that have joined are in their last pieces.
void Team::wait_for_helpers() {
    const auto done = [this] { return (state_.load(std::memory_order_acquire) & (kLoop - 1)) == 0; };
    if (spin(done)) return;
    starter_sleeps_ = true;
    for (;;) {
        const uint32_t left = left_.load();
        if (done()) break;
        left_.wait(left);
    }
    starter_sleeps_ = false;
}

// A member first runs its own pieces, so that the same thread reads the same rows in each loop. Then it runs
// the remaining pieces.
void Team::work(int member) {
    for (int turn = 0; turn < size(); ++turn) {
        Share& share = shares_[(member + turn) % size()];
        for (;;) {
            if (share.next.load(std::memory_order_relaxed) >= share.end) break;
            const int64_t index = share.next.fetch_add(1, std::memory_order_relaxed);
            if (index >= share.end) break;
            piece_(body_, count_ * index / pieces_, count_ * (index + 1) / pieces_, member);
        }
    }
}

void Team::help(int member) {
    member_of_thread = member;
    uint64_t done = 0;  // number of the last loop that this thread has joined
    for (;;) {
        // Load first: posted_ changes after the state does, so the wait below returns.
        const uint32_t posted = posted_.load();
        if (stop_) return;
        uint64_t state = state_.load(std::memory_order_acquire);
        if ((state & kOpen) != 0 && state / kLoop != done) {
            if (!state_.compare_exchange_strong(state, state + 1, std::memory_order_acquire)) continue;
            done = state / kLoop;
            work(member);
            // left_ changes after state_, so that a sleeping starter sees the last helper leave.
            state_.fetch_sub(1);
            left_.fetch_add(1);
            if (starter_sleeps_) left_.notify_all();
            continue;
        }
        if (!spin([&] { return posted_.load(std::memory_order_relaxed) != posted; })) posted_.wait(posted);
    }
}

}  // namespace speedrun::cpu
