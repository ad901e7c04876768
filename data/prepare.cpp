#include "data/prepare.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string_view>
#include <utility>

#include "data/bpe_trainer.h"
#include "data/bpe_vocabulary.h"
#include "data/durable_file.h"
#include "data/errno_text.h"
#include "data/folder_lock.h"
#include "data/gpt2_tokenizer.h"
#include "data/text/document_source.h"
#include "data/text/input_files.h"
#include "data/tokenizer.h"
#include "data/tokenizer_json.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;

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

constexpr const char* kTokenizerFile = "tokenizer.json";

// True if the folder's tokenizer.json is a copy of its vocabulary, as after train_bpe.
bool has_prepared_tokenizer(const fs::path& folder) {
    const fs::path tokenizer = folder / kTokenizerFile, vocabulary = folder / kVocabularyFile;
    return fs::is_regular_file(tokenizer) && fs::is_regular_file(vocabulary) &&
           sha256_file(tokenizer.string()) == sha256_file(vocabulary.string());
}

// Returns the files of a dataset in the folder, dataset.json first.
std::vector<fs::path> existing_dataset(const fs::path& folder) {
    std::vector<fs::path> files;
    if (!fs::exists(folder)) return files;
    if (fs::exists(folder / "dataset.json")) files.push_back(folder / "dataset.json");
    if (has_prepared_tokenizer(folder)) files.push_back(folder / kTokenizerFile);
    for (const auto& entry : fs::directory_iterator(folder)) {
        const std::string name = entry.path().filename().string();
        if (is_prepared_shard(name) || name == kVocabularyFile) files.push_back(entry.path());
    }
    return files;
}

void check_val_options(const PrepareOptions& options) {
    if (options.val_every < 0 || options.val_every == 1)
        throw_usage("prepare: --val-every is {}, expected 0 (no validation) or 2 or more", options.val_every);
    if (!(options.val_fraction >= 0 && options.val_fraction < 1))
        throw_usage(
            "prepare: --val-fraction is {}, expected 0 (no validation) or a share below 1, such as 0.1",
            options.val_fraction);
    if (options.val_every > 0 && options.val_fraction > 0)
        throw_usage("prepare: --val-every and --val-fraction are two ways to hold out text; choose one");
}

void check_options(const PrepareOptions& options) {
    if (options.inputs.empty() && options.input_list.empty())
        throw_usage("prepare: no input; name files or folders with --input");
    if (options.out_dir.empty()) throw_usage("prepare: no output folder; name one with --out");
    std::error_code ignored;  // reported when the folder is created
    if (fs::exists(options.out_dir, ignored) && !fs::is_directory(options.out_dir, ignored))
        throw_usage("prepare: --out {}: a file, expected a folder, which is created if absent",
                    options.out_dir);
    check_val_options(options);
    if (options.shard_tokens < 1 || options.shard_tokens > INT32_MAX)
        throw_usage("prepare: --shard-tokens is {}, expected 1 to {}", options.shard_tokens, INT32_MAX);
    if (options.document_marker.find_first_of("\r\n") != std::string::npos)
        throw_usage("prepare: --document-marker has a line end; it is one line, compared without its end");
    if (!options.train_bpe) return;
    if (options.train_bpe < kSmallestTrainedVocabulary || options.train_bpe > UINT16_MAX + 1)
        throw_usage("prepare: --train-bpe is {}, expected {} to {} tokens", *options.train_bpe,
                    kSmallestTrainedVocabulary, UINT16_MAX + 1);
    if (!options.vocabulary.empty() || options.tokenizer == "bytes")
        throw_usage("prepare: --train-bpe makes a vocabulary for the tokenizer gpt2; leave {} out",
                    options.vocabulary.empty() ? "--tokenizer bytes" : "--vocab");
}

void expect_free(const PrepareOptions& options) {
    const fs::path folder = options.out_dir;
    const auto existing = existing_dataset(folder);
    if (!existing.empty() && !options.force)
        throw_usage("prepare: {} already contains a dataset ({}); --force replaces it", options.out_dir,
                    existing.front().filename().string());
    if (options.train_bpe && fs::exists(folder / kTokenizerFile) && !has_prepared_tokenizer(folder))
        throw_usage("prepare: {} has a {} that is not a dataset's; choose another folder, or move the file",
                    options.out_dir, kTokenizerFile);
}

// Creates a writable folder. Unless kept, the folder and parents that it created are removed if they are empty.
class CreatedFolder {
  public:
    explicit CreatedFolder(const fs::path& folder) {
        fs::path missing = fs::absolute(folder).lexically_normal();
        if (!missing.has_filename()) missing = missing.parent_path();
        for (; !fs::exists(missing); missing = missing.parent_path()) created_.push_back(missing);
        fs::create_directories(folder);
        if (::access(folder.c_str(), W_OK | X_OK) != 0)
            throw_data("prepare: {}: cannot be written: {}", folder.string(), errno_text());
    }
    ~CreatedFolder() {
        std::error_code error;
        for (const fs::path& folder : created_)
            if (!fs::remove(folder, error)) return;
    }
    CreatedFolder(const CreatedFolder&) = delete;
    CreatedFolder& operator=(const CreatedFolder&) = delete;
    void keep() { created_.clear(); }

  private:
    std::vector<fs::path> created_;  // innermost first
};

std::string dataset_name(const PrepareOptions& options) {
    if (!options.name.empty()) return options.name;
    const fs::path path = fs::absolute(options.out_dir).lexically_normal();
    return (path.has_filename() ? path : path.parent_path()).filename().string();
}

// Inputs, tokenizer and split of a dataset.
struct Sources {
    std::vector<std::string> files;
    std::unique_ptr<Tokenizer> tokenizer;
    std::string
        stored_vocabulary;  // text of kVocabularyFile; empty: a copy of the user's file, if there is one
    SplitRule rule;
};

void read_all(const PrepareOptions& options, const std::vector<std::string>& files,
              const DocumentHandler& handler, TextFindings& findings) {
    const DocumentFormat format{options.document_marker, options.json_key};
    for (const std::string& file : files) read_documents(file, format, handler, findings);
}

// Reads the inputs for train_bpe and val_fraction.
void survey(const PrepareOptions& options, Sources& sources) {
    for (const std::string& file : sources.files) {
        if (!fs::is_regular_file(file) && fs::exists(file))
            throw_data("{}: not a regular file: --train-bpe and --val-fraction read their inputs twice",
                       file);
    }
    PieceCounts pieces;
    int64_t bytes = 0;
    TextFindings ignored;  // reported by the second reading
    const auto add = [&](std::string_view text, bool) {
        bytes += static_cast<int64_t>(text.size());
        if (options.train_bpe) pieces.add(text);
    };
    read_all(options, sources.files, {.text = add, .end = [&] { pieces.end_document(); }}, ignored);
    if (options.val_fraction > 0)
        sources.rule.from_byte = std::llround(static_cast<double>(bytes) * (1 - options.val_fraction));
    if (!options.train_bpe) return;
    BpeVocabulary vocabulary = train_bpe(pieces, static_cast<int32_t>(*options.train_bpe));
    sources.stored_vocabulary = write_tokenizer_json(vocabulary);
    sources.tokenizer = make_gpt2_tokenizer(std::move(vocabulary));
}

Sources find_sources(const PrepareOptions& options) {
    Sources sources;
    sources.rule.every = options.val_every;
    if (!options.train_bpe) {
        const char* const other = options.vocabulary.empty() ? "bytes" : "gpt2";
        sources.tokenizer =
            make_tokenizer(options.tokenizer.empty() ? other : options.tokenizer, options.vocabulary);
        if (!options.vocabulary.empty() && !vocabulary_files(options.vocabulary).merges.empty())
            sources.stored_vocabulary = write_tokenizer_json(read_bpe_vocabulary(options.vocabulary));
    } else if (!options.tokenizer.empty() && options.tokenizer != "gpt2") {
        make_tokenizer(options.tokenizer);  // throws: unknown
    }
    sources.files = input_files(options.inputs, options.input_list);
    if (options.train_bpe || options.val_fraction > 0) survey(options, sources);
    return sources;
}

// Throws a data error if the documents do not match the options.
void check_documents(const PrepareOptions& options, const Sources& sources, const TextFindings& findings,
                     int64_t documents) {
    if (documents == 0)
        throw_data("prepare: no text in {} input file(s); the first is {}", sources.files.size(),
                   sources.files.front());
    const std::string& marker = options.document_marker;
    if (!marker.empty() && findings.markers == 0) {
        throw_data("prepare: --document-marker '{}' is no line of the {} text file(s){}", marker,
                   findings.text_files,
                   findings.text_files == 0 ? ": all inputs are JSON Lines"
                   : findings.markers_inside_lines > 0
                       ? fmt::format("; it occurs {} times with other text in its line",
                                     findings.markers_inside_lines)
                       : "");
    }
    if (options.val_every > documents)
        throw_data("prepare: --val-every {} selects no document for validation: there {} only {}{}",
                   options.val_every, documents == 1 ? "is" : "are", documents,
                   documents == 1 ? "; --val-fraction 0.1 cuts a text at a line" : "");
}

void check_splits(const PrepareOptions& options, const PrepareSummary& summary) {
    if (options.val_fraction <= 0 || (summary.train.documents > 0 && summary.val.documents > 0)) return;
    throw_data("prepare: --val-fraction {} leaves no text for {}: no document or line {}",
               options.val_fraction, summary.val.documents == 0 ? "validation" : "training",
               summary.val.documents == 0 ? "begins in that part of the text" : "ends before it");
}

void store_vocabulary(const PrepareOptions& options, const Sources& sources, const fs::path& folder) {
    const fs::path path = folder / kVocabularyFile;
    if (!sources.stored_vocabulary.empty()) {
        write_file(path.string(), sources.stored_vocabulary, OutputFile::Path::own);
    } else if (!options.vocabulary.empty()) {
        fs::copy_file(vocabulary_files(options.vocabulary).tokens, path);
    }
    if (options.train_bpe)
        write_file((folder / kTokenizerFile).string(), sources.stored_vocabulary, OutputFile::Path::own);
}

PrepareSummary write_dataset(const PrepareOptions& options, const Sources& sources, const fs::path& folder,
                             TextFindings& findings) {
    const Tokenizer& tokenizer = *sources.tokenizer;
    DatasetWriter writer(folder.string(), tokenizer, sources.rule, options.shard_tokens);
    read_all(options, sources.files,
             {.text = [&](std::string_view text, bool is_cuttable) { writer.text(text, is_cuttable); },
              .end = [&] { writer.end_document(); }},
             findings);
    check_documents(options, sources, findings, writer.documents());
    PrepareSummary summary;
    summary.info.name = dataset_name(options);
    summary.info.tokenizer = tokenizer.name();
    summary.info.vocab_size = tokenizer.vocab_size();
    summary.info.separator = tokenizer.separator();
    summary.info.separators = SeparatorPosition::after;
    const DatasetWriter::Splits splits = writer.finish(summary.info);
    summary.train = splits.train;
    summary.val = splits.val;
    check_splits(options, summary);
    store_vocabulary(options, sources, folder);
    if (const std::string vocabulary = (folder / kVocabularyFile).string(); fs::exists(vocabulary))
        summary.info.vocabulary_sha256 = sha256_file(vocabulary);
    write_dataset_info((folder / "dataset.json").string(), summary.info);
    return summary;
}

// Removes dataset.json first and creates it last: a folder that has one is complete.
void replace_dataset(const fs::path& staging, const fs::path& out_dir, const DatasetInfo& info) {
    for (const fs::path& old : existing_dataset(out_dir)) fs::remove(old);
    for (const ShardInfo& shard : info.shards) fs::rename(staging / shard.file, out_dir / shard.file);
    for (const char* const file : {kVocabularyFile, kTokenizerFile, "dataset.json"})
        if (fs::exists(staging / file)) fs::rename(staging / file, out_dir / file);
    fs::remove(staging);
}

void print_summary(const PrepareOptions& options, const Sources& sources, const PrepareSummary& summary) {
    fmt::print("{}: dataset '{}', tokenizer {}, vocabulary {}\n", options.out_dir, summary.info.name,
               summary.info.tokenizer, summary.info.vocab_size);
    fmt::print("  input: {} files, {} documents\n", sources.files.size(),
               summary.train.documents + summary.val.documents);
    fmt::print("  train: {} documents, {} tokens\n", summary.train.documents, summary.train.tokens);
    fmt::print("  val:   {} documents, {} tokens\n", summary.val.documents, summary.val.tokens);
    std::fflush(stdout);
}

void print_warnings(const PrepareOptions& options, const PrepareSummary& summary,
                    const TextFindings& findings) {
    constexpr size_t kMost = 10;
    for (size_t i = 0; i < std::min(findings.invalid.size(), kMost); ++i)
        fmt::print(stderr, "warning: {}\n", findings.invalid[i].describe());
    if (findings.invalid.size() > kMost)
        fmt::print(stderr, "warning: {} more files have bytes outside UTF-8\n",
                   findings.invalid.size() - kMost);
    if (findings.separator_texts > 0)
        fmt::print(
            stderr,
            "warning: {0} occurs {1} times in the text and is encoded as ordinary text; if it is a line of its "
            "own, --document-marker '{0}' ends documents there\n",
            kSeparatorText, findings.separator_texts);
    if (options.train_bpe && *options.train_bpe > summary.info.vocab_size)
        fmt::print(stderr,
                   "warning: the vocabulary has {} of {} tokens: no other pair occurs twice in the text\n",
                   summary.info.vocab_size, *options.train_bpe);
}

}  // namespace

PrepareSummary prepare_dataset(const PrepareOptions& options) try {
    check_options(options);
    expect_free(options);
    const Sources sources = find_sources(options);
    const fs::path out_dir = options.out_dir;
    CreatedFolder folder(out_dir);
    const FolderLock lock(options.out_dir);
    expect_free(options);  // again: another process may have written a dataset before the lock
    const fs::path staging = out_dir / ".staging";
    fs::remove_all(staging);  // left by a killed run
    fs::create_directories(staging);
    PrepareSummary summary;
    TextFindings findings;
    try {
        summary = write_dataset(options, sources, staging, findings);
    } catch (...) {
        std::error_code ignored;
        fs::remove_all(staging, ignored);
        throw;
    }
    replace_dataset(staging, out_dir, summary.info);
    folder.keep();
    if (!options.quiet) {
        print_summary(options, sources, summary);
        print_warnings(options, summary, findings);
    }
    return summary;
} catch (const fs::filesystem_error& error) {
    throw_data("prepare: {}: {}", error.path1().empty() ? options.out_dir : error.path1().string(),
               error.code().message());
}

}  // namespace speedrun
