// Vocabulary of a byte-level BPE, read from the user's file.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace speedrun {

struct BpeMerge {
    uint16_t left = 0, right = 0, result = 0;
    uint32_t rank = 0;  // within a piece, the pair with the lowest rank is merged first
};

struct BpeVocabulary {
    // bytes; index: id; empty for the separator, other special tokens and unused ids
    std::vector<std::string> tokens;
    std::array<uint16_t, 256> of_byte{};  // id of each single byte
    std::vector<BpeMerge> merges;         // unique pairs
    bool whole_pieces = false;  // a piece that is a token maps to it, even if merges yield other tokens
    int32_t separator = 0;      // <|endoftext|>

    int32_t size() const { return static_cast<int32_t>(tokens.size()); }
};

inline constexpr const char* kSeparatorText = "<|endoftext|>";
inline constexpr size_t kMaxTokenBytes = 1024;  // GPT-2's longest has 128

// Files of a vocabulary.
struct VocabularyFiles {
    std::string tokens;
    std::string merges;  // empty: one file has all
};

// Returns the files of the vocabulary at `path`: a file, or a folder with the first of tokenizer.json, vocab.json and merges.txt,
// encoder.json and vocab.bpe, kVocabularyFile. One of these pairs' files stands for both. Throws a data error if a file is missing.
VocabularyFiles vocabulary_files(const std::string& path);

// Reads one of
//   tiktoken's format  one line per token: its bytes in base64, a space, its rank, which is its id. Any two
//                      tokens that form a token may merge. <|endoftext|> is the lowest unused id, as in
//                      OpenAI's r50k_base and p50k_base.
//   tokenizer.json     of the tokenizers library, with GPT-2's parts: a BPE model, ByteLevel pre-tokenizer
//                      without a prefix space, no normalizer, <|endoftext|> among added_tokens, and no added token
//                      that is not special.
//   two files          vocab.json and merges.txt, or encoder.json and vocab.bpe of GPT-2's release; <|endoftext|> is
//                      among the tokens.
// Throws a data error that names file, line or key, expected and actual value for other content: another kind of
// tokenizer, a missing byte, ids above 16 bits, tokens above kMaxTokenBytes, duplicates.
BpeVocabulary read_bpe_vocabulary(const std::string& path);

}  // namespace speedrun
