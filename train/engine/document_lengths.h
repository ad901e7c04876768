// Lengths of a dataset's documents, and rows packed from them, to count the work of attention without running it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/config/config.h"

namespace speedrun {

struct DocumentLengths {
    std::vector<int64_t> tokens;  // per document, in order
    std::string source;
};

// FineWeb's lengths in GPT-2 tokens, as published: log-normal, median 403, mean 690, at least 32. Fixed order.
DocumentLengths typical_documents();
// Returns the documents among the first tokens of the config's training shards, or typical_documents() without shards.
DocumentLengths document_lengths(const Config& config);

// Returns the sentence of a plan that names the documents' source.
std::string documents_note(const Config& config);

// Returns the first visible key of each token of some rows of a stage, counted from the row's start: rows of the stream, or
// rows of whole documents (data.rows) cut at data.max_document_tokens. Empty without data.document_mask.
std::vector<int32_t> packed_first_keys(const Config& stage, const DocumentLengths& documents);

}  // namespace speedrun
