// GPT-2's tokenizer: byte-level BPE (Sennrich et al. 2016, applied to bytes as in Radford et al. 2019).
#pragma once

#include <memory>

#include "data/bpe_vocabulary.h"
#include "data/tokenizer.h"

namespace speedrun {

// Creates the tokenizer "gpt2". encode() accepts any bytes, and decode(encode(text)) == text; "<|endoftext|>" in the
// text is ordinary text. Time: linear in the text, times the log of the longest piece.
std::unique_ptr<Tokenizer> make_gpt2_tokenizer(BpeVocabulary vocabulary);

}  // namespace speedrun
