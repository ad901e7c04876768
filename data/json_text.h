// Reading JSON of untrusted files: any bytes give a value or a JsonError, and values are shown in messages without flooding
// them. All JSON that the program reads is parsed here (`scripts/check_layers.py`).
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace speedrun {

class JsonError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// Values are destroyed, copied and printed by recursion: without a limit a megabyte of '[' would overflow the stack.
inline constexpr int kMaxJsonDepth = 64;

struct JsonLimits {
    size_t bytes = size_t{64} << 20;
    size_t keys = 100'000;  // in one object
};

// Parses a whole text in linear time. Json: nlohmann's json or ordered_json. Throws JsonError with line and
// column for text that is no JSON. Duplicate keys, NUL bytes and texts beyond kMaxJsonDepth or the limits throw it too.
template <class Json>
Json parse_json(std::string_view text, const JsonLimits& limits = {});
extern template nlohmann::json parse_json(std::string_view, const JsonLimits&);
extern template nlohmann::ordered_json parse_json(std::string_view, const JsonLimits&);

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

// A whole number that one can be added to, also where it is written as 2.0; JsonError for everything else.
// The library's own conversion of 1e30 has no defined result.
template <class Json>
int64_t whole_number(const Json& value) {
    constexpr double kMost = 9007199254740992.0;  // 2^53: below it doubles hold every whole number
    if (value.is_number_unsigned()) {
        const auto number = value.template get<uint64_t>();
        if (number < static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
            return static_cast<int64_t>(number);
    } else if (value.is_number_integer()) {
        return value.template get<int64_t>();
    } else if (value.is_number_float()) {
        const auto number = value.template get<double>();
        if (number == std::floor(number) && std::abs(number) <= kMost) return static_cast<int64_t>(number);
    }
    throw JsonError("expected a whole number, got " + shown(value));
}

// A key as a message shows it: escaped like JSON, so that a NUL does not end the message, without the quotes.
template <class Json>
std::string shown_key(const std::string& key) {
    const std::string text = shown(Json(key));
    const bool cut = !text.ends_with('"');
    return text.substr(1, text.size() - (cut ? 1 : 2));
}

}  // namespace speedrun
