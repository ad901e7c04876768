// Tokenizers in the format of the transformers library: tokenizer.json and tokenizer_config.json.
#pragma once

#include <cstdint>
#include <string>

#include "data/bpe_vocabulary.h"

namespace speedrun {

struct HfTokenizer {
    std::string tokenizer;   // "bytes" or "gpt2"
    std::string vocabulary;  // file of gpt2
    int64_t longest = 0;     // sequence of the model, tokens
};

// Writes both files. The library encodes a text to the tokens of make_tokenizer(), except for <|endoftext|> in the text, which
// is the separator. It adds no separator by itself.
void write_hf_tokenizer(const std::string& folder, const HfTokenizer& tokenizer);

// Returns the vocabulary of a tokenizer, with one merge per rank as in tokenizer.json.
BpeVocabulary vocabulary_of(const HfTokenizer& tokenizer);

// Returns the first difference in tokens, merges and separator, in words; empty: none.
std::string vocabulary_difference(const BpeVocabulary& there, const BpeVocabulary& here);

// True if the vocabulary file is that of a written "bytes": 256 byte values and the separator 256, without merges.
bool is_byte_vocabulary(const std::string& vocabulary);

}  // namespace speedrun
