// Reference of a track: loss and time of an n-gram count model (kneser_ney.h), without training. One file per hardware class,
// records/<track>/references/counts_<level>.json. References are not records: no record is measured against them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "train/records/hardware_class.h"
#include "train/records/track.h"

namespace speedrun {

// Tokens of a track's shards.
struct TrackTokens {
    std::vector<std::vector<uint16_t>> train;  // index: shard
    std::vector<uint16_t> val;                 // the first token, then the scored tokens
    int32_t vocab_size = 0;
    std::vector<ShardInfo> shards;
};
// Returns the folder of the track's shards: the folder of its lock or of its prepare program, relative to the current folder or
// to the repository of the track's folder. Usage error if the track has neither.
std::string data_folder(const Track& track, const std::string& track_folder);
// True if all of the track's shards are in the folder; the contents are not compared.
bool has_shards(const Track& track, const std::string& folder);
// Throws a data error for a missing shard, with the command that prepares it, and for a shard with another hash.
TrackTokens read_track_tokens(const Track& track, const std::string& folder);

struct CountsResult {
    double loss = 0;                       // nats per token
    double counting_s = 0, scoring_s = 0;  // one thread; without reading and hashing
    int64_t contexts = 0;                  // contexts with a distribution
    double seconds() const { return counting_s + scoring_s; }
};
// Counts contexts of up to `order` tokens in the training shards and scores the validation in rows of `row_length` tokens, cut
// as by ValidationLoader: the context of a row begins at its start.
CountsResult measure_counts(int order, const TrackTokens& tokens, int64_t row_length);

struct CountsReference {
    std::string path;  // not stored
    std::string track;
    int64_t order = 0, row_length = 0;
    int64_t tokens = 0;  // scored tokens
    double loss = 0;
    std::vector<double> repetitions;  // seconds per repetition
    std::string date, git_sha;        // git_sha: without "-dirty"
    bool dirty = false;
    std::string hardware;         // JSON object, as in a record
    std::vector<ShardInfo> data;  // counted and scored shards

    HardwareClass hardware_class;  // computed from `hardware`, not stored

    double seconds() const;  // median of the repetitions
    std::string hardware_text() const;
    std::string file_name() const;  // counts_<level>.json
};
std::string reference_to_json(const CountsReference& reference);
// Throws a data error that names origin, key and value for any value that the command cannot have written for this track.
CountsReference reference_from_json(const std::string& text, const std::string& origin, const Track& track);

// Returns all of TRACK_FOLDER/references/*.json by name; none without such a folder. Errors as reference_from_json.
std::vector<CountsReference> read_references(const std::string& track_folder, const Track& track);

struct ReferenceCheck {
    std::string path;
    bool recomputed = false;            // true if the shards are available
    std::vector<std::string> problems;  // one line each
};
// Reads every reference of the track, and recomputes its loss if the track's shards are available. Faults of a reference are
// reported, not thrown.
std::vector<ReferenceCheck> verify_references(const std::string& track_folder);

}  // namespace speedrun
