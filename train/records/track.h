// A track: what all its records have in common, records/<track>/track.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "train/records/track_class.h"

namespace speedrun {

struct TrackRules {
    int64_t min_runs = 5;
    double max_loss_p = 0.01;  // of the one-sided test that the mean loss is below the target
    double max_time_p = 0.01;  // of Welch's one-sided test that it is faster than the baseline
    // Instead of the loss's test, for changes that leave the maths alone: at every validation, the mean loss
    // is the baseline's within `loss_margin` (nats per token), by two one-sided tests on pairs of one seed.
    double loss_margin = 0.01;
    double max_margin_p = 0.05;
};

struct Track {
    std::string name;
    std::vector<ShardInfo> shards;
    std::string lock,
        prepare;  // lock: what lists the shards, if not track.json; prepare: the program that makes data
    int64_t validation_tokens = 0;
    double target_loss = 0;  // nats per token
    TrackRules rules;
    std::string hardware_class;
    // One at least; attempts that name none race in the first.
    std::vector<TrackClass> classes = {{.name = "open", .max_parameters = {}, .gpus = {}, .gpu = {}}};
    std::string unclassed;  // the class of records that name none; empty: the first

    const TrackClass* find_class(const std::string& class_name) const;  // null: there is none
    // The class of an attempt. Usage error that lists the classes there are, or are open, where this is none of them; empty:
    // the first.
    const TrackClass& class_named(const std::string& class_name) const;
    // The class that a record with this `class` was made for; "": with none.
    const std::string& class_of_record(const std::string& class_name) const;
    std::string class_names(bool open_alone = false) const;
    bool limits_parameters() const;
    bool reads_configs() const;  // a class has rules about the model or the batches
};

// The text of a track.json. Throws a data error that names origin and key.
Track parse_track(const std::string& text, const std::string& origin);
// Reads a folder's track.json, and the lock that it names; what is without it has no shards. A usage error that lists the tracks there are if `folder` (for
// example records/kjv) has no track.json.
Track read_track(const std::string& folder);

// What a config reads and aims at.
struct TrackClaim {
    std::vector<std::string> train_files, val_files;  // in the order in which they are read
    int64_t val_tokens = 0;                           // scored; 0: all
    double target_loss = 0;
};
// The shards of these files, by their hashes. Throws a data error that names the first file that is not the
// track's, and a usage error if the validation is not over all of its tokens or the target is not that of the class. A class of
// a budget has none, and record.target_loss counts for nothing.
std::vector<ShardInfo> expect_data_of_track(const Track& track, const TrackClass& track_class,
                                            const TrackClaim& claim);

// Compares the hashes that a record lists with the track's: what is wrong, or "".
std::string data_problem(const Track& track, const std::vector<ShardInfo>& shards);

}  // namespace speedrun
