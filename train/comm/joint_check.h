// Errors that all ranks meet together, so that the user reads them once.
#pragma once

#include <functional>

#include "train/comm/communicator.h"

namespace speedrun {

// Thrown by every rank at the same point, with the same text and code: nobody is left waiting, and run_rank
// lets one rank print it.
class JointError final : public Error {
  public:
    using Error::Error;
};

// Runs `check` on all ranks; if it throws Error on any, throws JointError on all: the text alone if all say
// the same, else each text with the rank it comes from, lowest first, and that rank's exit code. The check
// must not wait for other ranks.
void check_together(World& world, const std::function<void()>& check);
// As above; a null world is one rank alone.
void check_together(World* world, const std::function<void()>& check);

// Does the same, on a thread, with work that may take some ranks longer than the timeout of lost peers (a slow disk):
// meanwhile all ranks exchange messages.
void work_together(World& world, const std::function<void()>& work);

}  // namespace speedrun
