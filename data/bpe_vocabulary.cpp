#include "data/bpe_vocabulary.h"

#include <openssl/evp.h>
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "data/json_text.h"
#include "data/text_file.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

using SortedJson = nlohmann::json;  // sorted: an object has a key per token

constexpr const char* kSeparatorText = "<|endoftext|>";
constexpr int64_t kMaxId = UINT16_MAX;

// Collects tokens, then builds the parts of a vocabulary common to both formats.
class Builder {
  public:
    explicit Builder(const std::string& path) : path_(path) {}

    // Stores a token. `where` is its location in the file, for messages.
    void add(const std::string& where, std::string bytes, int64_t id) {
        if (bytes.empty())
            throw_data("{}: {}: a token of 0 bytes, expected 1 to {}", path_, where, kMaxTokenBytes);
        if (bytes.size() > kMaxTokenBytes) {
            throw_data("{}: {}: a token of {} bytes, expected 1 to {}", path_, where, bytes.size(),
                       kMaxTokenBytes);
        }
        check_free(where, id);
        result_.tokens[static_cast<size_t>(id)] = std::move(bytes);
        const std::string& stored = result_.tokens[static_cast<size_t>(id)];
        if (!ids_.emplace(stored, static_cast<uint16_t>(id)).second) {
            throw_data("{}: {}: has the same bytes as token {}", path_, where, ids_.at(stored));
        }
    }
    // Marks an id that has no text.
    void reserve(const std::string& where, int64_t id) { check_free(where, id); }

    std::optional<uint16_t> id_of(const std::string& bytes) const {
        const auto found = ids_.find(bytes);
        if (found == ids_.end()) return std::nullopt;
        return found->second;
    }
    bool is_free(size_t id) const { return id >= used_.size() || !used_[id]; }
    const std::vector<std::string>& tokens() const { return result_.tokens; }

    void merge(uint16_t left, uint16_t right, uint16_t result, uint32_t rank) {
        result_.merges.push_back({left, right, result, rank});
    }

    BpeVocabulary finish(int32_t separator, bool whole_pieces) {
        for (int byte = 0; byte < 256; ++byte) {
            const auto id = id_of(std::string(1, static_cast<char>(byte)));
            if (!id) throw_data("{}: no token for the single byte 0x{:02x}, expected all 256", path_, byte);
            result_.of_byte[static_cast<size_t>(byte)] = *id;
        }
        result_.separator = separator;
        result_.whole_pieces = whole_pieces;
        return std::move(result_);
    }

  private:
    void check_free(const std::string& where, int64_t id) {
        if (id < 0 || id > kMaxId) {
            throw_data("{}: {}: token id {} is outside 0 to {} (shards hold 16 bits)", path_, where, id,
                       kMaxId);
        }
        const auto index = static_cast<size_t>(id);
        if (!is_free(index)) throw_data("{}: {}: token id {} is taken already", path_, where, id);
        if (index >= used_.size()) {
            used_.resize(index + 1);
            result_.tokens.resize(index + 1);
        }
        used_[index] = true;
    }

    const std::string& path_;
    BpeVocabulary result_;
    std::vector<bool> used_;
    std::unordered_map<std::string, uint16_t> ids_;
};

// ---- tiktoken's format

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

void read_tiktoken_line(Builder& builder, const std::string& path, std::string_view line, int64_t number) {
    const std::string where = fmt::format("line {}", number);
    const size_t space = line.find(' ');
    const std::string_view rank = space == line.npos ? "" : line.substr(space + 1);
    int64_t id = 0;
    const auto [end, error] = std::from_chars(rank.data(), rank.data() + rank.size(), id);
    const bool has_rank = error == std::errc{} && end == rank.data() + rank.size();
    const auto bytes = base64_bytes(line.substr(0, space));
    if (!has_rank || !bytes) {
        throw_data("{}: {}: expected a token in base64, a space and its rank, found {}{}", path, where,
                   shown(SortedJson(std::string(line.substr(0, 60)))),
                   number == 1 ? "; a vocabulary is a tiktoken file or a tokenizer.json" : "");
    }
    builder.add(where, *bytes, id);
}

// Adds every split of a token into two tokens, because tiktoken merges any pair that yields a token.
void add_all_merges(Builder& builder) {
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
    Builder builder(path);
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

// ---- tokenizer.json

// GPT-2 encodes bytes as characters (encoder.py, bytes_to_unicode): printable Latin-1 as itself, other bytes in order
// from U+0100. Returns the byte of a character, or nullopt.
std::optional<char> byte_of(int32_t code) {
    static const std::unordered_map<int32_t, char> bytes = [] {
        std::unordered_map<int32_t, char> result;
        int32_t next = 256;
        for (int32_t byte = 0; byte < 256; ++byte) {
            const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
            result.emplace(printable ? byte : next++, static_cast<char>(byte));
        }
        return result;
    }();
    const auto found = bytes.find(code);
    if (found == bytes.end()) return std::nullopt;
    return found->second;
}

std::string bytes_of(const std::string& path, const std::string& where, const std::string& text) {
    std::string bytes;
    for (size_t at = 0; at < text.size();) {
        utf8proc_int32_t code = 0;
        const utf8proc_ssize_t length =
            utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                             static_cast<utf8proc_ssize_t>(text.size() - at), &code);
        const auto byte = length > 0 ? byte_of(code) : std::nullopt;
        if (!byte) {
            throw_data(
                "{}: {}: '{}' is not written in GPT-2's alphabet of bytes (a byte-level BPE is expected)",
                path, where, text);
        }
        bytes += *byte;
        at += static_cast<size_t>(length);
    }
    return bytes;
}

class TokenizerJson {
  public:
    TokenizerJson(const std::string& path, const SortedJson& root)
        : path_(path), root_(root), builder_(path) {}

    BpeVocabulary read() {
        check_kind();
        const std::optional<int64_t> separator = read_added_tokens();
        if (!separator)
            throw_data("{}: added_tokens: no {} there, expected it as the separator of documents", path_,
                       kSeparatorText);
        read_tokens();
        read_merges();
        const SortedJson& model = root_["model"];
        return builder_.finish(static_cast<int32_t>(*separator),
                               model.value("ignore_merges", SortedJson(false)) == true);
    }

  private:
    [[noreturn]] void wrong(const std::string& key, const char* expected, const SortedJson& actual) const {
        throw_data("{}: {}: expected {}, found {}", path_, key, expected, shown(actual));
    }
    static SortedJson member(const SortedJson& object, const char* key) {
        const auto found = object.is_object() ? object.find(key) : object.end();
        return object.is_object() && found != object.end() ? *found : SortedJson();
    }
    const SortedJson& required(const SortedJson& object, const char* key, const std::string& name) const {
        if (!object.contains(key)) throw_data("{}: key '{}' is missing", path_, name);
        return object[key];
    }

    // Throws for settings that would yield other tokens than GPT-2's tokenizer.
    void check_kind() const {
        if (!root_.is_object())
            throw_data("{}: expected an object at the top, found {}", path_, shown(root_));
        const SortedJson& model = required(root_, "model", "model");
        if (!model.is_object()) wrong("model", "an object", model);
        if (const SortedJson type = member(model, "type"); !type.is_null() && type != "BPE")
            wrong("model.type", "\"BPE\"", type);
        for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
            const SortedJson value = member(model, key);
            if (!value.is_null() && value != "") wrong(std::string("model.") + key, "null", value);
        }
        if (const SortedJson value = member(model, "byte_fallback"); value == true)
            wrong("model.byte_fallback", "false", value);
        if (const SortedJson value = member(root_, "normalizer"); !value.is_null())
            wrong("normalizer", "null", value);
        const SortedJson before = member(root_, "pre_tokenizer");
        if (member(before, "type") != "ByteLevel")
            wrong("pre_tokenizer.type", "\"ByteLevel\"", member(before, "type"));
        if (const SortedJson value = member(before, "add_prefix_space"); value != false)
            wrong("pre_tokenizer.add_prefix_space", "false", value);
        if (const SortedJson value = member(before, "use_regex"); value == false)
            wrong("pre_tokenizer.use_regex", "true", value);
    }

    // Special tokens have an id but no text: encode() never returns them.
    std::optional<int64_t> read_added_tokens() {
        std::optional<int64_t> separator;
        const SortedJson added = member(root_, "added_tokens");
        if (!added.is_null() && !added.is_array()) wrong("added_tokens", "a list", added);
        for (size_t i = 0; i < added.size(); ++i) {
            const std::string where = fmt::format("added_tokens[{}]", i);
            const SortedJson content = member(added[i], "content"), id = member(added[i], "id");
            if (!content.is_string()) wrong(where + ".content", "a string", content);
            if (!id.is_number_integer()) wrong(where + ".id", "a whole number", id);
            builder_.reserve(where, id.get<int64_t>());
            special_.emplace(content.get<std::string>(), id.get<int64_t>());
            if (content == kSeparatorText) separator = id.get<int64_t>();
        }
        return separator;
    }

    void read_tokens() {
        const SortedJson& vocab = required(root_["model"], "vocab", "model.vocab");
        if (!vocab.is_object()) wrong("model.vocab", "an object", vocab);
        for (const auto& [text, id] : vocab.items()) {
            const std::string where = fmt::format("model.vocab[{}]", shown(SortedJson(text)));
            if (!id.is_number_integer()) wrong(where, "a whole number", id);
            if (special_.count(text)) continue;
            builder_.add(where, bytes_of(path_, where, text), id.get<int64_t>());
        }
    }

    void read_merges() {
        const SortedJson& merges = required(root_["model"], "merges", "model.merges");
        if (!merges.is_array()) wrong("model.merges", "a list", merges);
        std::unordered_map<uint32_t, size_t> seen;
        for (size_t i = 0; i < merges.size(); ++i) {
            const std::string where = fmt::format("model.merges[{}]", i);
            const auto [left, right] = pair_of(where, merges[i]);
            const std::string left_bytes = bytes_of(path_, where, left),
                              right_bytes = bytes_of(path_, where, right);
            const auto a = builder_.id_of(left_bytes), b = builder_.id_of(right_bytes),
                       result = builder_.id_of(left_bytes + right_bytes);
            if (!a || !b || !result) {
                throw_data("{}: {}: '{}' is not in model.vocab", path_, where,
                           !a   ? left
                           : !b ? right
                                : left + right);
            }
            const auto [first, is_new] = seen.emplace(uint32_t{*a} << 16 | *b, i);
            if (!is_new)
                throw_data("{}: {}: has the same pair as model.merges[{}]", path_, where, first->second);
            builder_.merge(*a, *b, *result, static_cast<uint32_t>(i));
        }
    }

    // "a b", or ["a", "b"] in newer files.
    std::pair<std::string, std::string> pair_of(const std::string& where, const SortedJson& merge) const {
        if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
            return {merge[0].get<std::string>(), merge[1].get<std::string>()};
        const std::string text = merge.is_string() ? merge.get<std::string>() : "";
        const size_t space = text.find(' ');
        if (space == text.npos || text.find(' ', space + 1) != text.npos)
            wrong(where, "a pair of tokens", merge);
        return {text.substr(0, space), text.substr(space + 1)};
    }

    const std::string& path_;
    const SortedJson& root_;
    Builder builder_;
    std::unordered_map<std::string, int64_t> special_;
};

}  // namespace

BpeVocabulary read_bpe_vocabulary(const std::string& path) {
    const std::string text = read_text_file(path);
    const size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == text.npos) throw_data("{}: empty; expected a tiktoken file or a tokenizer.json", path);
    if (text[begin] != '{') return read_tiktoken(path, text);
    try {
        return TokenizerJson(path, parse_json<SortedJson>(text, {.keys = 1'000'000})).read();
    } catch (const JsonError& error) {
        throw_data("{}: not valid JSON: {}", path, error.what());
    }
}

}  // namespace speedrun
