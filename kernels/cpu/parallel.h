// Parallel loops of CPU kernels, on the team of their stream. CPU kernels use threads in no other way.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/team.h"

namespace speedrun::cpu {

// Pieces of a loop: enough to balance threads that are delayed by other work.
constexpr int64_t kLoopPieces = 32;

inline int team_size() {
    const Team* team = current_team();
    return team ? team->size() : 1;
}

// While it lives, loops of the calling thread run on it alone: for pieces of a loop that contain loops.
class AloneScope {
  public:
    AloneScope() : team_(current_team()) { set_current_team(nullptr); }
    ~AloneScope() { set_current_team(team_); }
    AloneScope(const AloneScope&) = delete;
    AloneScope& operator=(const AloneScope&) = delete;

  private:
    Team* const team_;
};

template <class Body>
void run_piece(const void* body, int64_t begin, int64_t end, int /*member*/) {
    const Body& each = *static_cast<const Body*>(body);
    for (int64_t i = begin; i < end; ++i) each(i);
}

// Calls body(i) for i in [0, count), in contiguous pieces. The assignment of i to threads never changes a
// result: bodies write disjoint memory and reduce in a fixed order.
template <class Body>
void parallel_for(int64_t count, const Body& body, int64_t pieces = kLoopPieces) {
    if (Team* team = current_team()) return team->run(count, pieces, run_piece<Body>, &body);
    for (int64_t i = 0; i < count; ++i) body(i);
}

// Calls body(begin, size) for blocks of a flat array; the blocks are the same for any number of threads.
template <class Body>
void for_blocks(int64_t count, const Body& body) {
    parallel_for(ceil_div(count, kBlock),
                 [&](int64_t block) { body(block * kBlock, std::min(kBlock, count - block * kBlock)); });
}

// parallel_for with pieces of one index, for items of unequal cost.
template <class Body>
void parallel_for_dynamic(int64_t count, const Body& body) {
    parallel_for(count, body, count);
}

}  // namespace speedrun::cpu
