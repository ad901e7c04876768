// The tokenizer of a run: stored in its folder when the run starts, so that the folder alone can be sampled and exported.
#pragma once

#include <memory>
#include <string>

#include "data/dataset.h"
#include "data/tokenizer.h"
#include "train/config/config.h"

namespace speedrun {

class RunFolder;
struct FinishedRun;

// Stores the tokenizer of the config's data in the run folder. Returns a note if the data have no vocabulary; else empty.
std::string store_tokenizer(RunFolder& folder, const Config& config);

// The tokens of a finished run.
struct RunTokens {
    DatasetInfo info;
    std::string vocabulary;  // file; empty: none, or unknown
    bool known = true;       // false: an imported model without tokenizer and data; `info` has defaults
};

// Returns the tokens as stored in the run folder, else in data.json, else in the config's data. `vocabulary` replaces the
// file; empty: none. Throws a data error for a vocabulary with another hash than the run's.
RunTokens tokens_of(const FinishedRun& run, const std::string& vocabulary);

// Returns the tokenizer of these tokens. Throws a data error if the vocabulary differs in size or separator, and a usage error if
// none is found.
std::unique_ptr<Tokenizer> tokenizer_of(const FinishedRun& run, const std::string& vocabulary);

}  // namespace speedrun
