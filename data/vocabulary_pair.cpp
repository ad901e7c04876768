#include "data/vocabulary_pair.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "data/gpt2_alphabet.h"
#include "data/json_text.h"
#include "data/text_file.h"
#include "data/vocabulary_builder.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

nlohmann::json read_tokens(const std::string& path) {
    nlohmann::json tokens;
    try {
        tokens = parse_json<nlohmann::json>(read_text_file(path), {.keys = 1'000'000});
    } catch (const JsonError& error) {
        throw_data("{}: not valid JSON: {}", path, error.what());
    }
    if (!tokens.is_object())
        throw_data("{}: expected an object of tokens and ids, found {}", path, shown(tokens));
    return tokens;
}

// Adds the merges. The first line may be a version.
void read_merge_lines(const std::string& path, VocabularyBuilder& builder) {
    const std::string content = read_text_file(path);
    int64_t number = 1;
    for (std::string_view text = content; !text.empty(); ++number) {
        std::string_view line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(text.size(), line.size() + 1));
        if (line.ends_with('\r')) line.remove_suffix(1);
        if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
        if (!builder.merge_line(fmt::format("merge in line {}", number), std::string(line)))
            throw_data("{}: line {}: expected two tokens and a space between them, found '{}'", path, number,
                       shown_text(line));
    }
}

}  // namespace

BpeVocabulary read_vocabulary_pair(const VocabularyFiles& files) {
    VocabularyBuilder builder(files.tokens);
    int64_t separator = -1;
    const nlohmann::json tokens = read_tokens(files.tokens);
    for (const auto& [text, id] : tokens.items()) {
        const std::string where = shown(nlohmann::json(text));
        if (!id.is_number_integer())
            throw_data("{}: {}: expected the id of a token, found {}", files.tokens, where, shown(id));
        if (text == kSeparatorText) {
            separator = id.get<int64_t>();
            builder.reserve(where, separator);
        } else {
            builder.add(where, gpt2_bytes(files.tokens, where, text), id.get<int64_t>());
        }
    }
    if (separator < 0)
        throw_data("{}: no {} there, expected it as the separator of documents", files.tokens,
                   kSeparatorText);
    read_merge_lines(files.merges, builder);
    return builder.finish(static_cast<int32_t>(separator), false);
}

}  // namespace speedrun
