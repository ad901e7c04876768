// Reads and checks the options of `speedrun records attempt` before any run: both sides, seeds, track.
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
    std::string name, record;  // record: the folder of the record with this config, in the candidate's track
    std::string source;        // original JSON, without settings
};

// The sides, seeds and rules of an attempt: equal on all ranks, except for members that only the first rank reads.
struct Attempt {
    std::vector<int64_t> seeds;
    AttemptSide candidate;
    std::optional<AttemptSide> baseline;
    Track track;
    TrackClass track_class;  // class of the attempt
    std::vector<ShardInfo> data;
    bool systems_only = false;
    std::string baseline_binary;  // builds the baseline's runs; empty: this process makes all runs

    const Config& config_of(const std::string& side) const {
        return side == kCandidate ? candidate.config : baseline->config;
    }
};

// Reads a side from a config file or a record's folder, and applies the settings. `out`: the folder of tracks.
AttemptSide read_attempt_side(const std::string& source, const std::vector<std::string>& settings,
                              const std::string& out);

// Throws usage and data errors for everything that would prevent a record. first_rank: hashes the data.
Attempt read_attempt(const RecordAttemptOptions& options, bool first_rank);

// Usage error if the class of the attempt excludes this config on this hardware. The limit on a run's time is checked after the
// run.
void expect_of_class(const Attempt& attempt, const AttemptSide& side, const HardwareClass& hardware);

AttemptTerms terms_of(const Attempt& attempt, const World& world);

}  // namespace speedrun
