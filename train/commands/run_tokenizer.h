// The tokenizer of a finished run's data.
#pragma once

#include <memory>
#include <string>

#include "data/tokenizer.h"
#include "train/config/config.h"

namespace speedrun {

// Returns the tokenizer of the file `vocabulary`, or for "" the tokenizer of the config's data. Throws a data error if the
// vocabulary differs from the data's. Without data its size must not exceed model.vocab_size. Throws a usage error if no
// vocabulary is found.
std::unique_ptr<Tokenizer> tokenizer_of(const Config& config, const std::string& vocabulary);

}  // namespace speedrun
