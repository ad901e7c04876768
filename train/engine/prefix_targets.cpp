#include "train/engine/prefix_targets.h"

#include <algorithm>
#include <utility>

#include "data/bpe_vocabulary.h"
#include "data/dataset.h"
#include "data/shard_patterns.h"
#include "data/token_prefixes.h"
#include "kernels/device/error.h"

namespace speedrun {

PrefixTable read_prefixes(const Config& config) {
    if (!config.model.parts.loss.counts_prefixes()) return nullptr;
    if (config.data.train.empty())
        throw_usage("model.loss.prefix_weight needs the vocabulary of the tokens: data.train names none");
    const std::vector<std::string> files = expand_globs(config.data.train);
    const DatasetInfo info = find_dataset_info(files).value_or(DatasetInfo{});
    if (info.tokenizer == "bytes")
        throw_usage(
            "model.loss.prefix_weight: tokens of the dataset {} ({}) are single bytes, of which none has a prefix: leave "
            "it out",
            info.name, files.front());
    const std::string& given = config.data.vocabulary;
    const std::string path = given.empty() ? find_vocabulary(info) : given;
    if (path.empty())
        throw_usage(
            "model.loss.prefix_weight needs the bytes of each token, but the dataset {} ({}) came without its tokenizer's "
            "vocabulary: give data.vocabulary, a tiktoken file (r50k_base.tiktoken) or GPT-2's tokenizer.json",
            info.name, files.front());
    const BpeVocabulary vocabulary = read_bpe_vocabulary(path);
    if (vocabulary.size() != info.vocab_size)
        throw_data("{}: {} tokens, the dataset {} ({}) has {}: this is another tokenizer's vocabulary", path,
                   vocabulary.size(), info.name, files.front(), info.vocab_size);
    std::vector<int32_t> prefixes = longest_prefixes(vocabulary.tokens);
    prefixes.resize(static_cast<size_t>(std::max<int64_t>(config.model.vocab_size, info.vocab_size)), -1);
    return std::make_shared<const std::vector<int32_t>>(std::move(prefixes));
}

PrefixTable made_up_prefixes(const ModelConfig& model) {
    if (!model.parts.loss.counts_prefixes()) return nullptr;
    std::vector<int32_t> prefixes;
    for (int32_t token = 0; token < model.vocab_size; ++token) prefixes.push_back(token / 2);
    return std::make_shared<const std::vector<int32_t>>(std::move(prefixes));
}

}  // namespace speedrun
