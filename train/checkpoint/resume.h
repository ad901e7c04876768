// Which checkpoint a run continues from.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/data_identity.h"
#include "train/checkpoint/checkpoint_reader.h"
#include "train/comm/communicator.h"
#include "train/config/config.h"

namespace speedrun {

struct ResumePoint {
    std::unique_ptr<CheckpointReader> reader;  // verified and indexed; null: start afresh
    bool in_place = false;                     // the run's folder is there and is continued
    std::vector<std::string> messages;         // for the user: what was skipped
};

// `resume` is what --resume says, `run` the folder of the run to start:
//   ""     start afresh in a new folder
//   auto   the newest checkpoint of `run` that is good; without any, start afresh
//   DIR    this checkpoint, or the newest of this run's folder; if it belongs to `run`, that is continued
// data: identity of the shards that the run to start reads; null: they are not compared. Collective. JointError on all
// ranks: usage, if the checkpoint was written by a config that trains something else (every differing key with both
// values), or there is none to continue; data, if DIR is damaged or is no position of that config's run, or all of auto's
// are, or the checkpoint was trained or validated on other shards.
ResumePoint find_resume_point(World& world, const std::string& resume, const std::string& run,
                              const Config& config, const DataIdentity* data = nullptr);

// Opens a checkpoint and checks all of it but the identity of its data, each rank some of the files; JointError as above.
// same_shards: whether that is compared afterwards, so that the names of shards in the config are not.
std::unique_ptr<CheckpointReader> open_checkpoint(World& world, const std::string& folder,
                                                  const Config& config, bool same_shards = false);

// Keys of the resolved configs whose values differ and change what is trained: "schedule.steps: 100 there,
// 200 here". A resumed run may change the others: where and with how many ranks it runs, what it keeps for
// backward, how often it validates and saves.
std::vector<std::string> training_differences(const Config& there, const Config& here);

// True if validation losses of the two configs are comparable: equal data, tokens and windows.
bool validates_alike(const Config& there, const Config& here);

}  // namespace speedrun
