// JSON parser for untrusted files: any bytes yield a value or a JsonError, and values are shortened in messages. The
// program parses all JSON here (`scripts/check_layers.py`).
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

// Values are destroyed, copied and printed recursively: without a limit a megabyte of '[' would overflow the stack.
inline constexpr int kMaxJsonDepth = 64;

struct JsonLimits {
    size_t bytes = size_t{64} << 20;
    size_t keys = 100'000;  // per object
};

// Parses a whole text in linear time. Json: nlohmann's json or ordered_json. Throws JsonError, with line and column,
// for text that is not JSON; also for duplicate keys, NUL bytes, and texts beyond kMaxJsonDepth or the limits.
template <class Json>
Json parse_json(std::string_view text, const JsonLimits& limits = {});
extern template nlohmann::json parse_json(std::string_view, const JsonLimits&);
extern template nlohmann::ordered_json parse_json(std::string_view, const JsonLimits&);

// Returns a value for a message: JSON, shortened.
template <class Json>
std::string shown(const Json& value) {
    constexpr size_t kLongest = 100;
    std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() <= kLongest) return text;
    size_t end = kLongest;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80)
        --end;  // not inside a UTF-8 character
    return text.substr(0, end) + "...";
}

// Returns a whole number below INT64_MAX, also if written as 2.0. Throws JsonError for other values. The library's own
// conversion of 1e30 is undefined.
template <class Json>
int64_t whole_number(const Json& value) {
    constexpr double kMax = 9007199254740992.0;  // 2^53: doubles represent every whole number up to it
    if (value.is_number_unsigned()) {
        const auto number = value.template get<uint64_t>();
        if (number < static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
            return static_cast<int64_t>(number);
    } else if (value.is_number_integer()) {
        return value.template get<int64_t>();
    } else if (value.is_number_float()) {
        const auto number = value.template get<double>();
        if (number == std::floor(number) && std::abs(number) <= kMax) return static_cast<int64_t>(number);
    }
    throw JsonError("expected a whole number, got " + shown(value));
}

// Returns a key for a message: escaped like JSON, so that a NUL does not end the message, without quotes.
template <class Json>
std::string shown_key(const std::string& key) {
    const std::string text = shown(Json(key));
    const bool cut = !text.ends_with('"');
    return text.substr(1, text.size() - (cut ? 1 : 2));
}

}  // namespace speedrun
