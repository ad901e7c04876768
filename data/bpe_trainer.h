// Trains a byte-level BPE vocabulary (Sennrich et al. 2016) on text.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "data/bpe_vocabulary.h"

namespace speedrun {

// Counts the pieces of documents, see gpt2_pieces.h. Memory: about 100 bytes per distinct piece.
class PieceCounts {
  public:
    struct Hash {
        using is_transparent = void;
        size_t operator()(std::string_view piece) const { return std::hash<std::string_view>()(piece); }
    };
    using Map = std::unordered_map<std::string, int64_t, Hash, std::equal_to<>>;

    // Adds a part of a document.
    void add(std::string_view part);
    void end_document();
    const Map& counts() const { return counts_; }

  private:
    void count(bool is_end);

    std::string pending_;  // text with pieces that depend on the next part
    Map counts_;
};

inline constexpr int32_t kSmallestTrainedVocabulary = 257;  // single bytes and the separator

// Returns a vocabulary of at most vocab_size tokens. Ids: <|endoftext|>, the 256 bytes in the order of GPT-2's alphabet,
// then the merges. The most frequent pair of tokens is merged first, of equally frequent ones that with the lower ids.
// Training ends early if no pair occurs twice. The order of documents has no effect.
//
// Tokens and merges equal the result of ByteLevelBPETokenizer.train of the tokenizers library, with <|endoftext|> as special
// token and the default min_frequency=2. Other than there, no token is longer than kMaxTokenBytes.
BpeVocabulary train_bpe(const PieceCounts& pieces, int32_t vocab_size);

}  // namespace speedrun
