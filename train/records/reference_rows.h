// References (counts_reference.h) on boards: a row, and a sentence below the board with its meaning.
#pragma once

#include <string>
#include <vector>

#include "train/records/counts_reference.h"

namespace speedrun {

// Returns the references for the board's hardware, by time. Without one: the reference with the closest number of cores. None
// for GPUs.
std::vector<CountsReference> references_of(const HardwareClass& board,
                                           const std::vector<CountsReference>& references);

// Returns a reference's cells for these column heads of a board; "-" for columns without a value.
std::vector<std::string> reference_cells(const CountsReference& reference,
                                         const std::vector<std::string>& heads);

// Returns a line for each reference of the board, or "". In Markdown it links the file, relative to the repository's root.
std::string reference_note(const HardwareClass& board, const std::vector<CountsReference>& references,
                           bool markdown);

// Returns a JSON object, an element of the list of records.
std::string reference_row_json(const CountsReference& reference);

}  // namespace speedrun
