// GPT-2's tokenizer, token by token against tiktoken and the tokenizers library (fixtures/small_cases.json, written by
// fixtures/generate.py), and its errors for unusable vocabulary files.
// Covers: data/gpt2_pieces.cpp
#include "data/gpt2_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "data/gpt2_pieces.h"
#include "tests/data/test_files.h"

namespace speedrun::gpt2_tokenizer_test {

using Json = nlohmann::json;

const std::string kFixtures = SPEEDRUN_SOURCE_ROOT "/tests/data/fixtures/";

std::vector<int32_t> ids_of(const Tokenizer& tokenizer, std::string_view text) {
    const std::vector<uint16_t> tokens = tokenizer.encode(text);
    return {tokens.begin(), tokens.end()};
}

// Returns the pieces of a text, separated by '|'.
std::string pieces_of(std::string_view text) {
    std::string result;
    while (!text.empty()) {
        const size_t length = gpt2_piece_length(text);
        if (!result.empty()) result += '|';
        result += text.substr(0, length);
        text.remove_prefix(length);
    }
    return result;
}

TEST(Gpt2Pieces, MatchPattern) {
    EXPECT_EQ(pieces_of("I'd say 'tis they'll've'"), "I|'d| say| '|tis| they|'ll|'ve|'");
    EXPECT_EQ(pieces_of("a  b \n c\n\nd   "), "a| | b| \n| c|\n|\n|d|   ");
    EXPECT_EQ(pieces_of("x1 22y$$ %%_"), "x|1| 22|y|$$| %%_");
    EXPECT_EQ(pieces_of("a\xff\xfe!b \xc3"), "a|\xff\xfe!|b| \xc3");  // invalid UTF-8
}

std::string base64(std::string_view bytes) {
    static const char* const kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    for (size_t i = 0; i < bytes.size(); i += 3) {
        uint32_t word = 0;
        for (size_t j = i; j < i + 3; ++j) word = word << 8 | (j < bytes.size() ? uint8_t(bytes[j]) : 0u);
        for (size_t j = 0; j < 4; ++j)
            text += i + j <= bytes.size() ? kDigits[word >> (18 - 6 * j) & 63] : '=';
    }
    return text;
}

// small_tokenizer.json in tiktoken's format.
std::string small_tiktoken() {
    const std::vector<std::string> tokens = read_bpe_vocabulary(kFixtures + "small_tokenizer.json").tokens;
    std::string text;
    for (size_t id = 0; id < tokens.size(); ++id)
        if (!tokens[id].empty()) text += fmt::format("{} {}\n", base64(tokens[id]), id);
    return text;
}

// Reads vocabularies of both formats; the texts are whole documents.
TEST(Gpt2Tokenizer, AgreesWithTiktokenAndTokenizers) {
    const TempDir dir;
    const Json fixture = Json::parse(read_text(kFixtures + "small_cases.json"));
    for (const std::string& file :
         {dir.write("small.tiktoken", small_tiktoken()), kFixtures + "small_tokenizer.json"}) {
        const auto tokenizer = make_tokenizer("gpt2", file);
        EXPECT_EQ(tokenizer->name(), "gpt2");
        EXPECT_EQ(tokenizer->separator(), fixture["separator"].get<int32_t>());
        EXPECT_EQ(tokenizer->vocab_size(), tokenizer->separator() + 1);
        ASSERT_GE(fixture["cases"].size(), 80u);
        for (const Json& c : fixture["cases"]) {
            const auto text = c["text"].get<std::string>();
            const bool differs = c.contains("tokenizers") && file.ends_with("json");
            const auto expected = c[differs ? "tokenizers" : "tiktoken"].get<std::vector<int32_t>>();
            EXPECT_EQ(ids_of(*tokenizer, text), expected) << file << ": " << text;
            EXPECT_EQ(tokenizer->decode(expected), text) << file;
        }
    }
}

TEST(Gpt2Tokenizer, RoundTripsAnyBytes) {
    const auto tokenizer = make_tokenizer("gpt2", kFixtures + "small_tokenizer.json");
    std::mt19937 random(1);
    for (int round = 0; round < 200; ++round) {
        std::string text(random() % 200, '\0');
        const bool ascii = round % 2 == 0;  // half of the rounds cut into UTF-8 and separators, half noise
        for (char& c : text)
            c = static_cast<char>(ascii && random() % 8 != 0 ? ' ' + random() % 95 : random());
        const std::vector<int32_t> ids = ids_of(*tokenizer, text);
        EXPECT_EQ(tokenizer->decode(ids), text);
        EXPECT_EQ(std::count(ids.begin(), ids.end(), tokenizer->separator()), 0);
    }
    EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{-1, tokenizer->separator(), 60000}), "");
}

// A piece of a megabyte: scanning the piece for every merge would take hours.
TEST(Gpt2Tokenizer, LongPiecesTakeLinearTime) {
    const auto tokenizer = make_tokenizer("gpt2", kFixtures + "small_tokenizer.json");
    std::string text(1 << 20, 'a');
    for (size_t i = 0; i < text.size(); i += 7) text[i] = 'b';
    EXPECT_EQ(tokenizer->decode(ids_of(*tokenizer, text)), text);
}

// The encoder's tokens equal encode()'s for any cut into parts, and its cache changes none.
TEST(Gpt2Tokenizer, EncoderIgnoresCuts) {
    const auto tokenizer = make_tokenizer("gpt2", kFixtures + "small_tokenizer.json");
    const Json fixture = Json::parse(read_text(kFixtures + "small_cases.json"));
    std::string text;
    for (const Json& c : fixture["cases"]) text += c["text"].get<std::string>();
    text += "\xe2\x80" + std::string(30, ' ') + "\u3000\u3000\xff";
    const std::vector<uint16_t> expected = tokenizer->encode(text);
    const auto encoder = tokenizer->encoder();
    std::mt19937 random(1);
    for (int round = 0; round < 60; ++round) {
        std::vector<uint16_t> tokens;
        const size_t longest = 1 + random() % (round % 2 ? 4 : 300);
        for (size_t at = 0; at < text.size();) {
            const size_t size = 1 + random() % longest;
            encoder->add(std::string_view(text).substr(at, size), tokens);
            at += size;
        }
        encoder->finish(tokens);
        ASSERT_EQ(tokens, expected) << "round " << round;
    }
}

// Millions of pieces, so that entries of the cache are replaced.
TEST(Gpt2Tokenizer, CacheKeepsTokens) {
    const auto tokenizer = make_tokenizer("gpt2", kFixtures + "small_tokenizer.json");
    std::mt19937 random(1);
    std::string text;
    while (text.size() < 3'000'000) {
        text += ' ';
        for (size_t i = 1 + random() % 16; i > 0; --i) text += static_cast<char>('a' + random() % 8);
        if (random() % 3 == 0) text += " then the other";
    }
    std::vector<uint16_t> tokens;
    const auto encoder = tokenizer->encoder();
    encoder->add(text, tokens);
    encoder->finish(tokens);
    EXPECT_EQ(tokens, tokenizer->encode(text));
}

TEST(Gpt2Pieces, EndlessPiecesAreCutAtCharacters) {
    std::string text(kMaxPieceBytes - 1, 'a');
    text += "\xc3\xa9" + std::string(100, 'a');
    EXPECT_EQ(gpt2_next_piece(text, true), kMaxPieceBytes - 1);
    EXPECT_EQ(gpt2_next_piece(text, false), kMaxPieceBytes - 1);
    EXPECT_EQ(gpt2_next_piece(std::string(kMaxPieceBytes + 9, '\xa9'), false), kMaxPieceBytes - 3);
    EXPECT_EQ(gpt2_next_piece(std::string(1000, 'a'), false), 0u);
    EXPECT_EQ(gpt2_next_piece(std::string(1000, 'a'), true), 1000u);
    EXPECT_EQ(gpt2_next_piece("a" + std::string(7, ' '), false), 0u);
    EXPECT_EQ(gpt2_next_piece("a" + std::string(8, ' '), false), 1u);
}

// ---- merge rules of the two formats, on a vocabulary for which they differ

// All single bytes, then these lines.
std::string tiktoken_file(const std::string& more = "") {
    std::string text;
    for (int byte = 0; byte < 256; ++byte)
        text += fmt::format("{} {}\n", base64(std::string(1, static_cast<char>(byte))), byte);
    return text + more;
}

Json tokenizer_json() {
    return Json::parse(read_text(kFixtures + "small_tokenizer.json"));
}

// ab, bc, abc, but abc only from (a, bc). The tokens were checked with tiktoken 0.14 and tokenizers 0.23.
TEST(Gpt2Tokenizer, MergesByFileFormat) {
    const TempDir dir;
    const auto tiktoken =
        make_tokenizer("gpt2", dir.write("abc", tiktoken_file("YWI= 256\nYmM= 257\nYWJj 258\n")));
    EXPECT_EQ(ids_of(*tiktoken, "abc"), std::vector<int32_t>{258});
    EXPECT_EQ(ids_of(*tiktoken, "xabc"), (std::vector<int32_t>{'x', 258}));  // any two that form a token
    EXPECT_EQ(tiktoken->separator(), 259);

    Json json = tokenizer_json();
    Json vocab = {{"ab", 256}, {"bc", 257}, {"abc", 258}};
    for (const auto& [token, id] : json["model"]["vocab"].items()) {
        if (id < 256) vocab[token] = id;
    }
    json["model"]["vocab"] = vocab;
    json["model"]["merges"] = {"a b", "b c", "a bc"};
    const auto listed = make_tokenizer("gpt2", dir.write("listed", json.dump()));
    const int32_t x = vocab["x"], c = vocab["c"];
    EXPECT_EQ(ids_of(*listed, "abc"), (std::vector<int32_t>{256, c}));  // only the listed pairs
    EXPECT_EQ(ids_of(*listed, "xabc"), (std::vector<int32_t>{x, 256, c}));
    json["model"]["ignore_merges"] = true;
    const auto whole = make_tokenizer("gpt2", dir.write("whole", json.dump()));
    EXPECT_EQ(ids_of(*whole, "abc"), std::vector<int32_t>{258});
    EXPECT_EQ(ids_of(*whole, "xabc"), (std::vector<int32_t>{x, 256, c}));
}

// ---- bad files

void expect_rejected(const std::string& content, std::initializer_list<std::string> parts) {
    const TempDir dir;
    const std::string path = dir.write("vocabulary", content);
    expect_error(ExitCode::data, {path}, [&] { read_bpe_vocabulary(path); });
    expect_error(ExitCode::data, parts, [&] { read_bpe_vocabulary(path); });
}

TEST(BpeVocabulary, RejectsBadTiktokenFiles) {
    expect_rejected("", {"empty", "tiktoken file or a tokenizer.json"});
    expect_rejected("hello\n", {"line 1", "base64", "\"hello\"", "tokenizer.json"});
    expect_rejected(tiktoken_file("YWI=\n"), {"line 257", "base64", "\"YWI=\""});
    expect_rejected(tiktoken_file("YWI= 256 7\n"), {"line 257", "rank"});
    expect_rejected(tiktoken_file("Y*I= 256\n"), {"line 257", "base64"});
    expect_rejected(tiktoken_file("\nYWI= 70000\n"), {"line 258", "token id 70000", "0 to 65535"});
    expect_rejected(tiktoken_file("YWI= -1\n"), {"line 257", "token id -1"});
    expect_rejected(tiktoken_file("YWI= 97\n"), {"line 257", "token id 97 is taken"});
    expect_rejected(tiktoken_file("YQ== 256\n"), {"line 257", "same bytes as token 97"});
    expect_rejected(tiktoken_file().substr(7), {"single byte 0x00", "all 256"});
    const std::string longest(4 * ((kMaxTokenBytes + 3) / 3), 'A');
    expect_rejected(tiktoken_file(longest + " 256\n"), {"line 257", "1 to 1024"});
    expect_error(ExitCode::data, {"absent"}, [] { read_bpe_vocabulary("/nonexistent/absent"); });
    expect_error(ExitCode::usage, {"'gpt2' needs --vocab"}, [] { make_tokenizer("gpt2"); });
    expect_error(ExitCode::usage, {"'bytes' takes no vocabulary"}, [] { make_tokenizer("bytes", "x"); });
}

TEST(BpeVocabulary, RejectsBadTokenizerJson) {
    const auto changed = [](const char* pointer, const Json& value,
                            std::initializer_list<std::string> parts) {
        Json json = tokenizer_json();
        json[Json::json_pointer(pointer)] = value;
        expect_rejected(json.dump(), parts);
    };
    expect_rejected("{", {"not valid JSON"});
    expect_rejected("{\"model\":" + std::string(100000, '['), {"not valid JSON", "nested deeper than 64"});
    expect_rejected("{}", {"key 'model' is missing"});
    changed("/model", 3, {"model: expected an object, found 3"});
    changed("/model/type", "WordPiece", {"model.type: expected \"BPE\", found \"WordPiece\""});
    changed("/model/end_of_word_suffix", "</w>", {"model.end_of_word_suffix: expected null", "</w>"});
    changed("/model/byte_fallback", true, {"model.byte_fallback: expected false"});
    changed("/model/vocab", {1, 2}, {"model.vocab: expected an object, found [1,2]"});
    changed("/model/vocab/the", "7", {"model.vocab[\"the\"]: expected a whole number, found \"7\""});
    changed("/model/vocab/the", 66000, {"model.vocab[\"the\"]: token id 66000"});
    changed("/model/vocab/the", 5, {"token id 5 is taken"});
    changed("/model/vocab/日本", 5000, {"'日本' is not written in GPT-2's alphabet of bytes"});
    changed("/model/merges", "a b", {"model.merges: expected a list"});
    changed("/model/merges/3", "ab", {"model.merges[3]: expected a pair of tokens, found \"ab\""});
    changed("/model/merges/3", {"q", "zzz"}, {"model.merges[3]: 'zzz' is not in the vocabulary"});
    changed("/model/merges/3", tokenizer_json()["model"]["merges"][1],
            {"merges[3]", "same pair as model.merges[1]"});
    changed("/normalizer", {{"type", "NFC"}}, {"normalizer: expected null, found {\"type\":\"NFC\"}"});
    changed("/pre_tokenizer/type", "Whitespace", {"pre_tokenizer.type: expected \"ByteLevel\""});
    changed("/pre_tokenizer/add_prefix_space", true, {"pre_tokenizer.add_prefix_space: expected false"});
    changed("/pre_tokenizer/use_regex", false, {"pre_tokenizer.use_regex: expected true"});
    changed("/added_tokens", Json::array(), {"added_tokens", "<|endoftext|>"});
    changed("/added_tokens/0/id", "x", {"added_tokens[0].id: expected a whole number"});
}

}  // namespace speedrun::gpt2_tokenizer_test
