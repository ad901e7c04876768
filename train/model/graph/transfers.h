// Which steps of a program send rows to other ranks beside the work of other steps, and who waits for them.
#pragma once

#include <set>
#include <vector>

#include "train/model/graph/gradient_places.h"
#include "train/model/graph/program.h"

namespace speedrun {

// Told of a program's steps in the order in which they are enqueued, before each joins its list. A transfer is under way
// from its step, or from the one before if that hands over its rows in pieces, to the first step that touches what it
// reads or writes: for as long, all that it touches keeps its memory.
class Transfers {
  public:
    explicit Transfers(Storages& storages) : storages_(storages) {}

    // `before`: the steps of the same pass so far.
    void add(Step& step, std::vector<Step>& before);
    // What is still under way is waited for at this step.
    std::vector<int> join(int step);
    std::vector<Transfer> take() { return std::move(transfers_); }

  private:
    struct UnderWay {
        int transfer;
        int target;  // the storage in which it arrives
        std::set<int> touched;
    };
    void settle(Step& step, const std::set<int>& touched);
    void begin(Step& step, const std::set<int>& touched, std::vector<Step>& before);

    Storages& storages_;
    std::vector<Transfer> transfers_;
    std::vector<UnderWay> under_way_;
};

}  // namespace speedrun
