#include "train/commands/run_tokenizer.h"

#include <filesystem>
#include <optional>
#include <vector>

#include "data/data_identity.h"
#include "data/json_text.h"
#include "data/shard_patterns.h"
#include "kernels/device/error.h"
#include "train/commands/finished_run.h"
#include "train/runlog/run_folder.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;

// Returns the tokens of data.json or checkpoint.json; nullopt if the run has none.
std::optional<DatasetInfo> identified_tokens(const FinishedRun& run) {
    if (run.data.empty()) return std::nullopt;
    try {
        const SplitIdentity val = data_identity_from_json(run.data).val;
        DatasetInfo info;
        info.name.clear();  // not stored
        info.tokenizer = val.tokenizer;
        info.vocab_size = static_cast<int32_t>(val.vocab_size);
        info.separator = static_cast<int32_t>(val.separator);
        info.separators = val.separators;
        info.vocabulary_sha256 = val.vocabulary_sha256;
        return info;
    } catch (const JsonError& error) {
        throw_data(
            "{}: the identity of its data (data.json, or checkpoint.json of a checkpoint) is damaged: {}",
            run.folder, error.what());
    }
}

bool same_tokens(const DatasetInfo& a, const DatasetInfo& b) {
    return a.tokenizer == b.tokenizer && a.vocab_size == b.vocab_size && a.separator == b.separator &&
           (a.vocabulary_sha256.empty() || a.vocabulary_sha256 == b.vocabulary_sha256);
}

// Returns the tokens stored in the run folder; nullopt for runs of older versions.
std::optional<DatasetInfo> stored_tokens(const FinishedRun& run) {
    const fs::path path = fs::path(run.folder) / kTokenizerFolder / "dataset.json";
    std::error_code error;
    if (run.folder.empty() || !fs::exists(path, error)) return std::nullopt;
    DatasetInfo stored = read_dataset_info(path.string());
    if (const auto data = identified_tokens(run); data && !same_tokens(*data, stored))
        throw_data(
            "{}: {} tokens, separator {}, vocabulary {}; the run was trained on {} tokens, separator {}, vocabulary {}",
            path.string(), stored.vocab_size, stored.separator, stored.vocabulary_sha256, data->vocab_size,
            data->separator, data->vocabulary_sha256);
    return stored;
}

// Returns the vocabulary in the folder of the config's data, for runs without a copy.
std::string vocabulary_of_data(const Config& config, const DatasetInfo& info) {
    if (info.vocabulary_sha256.empty()) return "";
    try {
        const auto of_data = find_dataset_info(expand_globs(config.data.val));
        if (of_data && same_tokens(info, *of_data)) return find_vocabulary(*of_data);
    } catch (const Error& error) {
        throw_data("{}; the run folder has no copy of the vocabulary: name it with --vocab FILE",
                   error.what());
    }
    return "";
}

void expect_hash(const std::string& vocabulary, const DatasetInfo& info) {
    if (info.vocabulary_sha256.empty()) return;
    const std::string actual = sha256_file(vocabulary);
    if (actual != info.vocabulary_sha256)
        throw_data("--vocab {}: SHA-256 is {}, the run's vocabulary has {}", vocabulary, actual,
                   info.vocabulary_sha256);
}

}  // namespace

std::string store_tokenizer(RunFolder& folder, const Config& config) {
    const DatasetInfo info = find_dataset_info(expand_globs(config.data.val)).value_or(DatasetInfo{});
    constexpr const char* kCure =
        "the run folder has no vocabulary: sample, eval --text and export need --vocab FILE";
    try {
        std::string vocabulary = find_vocabulary(info);
        if (vocabulary.empty()) vocabulary = config.data.vocabulary;
        if (vocabulary.empty() && info.tokenizer != "bytes")
            return fmt::format("{} (or train with data.vocabulary=FILE)", kCure);
        folder.write_tokenizer(info, vocabulary);
        return "";
    } catch (const Error& error) {
        if (error.code() != ExitCode::data) throw;  // the run folder cannot be written
        return fmt::format("{}; {}", error.what(), kCure);
    }
}

RunTokens tokens_of(const FinishedRun& run, const std::string& vocabulary) {
    RunTokens tokens;
    const auto stored = stored_tokens(run);
    const auto identified = stored ? std::nullopt : identified_tokens(run);
    if (stored) {
        tokens.info = *stored;
    } else if (identified) {
        tokens.info = *identified;
    } else {
        const std::vector<std::string> files = expand_globs(run.config.data.val);
        tokens.info = find_dataset_info(files).value_or(DatasetInfo{});
        tokens.known = !files.empty();
    }
    if (vocabulary.empty()) {
        tokens.vocabulary =
            identified ? vocabulary_of_data(run.config, tokens.info) : find_vocabulary(tokens.info);
    } else {
        expect_hash(vocabulary, tokens.info);
        tokens.vocabulary = vocabulary;
    }
    return tokens;
}

std::unique_ptr<Tokenizer> tokenizer_of(const FinishedRun& run, const std::string& vocabulary) {
    const RunTokens tokens = tokens_of(run, vocabulary);
    const DatasetInfo& info = tokens.info;
    auto tokenizer = make_tokenizer(info.tokenizer, tokens.vocabulary);
    if (!tokens.known) {
        if (tokenizer->vocab_size() > run.config.model.vocab_size) {
            throw_data("{}: vocabulary of {} tokens, but model.vocab_size is {}", vocabulary,
                       tokenizer->vocab_size(), run.config.model.vocab_size);
        }
    } else if (tokenizer->vocab_size() != info.vocab_size || tokenizer->separator() != info.separator) {
        throw_data("{}: vocabulary of {} tokens with separator {}, but the data has {} with separator {}",
                   tokens.vocabulary, tokenizer->vocab_size(), tokenizer->separator(), info.vocab_size,
                   info.separator);
    }
    return tokenizer;
}

}  // namespace speedrun
