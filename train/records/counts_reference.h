// Reference of a track: the loss that counts reach without training (kneser_ney.h), and in which time. One file for each class of
// hardware, records/<track>/references/counts_<level>.json. References are no records: nothing is measured against them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "train/records/hardware_class.h"
#include "train/records/track.h"

namespace speedrun {

// The tokens of a track's shards.
struct TrackTokens {
    std::vector<std::vector<uint16_t>> train;  // one for each shard
    std::vector<uint16_t> val;                 // the first token and all that are scored
    int32_t vocab_size = 0;
    std::vector<ShardInfo> shards;
};
// Returns the folder of the track's shards: the folder of its lock or of the program that prepares them. It is relative to
// here or to the repository of the track's folder. A usage error if the track names neither.
std::string data_folder(const Track& track, const std::string& track_folder);
// True if all of the track's shards are in the folder; contents are not compared.
bool has_shards(const Track& track, const std::string& folder);
// Throws a data error for a shard that is missing, with the command that prepares it, or that is not the track's.
TrackTokens read_track_tokens(const Track& track, const std::string& folder);

struct CountsResult {
    double loss = 0;                       // nats per token
    double counting_s = 0, scoring_s = 0;  // one thread; without reading and hashing
    int64_t contexts = 0;                  // contexts that have a distribution
    double seconds() const { return counting_s + scoring_s; }
};
// Counts contexts of up to `order` tokens in the training shards and scores the validation in rows of `row_length` tokens, cut as
// ValidationLoader cuts them: a row sees nothing before its own start.
CountsResult measure_counts(int order, const TrackTokens& tokens, int64_t row_length);

struct CountsReference {
    std::string path;  // not stored
    std::string track;
    int64_t order = 0, row_length = 0;
    int64_t tokens = 0;  // scored
    double loss = 0;
    std::vector<double> repetitions;  // seconds of each
    std::string date, git_sha;        // git_sha: without "-dirty"
    bool dirty = false;
    std::string hardware;         // JSON object, as a record's
    std::vector<ShardInfo> data;  // the shards that were counted and scored

    HardwareClass hardware_class;  // computed from `hardware`, not stored

    double seconds() const;  // the median of the repetitions
    std::string hardware_text() const;
    std::string file_name() const;  // counts_<level>.json
};
std::string reference_to_json(const CountsReference& reference);
// Throws a data error that names origin, key and value for anything that the command cannot have written for this track.
CountsReference reference_from_json(const std::string& text, const std::string& origin, const Track& track);

// Returns all of TRACK_FOLDER/references/*.json by name, none where there is no such folder. Errors as reference_from_json.
std::vector<CountsReference> read_references(const std::string& track_folder, const Track& track);

struct ReferenceCheck {
    std::string path;
    bool recomputed = false;            // the shards are here
    std::vector<std::string> problems;  // one line each
};
// Reads every reference of the track, and computes its loss again where the track's shards are. Never throws for a fault of a
// reference.
std::vector<ReferenceCheck> verify_references(const std::string& track_folder);

}  // namespace speedrun
