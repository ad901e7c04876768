// A track: the common rules and data of its records, records/<track>/track.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "train/records/track_class.h"

namespace speedrun {

struct TrackRules {
    int64_t min_runs = 5;
    double max_loss_p = 0.01;  // one-sided test that the mean loss is below the target
    double max_time_p = 0.01;  // Welch's one-sided test that it is faster than the baseline
    // Replaces the loss test for changes without effect on the maths: at every validation, the mean loss equals the baseline's
    // within `loss_margin` (nats per token), by two one-sided tests on pairs with equal seeds.
    double loss_margin = 0.01;
    double max_margin_p = 0.05;
};

struct Track {
    std::string name;
    std::vector<ShardInfo> shards;
    std::string lock,
        prepare;  // lock: list of the shards, if not track.json; prepare: program that makes the data
    int64_t validation_tokens = 0;
    double target_loss = 0;  // nats per token
    TrackRules rules;
    std::string hardware_class;
    // At least one; the first is the default of attempts.
    std::vector<TrackClass> classes = {{.name = "open", .max_parameters = {}, .gpus = {}, .gpu = {}}};
    std::string unclassed;  // class of records without one; empty: the first

    const TrackClass* find_class(const std::string& class_name) const;  // null if unknown
    // Returns the class of an attempt; empty: the first. Usage error that lists the classes, or the open ones, for an unknown
    // or ended class.
    const TrackClass& class_named(const std::string& class_name) const;
    // Returns the class that a record with this `class` was made for; "" for a record without one.
    const std::string& class_of_record(const std::string& class_name) const;
    std::string class_names(bool open_alone = false) const;
    bool limits_parameters() const;
    bool reads_configs() const;  // a class has rules about the model or the batches
};

// Parses a track.json. Throws a data error that names origin and key.
Track parse_track(const std::string& text, const std::string& origin);
// Reads a folder's track.json and its lock; without the lock the track has no shards. If `folder` (for example records/kjv) has
// no track.json, throws a usage error that lists the available tracks.
Track read_track(const std::string& folder);

// Data and target of a config.
struct TrackClaim {
    std::vector<std::string> train_files, val_files;  // in reading order
    int64_t val_tokens = 0;                           // scored tokens; 0: all
    double target_loss = 0;
};
// Returns the shards of these files, by their hashes. Throws a data error that names the first file that is not the track's.
// Throws a usage error if the validation does not cover all its tokens, or if the target is not the class's. A budget class has
// no target and ignores record.target_loss.
std::vector<ShardInfo> expect_data_of_track(const Track& track, const TrackClass& track_class,
                                            const TrackClaim& claim);

// Compares the hashes in a record with the track's; returns the problem, or "".
std::string data_problem(const Track& track, const std::vector<ShardInfo>& shards);

}  // namespace speedrun
