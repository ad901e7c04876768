// Folders of records and tracks on the disk.
#pragma once

#include <string>
#include <vector>

#include "train/records/record.h"

namespace speedrun {

// Counts parameters and tokens of the record's config, tables of any kind included, and checks the rule `dense`. Does so if a class
// of the track has rules about any of these. Throws a usage error that names `origin` if this build cannot read the config.
void count_parameters(Record& record, const Track& track, const std::string& origin);

// FOLDER/record.json, evaluated by the rules of the track that the folder lies in. Throws as record_from_json and has_its_hash,
// and a data error if the hash is another.
Record read_record(const std::string& folder);
bool is_record_folder(const std::string& folder);
// The folders of records in records/<track>, by name, so by date.
std::vector<std::string> record_folders(const std::string& track_folder);

// Records that are compared with each other: of one class and target, on one class of hardware.
struct Board {
    std::string track_class;
    HardwareClass hardware;
    std::optional<double> target_loss = {};  // none: any
    bool by_loss = false;                    // the result is the loss, not the time

    bool has(const Record& record) const {
        return record.is_of(track_class) && record.hardware_class == hardware &&
               (!target_loss || record.target_loss == *target_loss);
    }
};
// The board of the class's target of today.
Board board_of(const TrackClass& track_class, const HardwareClass& hardware);
// Name of the folder in the track whose record is on the board, meets all rules and was beaten by no other such: records form a
// chain, each measured against the one before it. The fastest, or of the lowest loss, if there are several; "" if there is none.
std::string leading_record(const std::string& track_folder, const Board& board);

}  // namespace speedrun
