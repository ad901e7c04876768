#include "train/hf/hf_tokenizer.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "data/bpe_vocabulary.h"
#include "data/durable_file.h"
#include "data/json_text.h"
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

}  // namespace

void write_hf_tokenizer(const std::string& folder, const HfTokenizer& tokenizer) {
    const bool bytes = tokenizer.tokenizer == "bytes";
    const BpeVocabulary vocabulary = bytes ? byte_vocabulary() : read_bpe_vocabulary(tokenizer.vocabulary);
    write_file(folder + "/tokenizer.json", write_tokenizer_json(with_one_merge_per_rank(vocabulary)));
    const nlohmann::ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                           {"bos_token", kSeparatorText},
                                           {"eos_token", kSeparatorText},
                                           {"pad_token", kSeparatorText},
                                           {"model_max_length", tokenizer.longest},
                                           {"clean_up_tokenization_spaces", false}};
    write_file(folder + "/tokenizer_config.json", config.dump(2) + "\n");
}

bool is_byte_vocabulary(const std::string& vocabulary) {
    const BpeVocabulary there = read_bpe_vocabulary(vocabulary), bytes = byte_vocabulary();
    return there.tokens == bytes.tokens && there.merges.empty() && there.separator == bytes.separator;
}

}  // namespace speedrun
