// The one way in which CPU kernels use threads: the team of the stream that they run on.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/team.h"

namespace speedrun::cpu {

// Pieces that a loop is cut into: enough to even out what one thread loses to other work.
constexpr int64_t kLoopPieces = 32;

inline int team_size() {
    const Team* team = current_team();
    return team ? team->size() : 1;
}

// The calling thread's loops run on it alone while this lives: for pieces of a loop that have loops of their own.
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

// Calls body(i) for i in [0, count), in contiguous pieces. Which thread runs which i never changes a result:
// bodies write disjoint memory and reduce in a fixed order.
template <class Body>
void parallel_for(int64_t count, const Body& body, int64_t pieces = kLoopPieces) {
    if (Team* team = current_team()) return team->run(count, pieces, run_piece<Body>, &body);
    for (int64_t i = 0; i < count; ++i) body(i);
}

// Calls body(begin, size) for a flat array in blocks that are the same for any number of threads.
template <class Body>
void for_blocks(int64_t count, const Body& body) {
    parallel_for(ceil_div(count, kBlock),
                 [&](int64_t block) { body(block * kBlock, std::min(kBlock, count - block * kBlock)); });
}

// parallel_for, handed out one by one: for items of unequal cost.
template <class Body>
void parallel_for_dynamic(int64_t count, const Body& body) {
    parallel_for(count, body, count);
}

}  // namespace speedrun::cpu
