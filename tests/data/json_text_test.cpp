// Limits of the JSON reader: any text results in a value or a JsonError with a short message, in linear time.
#include "data/json_text.h"
#include "tests/errors.h"

#include <chrono>

namespace speedrun::json_text_test {

using Ordered = nlohmann::ordered_json;
using Sorted = nlohmann::json;

template <class Json>
std::string refusal(const std::string& text, const JsonLimits& limits = {}) {
    try {
        parse_json<Json>(text, limits);
    } catch (const JsonError& error) {
        EXPECT_LT(std::string(error.what()).size(), 1000u);
        return error.what();
    }
    return "accepted";
}

void expect_refused(const std::string& text, const std::string& part, const JsonLimits& limits = {}) {
    for (const std::string& message : {refusal<Ordered>(text, limits), refusal<Sorted>(text, limits)})
        EXPECT_THAT(message, HasSubstr(part)) << message << "\nof " << text.substr(0, 60);
}

std::string object_of(int keys) {
    std::string text = "{";
    for (int i = 0; i < keys; ++i)
        text += (i ? ",\"k" : "\"k") + std::to_string(i) + "\":[" + std::to_string(i) + "]";
    return text + "}";
}

TEST(JsonTextTest, ValuesAndTheirOrderAreThoseOfTheText) {
    const std::string text =
        R"({"b":[1,-2,2.5,true,null,"\u00e4"],"a":{"c":{},"d":[]},"":18446744073709551615})";
    EXPECT_EQ(parse_json<Ordered>(text), Ordered::parse(text));
    EXPECT_EQ(parse_json<Sorted>(text), Sorted::parse(text));
    EXPECT_EQ(parse_json<Ordered>(text).dump(), Ordered::parse(text).dump());
    EXPECT_EQ(parse_json<Ordered>(object_of(40)).dump(), object_of(40));
    for (const char* value : {"7", "\"a\"", "null", "[]", "{}"})
        EXPECT_EQ(parse_json<Ordered>(value), Ordered::parse(value));
}

TEST(JsonTextTest, OtherTextsAreRefused) {
    for (const char* text : {"", " ", "{", "[1,", "{\"a\"}", "nul", "1 2", "{\"a\":1}{", "'a'", "NaN", "[1,]",
                             "\xff", "\"\xc3\""})
        expect_refused(text, "parse error");
    expect_refused("1e999", "number overflow");
    expect_refused("[" + std::string(100'000, '9') + "e400000]", "");
    expect_refused("{\"a\": \"" + std::string(1'000'000, 'x'), "parse error");
}

// The library treats a NUL byte as the end of the text and ignores all bytes after it.
TEST(JsonTextTest, NulBytesAreRefused) {
    using std::string_literals::operator""s;
    expect_refused("{}\0garbage"s, "NUL byte at offset 2");
    expect_refused("\0\0\0"s, "NUL byte at offset 0");
    expect_refused("{\"a\":\"\0\"}"s, "NUL byte at offset 6");
}

TEST(JsonTextTest, DuplicateKeysAreRefused) {
    expect_refused(R"({"a":1,"b":2,"a":3})", "duplicate key \"a\"");
    expect_refused(R"([{"x":{"a":{},"a":{}}}])", "duplicate key \"a\"");
    for (const int keys : {15, 16, 17, 40}) {
        std::string text = object_of(keys);
        text.back() = ',';
        expect_refused(text + "\"k14\":1}", "duplicate key \"k14\"");
    }
    EXPECT_EQ(refusal<Ordered>(R"([{"a":1},{"a":1}])"), "accepted");
}

TEST(JsonTextTest, NestingHasALimit) {
    const auto nested = [](int levels, const char* open, const char* close) {
        std::string text;
        for (int i = 0; i < levels; ++i) text += open;
        text += "1";
        for (int i = 0; i < levels; ++i) text += close;
        return text;
    };
    EXPECT_EQ(refusal<Ordered>(nested(kMaxJsonDepth, "[", "]")), "accepted");
    EXPECT_EQ(refusal<Sorted>(nested(kMaxJsonDepth, "{\"a\":", "}")), "accepted");
    expect_refused(nested(300'000, "[", "]"), "nested deeper than 64");
    expect_refused(nested(300'000, "{\"a\":", "}"), "nested deeper than 64");
}

TEST(JsonTextTest, BytesAndKeysHaveLimits) {
    expect_refused(object_of(11), "more than 10 keys", {.keys = 10});
    EXPECT_EQ(refusal<Ordered>(object_of(10), {.keys = 10}), "accepted");
    expect_refused("[1,2,3]", "7 bytes, at most 6", {.bytes = 6});
    EXPECT_EQ(refusal<Ordered>("[1,2,3]", {.bytes = 7}), "accepted");
}

// The library's builder takes minutes for this object: it compares the keys one by one.
TEST(JsonTextTest, ManyKeysTakeLinearTime) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    const int keys = 40'000;
#else
    const int keys = 400'000;
#endif
    const std::string text = object_of(keys);
    const auto began = std::chrono::steady_clock::now();
    EXPECT_EQ(std::ssize(parse_json<Ordered>(text, {.keys = 1'000'000})), keys);
    EXPECT_EQ(std::ssize(parse_json<Sorted>(text, {.keys = 1'000'000})), keys);
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30));
}

}  // namespace speedrun::json_text_test
