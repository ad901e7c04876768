// tokenizer.json of the tokenizers library.
#pragma once

#include <string>

#include "data/bpe_vocabulary.h"

namespace speedrun {

// Reads the text of a tokenizer.json. path: for messages. Throws as read_bpe_vocabulary().
BpeVocabulary read_tokenizer_json(const std::string& path, const std::string& text);

// Returns a tokenizer.json of the vocabulary, which read_tokenizer_json() and the tokenizers and transformers libraries
// read. Its merges are written in order of rank.
std::string write_tokenizer_json(const BpeVocabulary& vocabulary);

}  // namespace speedrun
