// Reads the machine before and after a run of an attempt, on all hosts of its ranks.
#pragma once

#include <set>
#include <string>

#include "train/comm/communicator.h"
#include "train/runlog/machine_state.h"

namespace speedrun {

class MachineWatch {
  public:
    explicit MachineWatch(World& world);  // collective
    // State since the beginning, of the host that was disturbed most. Collective.
    MachineState end();

  private:
    World& world_;
    std::set<int> cores_;  // cores of all ranks on this host; empty: all
    MachineCounters begin_;
};

}  // namespace speedrun
