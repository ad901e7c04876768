// The vocabulary of a byte-level BPE, read from a file that the user has.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace speedrun {

struct BpeMerge {
    uint16_t left = 0, right = 0, result = 0;
    uint32_t rank = 0;  // of all pairs in a piece the one of lowest rank is merged first
};

struct BpeVocabulary {
    std::vector<std::string> tokens;  // bytes by id; empty for the separator, other special and unused ids
    std::array<uint16_t, 256> of_byte{};  // the id of each single byte
    std::vector<BpeMerge> merges;         // each pair at most once
    bool whole_pieces = false;  // a piece that is a token becomes it, also where merges lead elsewhere
    int32_t separator = 0;      // <|endoftext|>

    int32_t size() const { return static_cast<int32_t>(tokens.size()); }
};

// Reads one of
//   tiktoken's format  a line per token: its bytes in base64, a space, its rank, which is its id. Any two
//                      tokens may merge that make a token. <|endoftext|> is the lowest id that the file
//                      leaves free, as in OpenAI's r50k_base and p50k_base.
//   tokenizer.json     of the tokenizers library, with GPT-2's parts: a BPE model, ByteLevel pre-tokenizer
//                      without a prefix space, no normalizer, and <|endoftext|> among added_tokens.
// Throws a data error that names file, line or key, expected and actual for anything else: another kind of
// tokenizer, a missing byte, ids that do not fit shards (16 bits), tokens above kMaxTokenBytes, duplicates.
BpeVocabulary read_bpe_vocabulary(const std::string& path);

inline constexpr size_t kMaxTokenBytes = 1024;  // GPT-2's longest has 128

}  // namespace speedrun
