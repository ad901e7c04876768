// Errors found by several ranks, reported to the user once.
#pragma once

#include <functional>

#include "train/comm/communicator.h"

namespace speedrun {

// Thrown by every rank at the same point, with the same text and code. No rank is left waiting, and run_rank prints it on one
// rank.
class JointError final : public Error {
  public:
    using Error::Error;
};

// Runs `check` on all ranks. If it throws Error on any rank, throws JointError on all: the text alone if it is the same on all
// ranks, else each text with its rank, lowest rank first, and that rank's exit code. The check must not wait for other ranks.
void check_together(World& world, const std::function<void()>& check);
// As above; a null world is a single rank.
void check_together(World* world, const std::function<void()>& check);

// As above, for work that may take longer on some ranks than the timeout for lost peers (a slow disk). The work runs on a
// thread, while all ranks exchange messages.
void work_together(World& world, const std::function<void()>& work);

}  // namespace speedrun
