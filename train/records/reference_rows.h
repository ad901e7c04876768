// References (counts_reference.h) on boards: a row, and below the board a sentence with its meaning.
#pragma once

#include <string>
#include <vector>

#include "train/records/counts_reference.h"

namespace speedrun {

// Returns the references of the board's hardware, by time. On hardware without one: the reference with the closest number of
// cores. None for GPUs.
std::vector<CountsReference> references_of(const HardwareClass& board,
                                           const std::vector<CountsReference>& references);

// Returns the cells of a reference under these heads of a board; "-" under heads that have no meaning for it.
std::vector<std::string> reference_cells(const CountsReference& reference,
                                         const std::vector<std::string>& heads);

// Returns a line for each reference of the board, or "". In Markdown it links the file, from the repository's root.
std::string reference_note(const HardwareClass& board, const std::vector<CountsReference>& references,
                           bool markdown);

// Returns a JSON object, an element of the list of records.
std::string reference_row_json(const CountsReference& reference);

}  // namespace speedrun
