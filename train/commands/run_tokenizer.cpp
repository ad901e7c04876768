#include "train/commands/run_tokenizer.h"

#include <vector>

#include "data/dataset.h"
#include "data/shard_patterns.h"
#include "kernels/device/error.h"

namespace speedrun {

std::unique_ptr<Tokenizer> tokenizer_of(const Config& config, const std::string& vocabulary) {
    const std::vector<std::string> files = expand_globs(config.data.val);
    const DatasetInfo info = find_dataset_info(files).value_or(DatasetInfo{});
    auto tokenizer = make_tokenizer(info.tokenizer, vocabulary.empty() ? find_vocabulary(info) : vocabulary);
    if (files.empty()) {  // an imported model
        if (tokenizer->vocab_size() > config.model.vocab_size) {
            throw_data("{}: vocabulary of {} tokens, but model.vocab_size is {}", vocabulary,
                       tokenizer->vocab_size(), config.model.vocab_size);
        }
    } else if (tokenizer->vocab_size() != info.vocab_size || tokenizer->separator() != info.separator) {
        throw_data("{}: vocabulary of {} tokens with separator {}, but the data has {} with separator {}",
                   vocabulary, tokenizer->vocab_size(), tokenizer->separator(), info.vocab_size,
                   info.separator);
    }
    return tokenizer;
}

}  // namespace speedrun
