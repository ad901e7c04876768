// Folders of records and tracks on disk.
#pragma once

#include <string>
#include <vector>

#include "train/records/record.h"

namespace speedrun {

// Counts parameters (including tables of any kind) and tokens of the record's config, and checks the rule `dense`. No-op if
// no class of the track has rules about these. Throws a usage error that names `origin` if this build cannot read the
// config.
void count_parameters(Record& record, const Track& track, const std::string& origin);

// Reads FOLDER/record.json and evaluates it by the rules of the parent folder's track. Throws as record_from_json, and a data
// error if the hash differs (has_its_hash).
Record read_record(const std::string& folder);
bool is_record_folder(const std::string& folder);
// Returns the folders of records in records/<track>, sorted by name and thus by date.
std::vector<std::string> record_folders(const std::string& track_folder);

// Records that are compared: the same class, target and hardware class.
struct Board {
    std::string track_class;
    HardwareClass hardware;
    std::optional<double> target_loss = {};  // none: any target
    bool by_loss = false;                    // ranked by loss instead of time

    bool has(const Record& record) const {
        return record.is_of(track_class) && record.hardware_class == hardware &&
               (!target_loss || record.target_loss == *target_loss);
    }
};
// Returns the board of the class's current target.
Board board_of(const TrackClass& track_class, const HardwareClass& hardware);
// Returns the folder of the board's leading record: it meets all rules and no other such record was measured against it.
// Records form a chain, each measured against the previous one. If several qualify: the fastest, or the lowest loss; "" if
// none.
std::string leading_record(const std::string& track_folder, const Board& board);

}  // namespace speedrun
