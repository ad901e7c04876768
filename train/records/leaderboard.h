// The boards of a track: one for each class and, within it, each target that it has or had and each class of hardware.
#pragma once

#include <string>
#include <vector>

#include "train/records/counts_reference.h"
#include "train/records/record_folder.h"

namespace speedrun {

struct BoardOfRecords {
    Board board;
    std::string rules;            // of the class, in words
    std::string history;          // sentence that says why it ended; empty: it goes on
    std::vector<Record> records;  // records that meet all rules first, then by mean time, or loss
};
// A class without a record has a board of no hardware. What is of no class stands on the board that it was made for.
std::vector<BoardOfRecords> boards_of(const std::vector<Record>& records, const Track& track);

enum class TableStyle { text, markdown };
// With a row of the reference, and below the table its meaning (reference_rows.h).
std::string board_text(const BoardOfRecords& board, TableStyle style,
                       const std::vector<CountsReference>& references = {});

// Returns all records of these tracks, each once, and then their references, as a JSON array.
std::string records_json(const std::vector<Record>& records,
                         const std::vector<CountsReference>& references = {});

}  // namespace speedrun
