#include "data/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>

#include "data/gpt2_alphabet.h"
#include "data/json_text.h"
#include "data/vocabulary_builder.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

using SortedJson = nlohmann::json;  // sorted: an object has a key per token

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
            // The tokenizers library finds these in text; encode() never returns them.
            if (const SortedJson special = member(added[i], "special"); special != true)
                wrong(where + ".special", "true: added tokens that are ordinary text are not supported",
                      special);
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
            builder_.add(where, gpt2_bytes(path_, where, text), id.get<int64_t>());
        }
    }

    void read_merges() {
        const SortedJson& merges = required(root_["model"], "merges", "model.merges");
        if (!merges.is_array()) wrong("model.merges", "a list", merges);
        for (size_t i = 0; i < merges.size(); ++i) {
            const std::string where = fmt::format("model.merges[{}]", i);
            if (!read_merge(where, merges[i])) wrong(where, "a pair of tokens", merges[i]);
        }
    }

    // "a b", or ["a", "b"] in newer files.
    bool read_merge(const std::string& where, const SortedJson& merge) {
        if (merge.is_string()) return builder_.merge_line(where, merge.get<std::string>());
        if (!merge.is_array() || merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string())
            return false;
        builder_.merge_texts(where, merge[0].get<std::string>(), merge[1].get<std::string>());
        return true;
    }

    const std::string& path_;
    const SortedJson& root_;
    VocabularyBuilder builder_;
    std::unordered_map<std::string, int64_t> special_;
};

}  // namespace

BpeVocabulary read_tokenizer_json(const std::string& path, const std::string& text) {
    try {
        return TokenizerJson(path, parse_json<SortedJson>(text, {.keys = 1'000'000})).read();
    } catch (const JsonError& error) {
        throw_data("{}: not valid JSON: {}", path, error.what());
    }
}

std::string write_tokenizer_json(const BpeVocabulary& vocabulary) {
    using Ordered = nlohmann::ordered_json;
    const auto text_of = [&](size_t id) {
        return static_cast<int32_t>(id) == vocabulary.separator ? kSeparatorText
                                                                : gpt2_text(vocabulary.tokens[id]);
    };
    Ordered::object_t tokens;
    for (size_t id = 0; id < vocabulary.tokens.size(); ++id)
        if (std::string text = text_of(id); !text.empty()) tokens.emplace_back(std::move(text), id);
    const auto separator = static_cast<size_t>(vocabulary.separator);
    if (separator >= vocabulary.tokens.size()) tokens.emplace_back(kSeparatorText, separator);
    std::vector<BpeMerge> sorted = vocabulary.merges;
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
    Ordered merges = Ordered::array();
    for (const BpeMerge& merge : sorted) merges.push_back(text_of(merge.left) + " " + text_of(merge.right));
    const Ordered byte_level = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
    const Ordered root = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens",
                           {{{"id", vocabulary.separator},
                             {"content", kSeparatorText},
                             {"single_word", false},
                             {"lstrip", false},
                             {"rstrip", false},
                             {"normalized", false},
                             {"special", true}}}},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", byte_level},
                          {"post_processor", nullptr},
                          {"decoder", byte_level},
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
    return root.dump(2) + "\n";
}

}  // namespace speedrun
