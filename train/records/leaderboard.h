// The boards of a track: one per class, target (current or past) and hardware class.
#pragma once

#include <string>
#include <vector>

#include "train/records/counts_reference.h"
#include "train/records/record_folder.h"

namespace speedrun {

struct BoardOfRecords {
    Board board;
    std::string rules;            // rules of the class, in words
    std::string history;          // sentence with the reason why it ended; empty: current
    std::vector<Record> records;  // records that meet all rules first, then by mean time, or loss
};
// A class without records has a board without hardware. A record of no class is on the board of the class that it was made for.
std::vector<BoardOfRecords> boards_of(const std::vector<Record>& records, const Track& track);

enum class TableStyle { text, markdown };
// Includes a row for the reference, with its meaning below the table (reference_rows.h).
std::string board_text(const BoardOfRecords& board, TableStyle style,
                       const std::vector<CountsReference>& references = {});

// Returns all distinct records of these tracks, then their references, as a JSON array.
std::string records_json(const std::vector<Record>& records,
                         const std::vector<CountsReference>& references = {});

}  // namespace speedrun
