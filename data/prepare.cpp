#include "data/prepare.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string_view>

#include "data/folder_lock.h"
#include "data/shard.h"
#include "data/tokenizer.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;

// Writes the tokens of one split as shards of shard_tokens; the last one may be shorter.
class ShardWriter {
  public:
    ShardWriter(fs::path folder, std::string split, int64_t shard_tokens)
        : folder_(std::move(folder)), split_(std::move(split)), limit_(static_cast<size_t>(shard_tokens)) {}

    void append_document(std::span<const uint16_t> tokens, uint16_t separator) {
        while (!tokens.empty()) {
            const size_t count = std::min(tokens.size(), limit_ - pending_.size());
            pending_.insert(pending_.end(), tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(count));
            tokens = tokens.subspan(count);
            if (pending_.size() == limit_) flush();
        }
        pending_.push_back(separator);
        if (pending_.size() == limit_) flush();
        ++documents_;
    }

    // Writes the remaining tokens. Appends the shards to info.shards.
    SplitSummary finish(DatasetInfo& info) {
        if (!pending_.empty()) flush();
        SplitSummary summary{documents_, 0};
        for (const ShardInfo& shard : shards_) summary.tokens += shard.tokens;
        info.shards.insert(info.shards.end(), shards_.begin(), shards_.end());
        return summary;
    }

  private:
    void flush() {
        const std::string file = fmt::format("{}_{:06}.bin", split_, shards_.size());
        const std::string path = (folder_ / file).string();
        write_shard(path, pending_);
        shards_.push_back({file, split_, static_cast<int64_t>(pending_.size()), sha256_file(path)});
        pending_.clear();
    }

    fs::path folder_;
    std::string split_;
    size_t limit_;
    std::vector<uint16_t> pending_;
    std::vector<ShardInfo> shards_;
    int64_t documents_ = 0;
};

using DocumentHandler = std::function<void(std::string_view)>;

// Calls `handle` with the text of every non-empty document in the file.
void for_each_document(const std::string& path, const std::string& marker, const DocumentHandler& handle) {
    if (fs::is_directory(path)) throw_data("{}: is a folder, expected a text file", path);
    std::ifstream file(path, std::ios::binary);
    if (!file) throw_data("{}: cannot open the input file", path);
    std::string document;
    if (marker.empty()) {
        document.assign(std::istreambuf_iterator<char>(file), {});
    } else {
        std::string line;
        while (std::getline(file, line)) {
            if (line == marker) {
                if (!document.empty()) handle(document);
                document.clear();
                continue;
            }
            document += line;
            if (!file.eof()) document += '\n';  // the last line may have no newline
        }
    }
    if (file.bad()) throw_data("{}: read failed", path);
    if (!document.empty()) handle(document);
}

// True for names of shards that `prepare` writes, such as train_000000.bin.
bool is_prepared_shard(const std::string& file) {
    for (const std::string_view split : {"train_", "val_"}) {
        const std::string_view name = file;
        if (name.size() != split.size() + 10 || !name.starts_with(split) || !name.ends_with(".bin")) continue;
        const std::string_view digits = name.substr(split.size(), 6);
        return std::all_of(digits.begin(), digits.end(),
                           [](unsigned char c) { return std::isdigit(c) != 0; });
    }
    return false;
}

// Returns the files of a dataset in the folder, dataset.json first.
std::vector<fs::path> existing_dataset(const fs::path& folder) {
    std::vector<fs::path> files;
    if (!fs::exists(folder)) return files;
    if (fs::exists(folder / "dataset.json")) files.push_back(folder / "dataset.json");
    for (const auto& entry : fs::directory_iterator(folder)) {
        const std::string name = entry.path().filename().string();
        if (is_prepared_shard(name) || name == kVocabularyFile) files.push_back(entry.path());
    }
    return files;
}

void check_options(const PrepareOptions& options) {
    if (options.inputs.empty()) throw_usage("prepare: no input file; name text files with --input");
    if (options.out_dir.empty()) throw_usage("prepare: no output folder; name one with --out");
    if (options.val_every < 0 || options.val_every == 1) {
        throw_usage("prepare: --val-every is {}, expected 0 (no validation) or 2 or more", options.val_every);
    }
    if (options.shard_tokens < 1 || options.shard_tokens > INT32_MAX) {
        throw_usage("prepare: --shard-tokens is {}, expected 1 to {}", options.shard_tokens, INT32_MAX);
    }
}

std::string dataset_name(const PrepareOptions& options) {
    if (!options.name.empty()) return options.name;
    const fs::path path = fs::absolute(options.out_dir).lexically_normal();
    return (path.has_filename() ? path : path.parent_path()).filename().string();
}

PrepareSummary write_dataset(const PrepareOptions& options, const Tokenizer& tokenizer,
                             const fs::path& folder) {
    ShardWriter train(folder, "train", options.shard_tokens);
    ShardWriter val(folder, "val", options.shard_tokens);
    const auto separator = static_cast<uint16_t>(tokenizer.separator());
    int64_t documents = 0;
    for (const std::string& input : options.inputs) {
        for_each_document(input, options.document_marker, [&](std::string_view text) {
            ++documents;
            const bool to_val = options.val_every > 0 && documents % options.val_every == 0;
            (to_val ? val : train).append_document(tokenizer.encode(text), separator);
        });
    }
    if (documents == 0)
        throw_data("prepare: no text in {} input file(s); the first is {}", options.inputs.size(),
                   options.inputs.front());
    if (options.val_every > documents) {
        throw_data("prepare: --val-every {} selects no document for validation: there are only {}",
                   options.val_every, documents);
    }
    PrepareSummary summary;
    summary.info.name = dataset_name(options);
    summary.info.tokenizer = tokenizer.name();
    summary.info.vocab_size = tokenizer.vocab_size();
    summary.info.separator = tokenizer.separator();
    summary.info.separators = SeparatorPosition::after;
    summary.train = train.finish(summary.info);
    summary.val = val.finish(summary.info);
    if (!options.vocabulary.empty()) {
        fs::copy_file(options.vocabulary, folder / kVocabularyFile);
        summary.info.vocabulary_sha256 = sha256_file((folder / kVocabularyFile).string());
    }
    write_dataset_info((folder / "dataset.json").string(), summary.info);
    return summary;
}

// Removes dataset.json first and creates it last: a folder that has one is complete.
void replace_dataset(const fs::path& staging, const fs::path& out_dir, const DatasetInfo& info) {
    for (const fs::path& old : existing_dataset(out_dir)) fs::remove(old);
    for (const ShardInfo& shard : info.shards) fs::rename(staging / shard.file, out_dir / shard.file);
    if (!info.vocabulary_sha256.empty()) fs::rename(staging / kVocabularyFile, out_dir / kVocabularyFile);
    fs::rename(staging / "dataset.json", out_dir / "dataset.json");
    fs::remove(staging);
}

void print_summary(const PrepareOptions& options, const PrepareSummary& summary) {
    fmt::print("{}: dataset '{}', tokenizer {}, vocabulary {}\n", options.out_dir, summary.info.name,
               summary.info.tokenizer, summary.info.vocab_size);
    fmt::print("  train: {} documents, {} tokens\n", summary.train.documents, summary.train.tokens);
    fmt::print("  val:   {} documents, {} tokens\n", summary.val.documents, summary.val.tokens);
    std::fflush(stdout);
}

}  // namespace

PrepareSummary prepare_dataset(const PrepareOptions& options) try {
    check_options(options);
    const auto tokenizer = make_tokenizer(options.tokenizer, options.vocabulary);
    const fs::path out_dir = options.out_dir;
    const auto expect_free = [&] {
        const auto existing = existing_dataset(out_dir);
        if (!existing.empty() && !options.force) {
            throw_usage("prepare: {} already contains a dataset ({}); --force replaces it", options.out_dir,
                        existing.front().filename().string());
        }
    };
    expect_free();
    fs::create_directories(out_dir);
    const FolderLock lock(options.out_dir);
    expect_free();  // again: another process may have written a dataset before the lock
    const fs::path staging = out_dir / ".staging";
    fs::remove_all(staging);  // left by a killed run
    fs::create_directories(staging);
    PrepareSummary summary;
    try {
        summary = write_dataset(options, *tokenizer, staging);
    } catch (...) {
        std::error_code ignored;
        fs::remove_all(staging, ignored);
        throw;
    }
    replace_dataset(staging, out_dir, summary.info);
    if (!options.quiet) print_summary(options, summary);
    return summary;
} catch (const fs::filesystem_error& error) {
    throw_data("prepare: {}", error.what());
}

}  // namespace speedrun
