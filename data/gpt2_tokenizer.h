// GPT-2's tokenizer: byte-level BPE (Sennrich et al. 2016 on bytes, as Radford et al. 2019).
#pragma once

#include <memory>

#include "data/bpe_vocabulary.h"
#include "data/tokenizer.h"

namespace speedrun {

// Named "gpt2". encode() takes any bytes and decode(encode(text)) == text; the text "<|endoftext|>" is text
// like any other. Time: linear in the text but for a factor log of the longest piece.
std::unique_ptr<Tokenizer> make_gpt2_tokenizer(BpeVocabulary vocabulary);

}  // namespace speedrun
