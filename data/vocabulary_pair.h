// A vocabulary of two files: vocab.json and merges.txt, or encoder.json and vocab.bpe.
#pragma once

#include <string>

#include "data/bpe_vocabulary.h"

namespace speedrun {

// Reads the tokens with their ids, in GPT-2's alphabet, and the merges, one "left right" per line. Throws as
// read_bpe_vocabulary().
BpeVocabulary read_vocabulary_pair(const VocabularyFiles& files);

}  // namespace speedrun
