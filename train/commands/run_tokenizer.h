// The tokenizer that a finished run's data were made with.
#pragma once

#include <memory>
#include <string>

#include "data/tokenizer.h"
#include "train/config/config.h"

namespace speedrun {

// Returns the tokenizer of the file `vocabulary`, or for "" that of the config's data. Throws a data error if the vocabulary does not
// fit the data. For a config without data it must not exceed model.vocab_size. Throws a usage error if no vocabulary is found.
std::unique_ptr<Tokenizer> tokenizer_of(const Config& config, const std::string& vocabulary);

}  // namespace speedrun
