#include "train/hf/hf_tokenizer.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "data/bpe_vocabulary.h"
#include "data/durable_file.h"
#include "data/json_text.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kEndOfText = "<|endoftext|>";
constexpr int kByteValues = 256;

BpeVocabulary byte_vocabulary() {
    BpeVocabulary vocabulary;
    for (int byte = 0; byte < kByteValues; ++byte) {
        vocabulary.tokens.emplace_back(1, static_cast<char>(byte));
        vocabulary.of_byte[static_cast<size_t>(byte)] = static_cast<uint16_t>(byte);
    }
    vocabulary.tokens.emplace_back();
    vocabulary.separator = kByteValues;
    return vocabulary;
}

// Returns the bytes in GPT-2's alphabet of characters (encoder.py, bytes_to_unicode), in UTF-8: printable Latin-1 as itself,
// the other bytes in order from U+0100. All characters are below U+0800.
std::string in_alphabet(const std::string& bytes) {
    static const std::vector<std::string> characters = [] {
        std::vector<std::string> result;
        int next = kByteValues;
        for (int byte = 0; byte < kByteValues; ++byte) {
            const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
            const int code = printable ? byte : next++;
            constexpr int kAscii = 0x80, kTail = 0x3f;
            if (code < kAscii)
                result.emplace_back(1, static_cast<char>(code));
            else
                result.push_back(
                    {static_cast<char>(0xc0 | code >> 6), static_cast<char>(kAscii | (code & kTail))});
        }
        return result;
    }();
    std::string text;
    for (const char byte : bytes) text += characters[static_cast<unsigned char>(byte)];
    return text;
}

// The merges of a vocabulary by pair.
class Merges {
  public:
    explicit Merges(const BpeVocabulary& vocabulary) : vocabulary_(vocabulary) {
        for (const BpeMerge& merge : vocabulary.merges)
            merges_.emplace(std::pair{merge.left, merge.right}, &merge);
    }

    // Returns one merge per rank, in order.
    std::vector<BpeMerge> in_order() const {
        std::map<uint32_t, std::vector<BpeMerge>> by_rank;
        for (const BpeMerge& merge : vocabulary_.merges) by_rank[merge.rank].push_back(merge);
        std::vector<BpeMerge> result;
        for (const auto& [rank, merges] : by_rank) {
            if (merges.size() == 1) {
                result.push_back(merges.front());
                continue;
            }
            const std::vector<uint16_t> parts = merged_below(merges.front());
            const auto found = std::find_if(merges.begin(), merges.end(), [&](const BpeMerge& merge) {
                return parts == std::vector<uint16_t>{merge.left, merge.right};
            });
            if (found != merges.end()) result.push_back(*found);
        }
        return result;
    }

  private:
    // Returns the tokens that the bytes of a merge's result merge to, without merges of its rank and above.
    std::vector<uint16_t> merged_below(const BpeMerge& merge) const {
        std::vector<uint16_t> parts;
        for (const char byte : vocabulary_.tokens[merge.result])
            parts.push_back(vocabulary_.of_byte[static_cast<unsigned char>(byte)]);
        while (true) {
            const BpeMerge* best = nullptr;
            size_t at = 0;
            for (size_t i = 0; i + 1 < parts.size(); ++i) {
                const auto found = merges_.find({parts[i], parts[i + 1]});
                if (found == merges_.end() || found->second->rank >= merge.rank) continue;
                if (best && best->rank <= found->second->rank) continue;
                best = found->second;
                at = i;
            }
            if (!best) return parts;
            parts[at] = best->result;
            parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
        }
    }

    const BpeVocabulary& vocabulary_;
    std::map<std::pair<uint16_t, uint16_t>, const BpeMerge*> merges_;
};

// A tiktoken file allows every split of a token, all of its rank; of these the one is taken that the merges of lower ranks lead
// to. A token that they do not lead to is reached only as a whole piece.
BpeVocabulary with_one_merge_per_rank(BpeVocabulary vocabulary) {
    vocabulary.merges = Merges(vocabulary).in_order();
    return vocabulary;
}

Json byte_level(bool add_prefix_space) {
    return {{"type", "ByteLevel"},
            {"add_prefix_space", add_prefix_space},
            {"trim_offsets", true},
            {"use_regex", true}};
}

std::string text_of(const BpeVocabulary& vocabulary) {
    Json tokens = Json::object();
    auto& entries = tokens.get_ref<Json::object_t&>();
    // Appends without a search for the key, which would be quadratic.
    for (int32_t id = 0; id < vocabulary.size(); ++id) {
        const std::string& bytes = vocabulary.tokens[static_cast<size_t>(id)];
        if (id == vocabulary.separator)
            entries.emplace_back(kEndOfText, id);
        else if (!bytes.empty())
            entries.emplace_back(in_alphabet(bytes), id);
    }
    if (vocabulary.separator >= vocabulary.size()) entries.emplace_back(kEndOfText, vocabulary.separator);
    Json merges = Json::array();
    for (const BpeMerge& merge : vocabulary.merges)
        merges.push_back(
            {in_alphabet(vocabulary.tokens[merge.left]), in_alphabet(vocabulary.tokens[merge.right])});
    const Json root = {{"version", "1.0"},
                       {"truncation", nullptr},
                       {"padding", nullptr},
                       {"added_tokens", Json::array({{{"id", vocabulary.separator},
                                                      {"content", kEndOfText},
                                                      {"single_word", false},
                                                      {"lstrip", false},
                                                      {"rstrip", false},
                                                      {"normalized", false},
                                                      {"special", true}}})},
                       {"normalizer", nullptr},
                       {"pre_tokenizer", byte_level(false)},
                       {"post_processor", nullptr},
                       {"decoder", byte_level(true)},
                       {"model",
                        {{"type", "BPE"},
                         {"dropout", nullptr},
                         {"unk_token", nullptr},
                         {"continuing_subword_prefix", nullptr},
                         {"end_of_word_suffix", nullptr},
                         {"fuse_unk", false},
                         {"byte_fallback", false},
                         {"ignore_merges", vocabulary.whole_pieces},
                         {"vocab", std::move(tokens)},
                         {"merges", std::move(merges)}}}};
    return root.dump();
}

}  // namespace

void write_hf_tokenizer(const std::string& folder, const HfTokenizer& tokenizer) {
    const bool bytes = tokenizer.tokenizer == "bytes";
    const BpeVocabulary vocabulary = bytes ? byte_vocabulary() : read_bpe_vocabulary(tokenizer.vocabulary);
    write_file(folder + "/tokenizer.json", text_of(with_one_merge_per_rank(vocabulary)) + "\n");
    const Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                         {"bos_token", kEndOfText},
                         {"eos_token", kEndOfText},
                         {"pad_token", kEndOfText},
                         {"model_max_length", tokenizer.longest},
                         {"clean_up_tokenization_spaces", false}};
    write_file(folder + "/tokenizer_config.json", config.dump(2) + "\n");
}

bool is_byte_vocabulary(const std::string& vocabulary) {
    const BpeVocabulary there = read_bpe_vocabulary(vocabulary), bytes = byte_vocabulary();
    return there.tokens == bytes.tokens && there.merges.empty() && there.separator == bytes.separator;
}

}  // namespace speedrun
