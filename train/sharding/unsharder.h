// Unsharder: parameters that are stored sharded (zero3), gathered for as long as compute reads them. What a
// stage of a microbatch (lifetimes.h) reads is gathered while the stage before it computes, into memory that
// is free from there on.
#pragma once

#include <memory>
#include <vector>

#include "kernels/runtime/graph_capture.h"
#include "train/sharding/reducer.h"
#include "train/trace/timeline.h"

namespace speedrun {

class Unsharder {
  public:
    // What it is given must outlive it.
    Unsharder(const ParameterTable& table, ParameterStore& parameters, Reducer& reducer, Runtime& runtime,
              GraphCapture& capture);

    bool active() const { return parameters_.stored_sharded(); }

    // By bucket: the event of its last step.
    using Updated = std::vector<std::unique_ptr<Event>>;
    // Before the work of a unit's stage is enqueued: compute waits for what it reads, and the gathers of the
    // next stage are enqueued.
    void enter(int unit, Pass pass, const Updated& updated);
    void trace(Timeline* timeline) { timeline_ = timeline; }
    // What has been gathered is out of date.
    void forget();

  private:
    static constexpr int kNone = -1;
    void fetch_missing(int stage, const Updated& updated);
    void fetch_ahead(int stage, const Updated& updated);
    void fetch(const Bucket& bucket, int lifetime, const Event& updated);
    int lifetime_at(int id, int stage) const;  // kNone: not read then

    const BucketLayout& layout_;
    ParameterStore& parameters_;
    Reducer& reducer_;
    Runtime& runtime_;
    GraphCapture& capture_;
    const Stages stages_;
    std::vector<std::vector<Lifetime>> reads_;           // by bucket
    std::vector<int> here_;                              // by bucket: the lifetime it is gathered for
    std::vector<std::unique_ptr<Event>> gathered_;       // by bucket
    std::vector<std::unique_ptr<Event>> stage_reached_;  // by compute
    Timeline* timeline_ = nullptr;
};

}  // namespace speedrun
