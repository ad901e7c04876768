// Selects the checkpoint from which a run continues.
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
    bool in_place = false;                     // the run's folder exists and is continued
    std::vector<std::string> messages;         // for the user: skipped checkpoints
};

// `resume` is the value of --resume, `run` the folder of the run to start:
//   ""     start afresh in a new folder
//   auto   the newest undamaged checkpoint of `run`; if there is none, start afresh
//   DIR    this checkpoint, or the newest of this run's folder; if it belongs to `run`, that run is continued
// data: identity of the shards of the run to start; null: not compared. Collective. Throws JointError on all ranks:
//   usage: the checkpoint's config trains something else (lists each differing key with both values).
//   usage: there is no checkpoint to continue, or to extend.
//   data: DIR is damaged or is not a position of its config's run; or all checkpoints of auto are.
//   data: the checkpoint was trained or validated on other shards.
// extends: config is that of a longer run (train/config/extend_run.h); a shorter schedule of the checkpoint is no difference.
// A message names the step from which learning rate or momentum differ, if it is before the checkpoint's.
ResumePoint find_resume_point(World& world, const std::string& resume, const std::string& run,
                              const Config& config, const DataIdentity* data = nullptr, bool extends = false);

struct ResumeRules {
    bool same_shards = false;  // identities are compared later: the shards' names in the config are ignored
    bool extends = false;      // as in find_resume_point()
};

// Opens a checkpoint and checks everything except the identity of its data. Each rank checks some of the files. Throws
// JointError as above.
std::unique_ptr<CheckpointReader> open_checkpoint(World& world, const std::string& folder,
                                                  const Config& config, const ResumeRules& rules = {});

// Opens a checkpoint, compares every file with its hash, and indexes it. Collective; each rank reads some of the files. Throws
// JointError(data).
std::unique_ptr<CheckpointReader> verify_checkpoint(World& world, const std::string& folder);

// Returns the keys of the resolved configs that differ and change training: "schedule.steps: 100 there, 200 here". A
// resumed run may change other keys: ranks and devices, activation checkpointing, intervals of validation and
// checkpoints.
std::vector<std::string> training_differences(const Config& there, const Config& here);

// True if validation losses of the two configs are comparable: equal data, tokens and windows.
bool same_validation(const Config& there, const Config& here);

}  // namespace speedrun
