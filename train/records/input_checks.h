// Checks of a record's configs against its track, data and predecessor.
#pragma once

#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/records/record.h"
#include "train/records/run_lines.h"

namespace speedrun {

// Problems unless a side's config reads the record's shards and has the track's target.
std::vector<std::string> config_problems(const std::string& name, const Config& config, const Record& record,
                                         const Track& track);

// Problem unless the ranks of the candidate's runs used the number of threads in its config; else "".
std::string threads_problem(const Config& config, const Record& record);

// Returns the keys, with both values, in which a baseline's config differs from the config of its record. Two builds may have
// different keys: a missing key has its default. The seed may differ.
std::vector<std::string> baseline_problems(const std::string& config, const std::string& predecessor,
                                           const std::string& origin);

// Problems unless the record's shards have the track's names and sizes.
std::vector<std::string> shard_problems(const Record& record, const Track& track);

struct SeedRun {
    int64_t seed;
    std::vector<RunLine> lines;
};

// Returns a problem if the run's first losses equal another seed's losses with the same config, or "".
std::string seed_problem(const SeedRun& run, const std::vector<SeedRun>& others);

}  // namespace speedrun
