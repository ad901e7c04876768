// ParameterGatherer: gathers parameters with sharded storage (zero3) while compute reads them. The reads of a
// microbatch's stage (lifetimes.h) are gathered during the previous stage, into memory that no stage reads at that
// time.
#pragma once

#include <memory>
#include <vector>

#include "train/sharding/reducer.h"
#include "train/trace/timeline.h"

namespace speedrun {

class ParameterGatherer {
  public:
    // Events of the last updates; index: bucket.
    using Updated = std::vector<std::unique_ptr<Event>>;

    // All arguments must outlive it.
    ParameterGatherer(const ParameterTable& table, ParameterStore& parameters, Reducer& reducer,
                      Runtime& runtime, const Updated& updated);

    // True if parameters have sharded storage.
    bool active() const { return parameters_.stored_sharded(); }

    // Records on compute that the stage of a unit and pass is reached. Returns the stage.
    int reach(int unit, Pass pass);
    // True if the stage reads parameters.
    bool reads(int stage) const;
    // Enqueues the gathers that the stage needs and that are not enqueued yet.
    void fetch_missing(int stage);
    // Enqueues the gathers that the next stage needs, except into memory that this stage reads.
    void fetch_ahead(int stage);
    // Makes compute wait for the stage's gathers.
    void await(int stage);
    // Marks the use of the stage's buckets in the timeline.
    void mark_use(int stage, Pass pass) const;
    // Invalidates all gathered parameters.
    void forget();
    void trace(Timeline* timeline) { timeline_ = timeline; }

  private:
    static constexpr int kNone = -1;
    void fetch(const Bucket& bucket, int lifetime);
    int lifetime_at(int id, int stage) const;  // kNone: not read in this stage

    const BucketLayout& layout_;
    ParameterStore& parameters_;
    Reducer& reducer_;
    Runtime& runtime_;
    const Updated& updated_;
    const UnitPasses stages_;
    std::vector<std::vector<Lifetime>> reads_;           // index: bucket
    std::vector<int> fetched_;                           // gathered lifetime; index: bucket
    std::vector<std::unique_ptr<Event>> gathered_;       // index: bucket
    std::vector<std::unique_ptr<Event>> stage_reached_;  // events on compute; index: stage
    Timeline* timeline_ = nullptr;
};

}  // namespace speedrun
