#include "data/bpe_vocabulary.h"

#include <openssl/evp.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>

#include "data/dataset.h"
#include "data/json_text.h"
#include "data/text_file.h"
#include "data/tokenizer_json.h"
#include "data/vocabulary_builder.h"
#include "data/vocabulary_pair.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

std::optional<std::string> base64_bytes(std::string_view text) {
    if (text.empty() || text.size() % 4 != 0 || text.size() > 2 * kMaxTokenBytes) return std::nullopt;
    std::string bytes(text.size() / 4 * 3, '\0');
    const int size =
        EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                        reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
    if (size < 0) return std::nullopt;
    const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
    bytes.resize(static_cast<size_t>(size) - padding);  // OpenSSL counts padding as zeros
    return bytes;
}

void read_tiktoken_line(VocabularyBuilder& builder, const std::string& path, std::string_view line,
                        int64_t number) {
    const std::string where = fmt::format("line {}", number);
    const size_t space = line.find(' ');
    const std::string_view rank = space == line.npos ? "" : line.substr(space + 1);
    int64_t id = 0;
    const auto [end, error] = std::from_chars(rank.data(), rank.data() + rank.size(), id);
    const bool has_rank = error == std::errc{} && end == rank.data() + rank.size();
    const auto bytes = base64_bytes(line.substr(0, space));
    if (!has_rank || !bytes) {
        throw_data("{}: {}: expected a token in base64, a space and its rank, found {}{}", path, where,
                   shown(nlohmann::json(std::string(line.substr(0, 60)))),
                   number == 1 ? "; a vocabulary is a tiktoken file or a tokenizer.json" : "");
    }
    builder.add(where, *bytes, id);
}

// Adds every split of a token into two tokens, because tiktoken merges any pair that yields a token.
void add_all_merges(VocabularyBuilder& builder) {
    for (size_t id = 0; id < builder.tokens().size(); ++id) {
        const std::string& token = builder.tokens()[id];
        for (size_t cut = 1; cut < token.size(); ++cut) {
            const auto left = builder.id_of(token.substr(0, cut));
            if (!left) continue;
            const auto right = builder.id_of(token.substr(cut));
            if (right) builder.merge(*left, *right, static_cast<uint16_t>(id), static_cast<uint32_t>(id));
        }
    }
}

BpeVocabulary read_tiktoken(const std::string& path, std::string_view text) {
    VocabularyBuilder builder(path);
    for (int64_t number = 1; !text.empty(); ++number) {
        std::string_view line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(text.size(), line.size() + 1));
        if (line.ends_with('\r')) line.remove_suffix(1);
        if (!line.empty()) read_tiktoken_line(builder, path, line, number);
    }
    size_t separator = 0;
    while (!builder.is_free(separator)) ++separator;
    builder.reserve(kSeparatorText, static_cast<int64_t>(separator));
    add_all_merges(builder);
    return builder.finish(static_cast<int32_t>(separator), true);
}

struct PairOfNames {
    const char* tokens;
    const char* merges;
};
constexpr PairOfNames kPairs[] = {{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}};

}  // namespace

VocabularyFiles vocabulary_files(const std::string& path) {
    namespace fs = std::filesystem;
    std::error_code ignored;
    const bool is_folder = fs::is_directory(path, ignored);
    if (is_folder && fs::exists(fs::path(path) / "tokenizer.json"))
        return {(fs::path(path) / "tokenizer.json").string(), ""};
    const fs::path folder = is_folder ? fs::path(path) : fs::path(path).parent_path();
    const std::string name = is_folder ? "" : fs::path(path).filename().string();
    for (const PairOfNames& pair : kPairs) {
        const fs::path tokens = folder / pair.tokens, merges = folder / pair.merges;
        if (!is_folder && name != pair.tokens && name != pair.merges) continue;
        if (fs::exists(tokens, ignored) && fs::exists(merges, ignored))
            return {tokens.string(), merges.string()};
        if (!is_folder)
            throw_data("{}: {} is missing in its folder: {} and {} are one vocabulary", path,
                       fs::exists(tokens, ignored) ? pair.merges : pair.tokens, pair.tokens, pair.merges);
    }
    if (is_folder && fs::exists(folder / kVocabularyFile, ignored))
        return {(folder / kVocabularyFile).string(), ""};
    if (is_folder)
        throw_data(
            "{}: no vocabulary in this folder, expected tokenizer.json, vocab.json with merges.txt, encoder.json with "
            "vocab.bpe, or a dataset's {}",
            path, kVocabularyFile);
    return {path, ""};
}

BpeVocabulary read_bpe_vocabulary(const std::string& path) {
    const VocabularyFiles files = vocabulary_files(path);
    if (!files.merges.empty()) return read_vocabulary_pair(files);
    const std::string text = read_text_file(files.tokens);
    const size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == text.npos)
        throw_data("{}: empty; expected a tiktoken file or a tokenizer.json", files.tokens);
    if (text[begin] != '{') return read_tiktoken(files.tokens, text);
    return read_tokenizer_json(files.tokens, text);
}

}  // namespace speedrun
