#include "data/text/json_lines.h"

#include <fmt/format.h>

#include <utility>

#include "data/json_text.h"
#include "data/text_file.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

std::string keys_of(const nlohmann::json& object) {
    constexpr size_t kMostKeys = 8;
    std::string text;
    size_t count = 0;
    for (const auto& entry : object.items()) {
        if (count++ == kMostKeys) return text + ", ...";
        text += (count > 1 ? ", " : "") + shown_key<nlohmann::json>(entry.key());
    }
    return text.empty() ? "no key" : text;
}

}  // namespace

JsonLines::JsonLines(std::string path, std::string key, Handler handle)
    : path_(std::move(path)), key_(std::move(key)), handle_(std::move(handle)) {}

void JsonLines::read_line(std::string_view line) {
    if (line.find_first_not_of(" \t\r") == line.npos) return;
    const auto where = [&] { return fmt::format("{}: line {}", path_, number_); };
    nlohmann::json object;
    try {
        object = parse_json<nlohmann::json>(line);
    } catch (const JsonError& error) {
        throw_data("{}: not valid JSON: {} (one object per line is expected)", where(), error.what());
    }
    if (!object.is_object())
        throw_data("{}: expected an object per line, found {}; jq -c '.[]' splits a list into lines", where(),
                   shown(object));
    const auto found = object.find(key_);
    if (found == object.end())
        throw_data("{}: key '{}' is missing; the object has {}: choose one by --json-key", where(), key_,
                   keys_of(object));
    if (!found->is_string())
        throw_data("{}: key '{}' is {}, expected a string", where(), key_, shown(*found));
    handle_(found->get_ref<const std::string&>());
}

void JsonLines::add(std::string_view piece) {
    while (!piece.empty()) {
        const size_t end = piece.find('\n');
        const std::string_view part = piece.substr(0, end);
        if (line_.size() + part.size() > kMaxLineBytes)
            throw_data("{}: line {}: has more than {} MiB, expected one JSON object per line", path_, number_,
                       kMaxLineBytes >> 20);
        if (end == piece.npos) {
            line_ += part;
            return;
        }
        if (line_.empty()) {
            read_line(part);
        } else {
            line_ += part;
            read_line(line_);
            line_.clear();
        }
        ++number_;
        piece.remove_prefix(end + 1);
    }
}

void JsonLines::finish() {
    read_line(line_);
    line_.clear();
}

}  // namespace speedrun
