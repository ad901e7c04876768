#include "kernels/cpu/team.h"

#include <algorithm>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace speedrun::cpu {

namespace {

// Rounds of waiting before a helper sleeps: about 50 µs, longer than the gap between two operations and
// shorter than what anybody would miss on the core.
constexpr int kSpins = 2000;

thread_local Team* team_of_thread = nullptr;
thread_local int member_of_thread = 0;

void pause() {
#ifdef __x86_64__
    _mm_pause();
#else
    std::this_thread::yield();
#endif
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
    for (int member = 1; member < size; ++member) helpers_.emplace_back([this, member] { help(member); });
}

Team::~Team() {
    stop_ = true;
    posted_.fetch_add(1);
    posted_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
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
    // Those who joined are in their last pieces.
    while ((state_.load(std::memory_order_acquire) & (kLoop - 1)) != 0) pause();
}

// A member's own pieces first, so that the same thread meets the same rows in loop after loop; then what
// others left.
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
    uint64_t done = 0;  // the last loop that this thread has helped with
    while (!stop_) {
        const uint32_t posted = posted_.load();
        uint64_t state = state_.load(std::memory_order_acquire);
        if ((state & kOpen) != 0 && state / kLoop != done) {
            if (!state_.compare_exchange_strong(state, state + 1, std::memory_order_acquire)) continue;
            done = state / kLoop;
            work(member);
            state_.fetch_sub(1, std::memory_order_release);
            continue;
        }
        int spins = 0;
        while (posted_.load(std::memory_order_relaxed) == posted && spins < kSpins) {
            pause();
            ++spins;
        }
        if (spins == kSpins) posted_.wait(posted);
    }
}

}  // namespace speedrun::cpu
