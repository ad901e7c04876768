#include "train/hf/hf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "data/bpe_vocabulary.h"
#include "data/durable_file.h"
#include "data/json_text.h"
#include "data/text_file.h"
#include "data/tokenizer_json.h"

namespace speedrun {

namespace {

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

// Returns the number of tokens, without the ids at the end that have no bytes, such as special tokens.
size_t num_texts(const BpeVocabulary& vocabulary) {
    size_t size = vocabulary.tokens.size();
    while (size > 0 && vocabulary.tokens[size - 1].empty()) --size;
    return size;
}

}  // namespace

BpeVocabulary vocabulary_of(const HfTokenizer& tokenizer) {
    return with_one_merge_per_rank(
        tokenizer.tokenizer == "bytes" ? byte_vocabulary() : read_bpe_vocabulary(tokenizer.vocabulary));
}

std::string vocabulary_difference(const BpeVocabulary& there, const BpeVocabulary& here) {
    if (there.separator != here.separator)
        return fmt::format("separator {} there, {} here", there.separator, here.separator);
    if (num_texts(there) != num_texts(here))
        return fmt::format("{} tokens there, {} here", num_texts(there), num_texts(here));
    for (size_t id = 0; id < num_texts(here); ++id)
        if (there.tokens[id] != here.tokens[id])
            return fmt::format("token {} is {} there, {} here", id, shown_text(there.tokens[id]),
                               shown_text(here.tokens[id]));
    const auto same = [](const BpeMerge& a, const BpeMerge& b) {
        return a.left == b.left && a.right == b.right;
    };
    const auto [a, b] =
        std::mismatch(there.merges.begin(), there.merges.end(), here.merges.begin(), here.merges.end(), same);
    if (a == there.merges.end() && b == here.merges.end()) return "";
    return fmt::format("merge {} differs", a - there.merges.begin());
}

void write_hf_tokenizer(const std::string& folder, const HfTokenizer& tokenizer) {
    write_file(folder + "/tokenizer.json", write_tokenizer_json(vocabulary_of(tokenizer)));
    const nlohmann::ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                           {"bos_token", kSeparatorText},
                                           {"eos_token", kSeparatorText},
                                           {"pad_token", kSeparatorText},
                                           {"model_max_length", tokenizer.longest},
                                           {"clean_up_tokenization_spaces", false}};
    write_file(folder + "/tokenizer_config.json", config.dump(2) + "\n");
}

bool is_byte_vocabulary(const std::string& vocabulary) {
    return vocabulary_difference(vocabulary_of({.tokenizer = "gpt2", .vocabulary = vocabulary}),
                                 byte_vocabulary())
        .empty();
}

}  // namespace speedrun
