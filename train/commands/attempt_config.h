// What `speedrun records attempt` is asked for: both sides, seeds, track; read and checked before there is a
// run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/comm/communicator.h"
#include "train/commands/commands.h"
#include "train/config/config.h"
#include "train/records/attempt.h"
#include "train/records/hardware_class.h"
#include "train/records/track.h"

namespace speedrun {

struct AttemptSide {
    Config config;
    std::string name, record;  // record: the folder whose config it is, in the candidate's track
    std::string source;        // its JSON as it was written, without settings
};

// What an attempt compares: equal on all ranks, but for what only the first one looks up.
struct Attempt {
    std::vector<int64_t> seeds;
    AttemptSide candidate;
    std::optional<AttemptSide> baseline;
    Track track;
    TrackClass track_class;  // that it is made for
    std::vector<ShardInfo> data;
    bool systems_only = false;
    std::string baseline_binary;  // that makes the baseline's runs; empty: this process makes all of them

    const Config& config_of(const std::string& side) const {
        return side == kCandidate ? candidate.config : baseline->config;
    }
};

// The config that a file or a record's folder gives, with settings on top; `out`: the folder of tracks.
AttemptSide read_attempt_side(const std::string& source, const std::vector<std::string>& settings,
                              const std::string& out);

// Throws usage and data errors for everything that a record could not be made of, or not be written with.
// first_rank: hashes the data.
Attempt read_attempt(const RecordAttemptOptions& options, bool first_rank);

// Usage error if the class of the attempt rules out this config on this hardware. How long a run takes shows when it is made.
void expect_of_class(const Attempt& attempt, const AttemptSide& side, const HardwareClass& hardware);

AttemptTerms terms_of(const Attempt& attempt, const World& world);

}  // namespace speedrun
