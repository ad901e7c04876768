// Reading JSON that a stranger wrote: any bytes give a value or a JsonError, and values are shown in messages
// without flooding them.
#pragma once

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace speedrun {

class JsonError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// Values are destroyed, copied and printed by recursion, so that a megabyte of '[' would end the stack.
inline constexpr int kMaxJsonDepth = 64;

// Parses a whole text. Json: nlohmann's json or ordered_json; the latter needs quadratic time in the keys of
// one object. Throws JsonError that names line and column, or the nesting.
template <class Json>
Json parse_json(std::string_view text) {
    try {
        return Json::parse(text, [](int depth, typename Json::parse_event_t, Json&) {
            if (depth > kMaxJsonDepth)
                throw JsonError("nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
            return true;
        });
    } catch (const typename Json::exception& error) {
        throw JsonError(error.what());
    }
}

// A value as a message shows it: JSON, cut after some characters.
template <class Json>
std::string shown(const Json& value) {
    constexpr size_t kLongest = 100;
    std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() <= kLongest) return text;
    size_t end = kLongest;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80)
        --end;  // not inside a character
    return text.substr(0, end) + "...";
}

// A key as a message shows it: escaped like JSON, so that a NUL does not end the message, without the quotes.
template <class Json>
std::string shown_key(const std::string& key) {
    const std::string text = shown(Json(key));
    const bool cut = !text.ends_with('"');
    return text.substr(1, text.size() - (cut ? 1 : 2));
}

}  // namespace speedrun
