// Documents of text files and JSON Lines.
// Covers: data/text/marker_search.cpp data/text/json_lines.cpp
#include "data/text/document_source.h"

#include <gmock/gmock.h>

#include <random>

#include "data/text/json_lines.h"
#include "data/text/marker_search.h"
#include "tests/data/test_files.h"

namespace speedrun::document_source_test {

using Documents = std::vector<std::string>;

Documents documents_of(const std::string& path, const DocumentFormat& format, TextFindings& findings) {
    Documents documents = {""};
    read_documents(path, format,
                   {.text = [&](std::string_view text, bool) { documents.back() += text; },
                    .end = [&] { documents.emplace_back(); }},
                   findings);
    documents.pop_back();
    return documents;
}

Documents documents_of(const std::string& path, const DocumentFormat& format = {}) {
    TextFindings findings;
    return documents_of(path, format, findings);
}

TEST(DocumentSourceTest, MarkersEndDocuments) {
    const TempDir dir;
    const DocumentFormat format{.marker = "%%"};
    for (const std::string end : {"\n", "\r\n", "\r"}) {
        const std::string a = "%%x" + end + " %%" + end, b = "last %%";
        EXPECT_EQ(documents_of(dir.write("a", a + "%%" + end + b), format), (Documents{a, b}));
        EXPECT_EQ(documents_of(dir.write("a", "%%" + end + a + "%%"), format), (Documents{"", a, ""}));
        EXPECT_EQ(documents_of(dir.write("a", a + "%%" + end + "%%" + end + end), format),
                  (Documents{a, "", end}));
    }
    TextFindings findings;
    documents_of(dir.write("a", "a %%\n%% b\n%%%\n%%\n"), format, findings);
    EXPECT_EQ(findings.markers, 1);
    EXPECT_EQ(findings.markers_inside_lines, 4);
}

// The documents of lines, found without a search in pieces.
Documents split_lines(const std::string& text, const std::string& marker) {
    Documents documents = {""};
    for (size_t begin = 0; begin < text.size();) {
        size_t end = std::min(text.find_first_of("\r\n", begin), text.size());
        const std::string line = text.substr(begin, end - begin);
        end = std::min(text.compare(end, 2, "\r\n") == 0 ? end + 2 : end + 1, text.size());
        if (line == marker) {
            documents.emplace_back();
        } else {
            documents.back() += text.substr(begin, end - begin);
        }
        begin = end;
    }
    return documents;
}

TEST(DocumentSourceTest, PiecesCutMarkersAnywhere) {
    std::mt19937 random(1);
    for (int round = 0; round < 3000; ++round) {
        std::string text;
        while (text.size() < 30) text += std::array{"%", "%%", "\n", "\r", "\r\n", "a", "%%\n"}[random() % 7];
        const std::string marker = round % 2 ? "%%" : "%";
        const size_t size = 1 + random() % 7;
        Documents found = {""};
        MarkerSearch search(marker, {.text = [&](std::string_view part) { found.back() += part; },
                                     .marker = [&] { found.emplace_back(); }});
        for (size_t at = 0; at < text.size(); at += size) search.add(std::string_view(text).substr(at, size));
        search.finish();
        EXPECT_EQ(found, split_lines(text, marker))
            << ::testing::PrintToString(text) << " in pieces of " << size;
    }
}

TEST(DocumentSourceTest, ReadsJsonLines) {
    const TempDir dir;
    const std::string lines =
        "{\"id\": 1, \"text\": \"one\\n\\u00e9\"}\r\n\n{\"text\": \"\"}\n{\"text\": \"three\", \"meta\": {\"text\": 4}}";
    const Documents expected = {"one\n\xc3\xa9", "", "three"};
    for (const std::string name : {"a.jsonl", "a.ndjson", "a.json"})
        EXPECT_EQ(documents_of(dir.write(name, lines)), expected) << name;
    EXPECT_EQ(documents_of(dir.write("a.txt", lines)), Documents{lines});
    EXPECT_EQ(documents_of(dir.file("a.txt"), {.json_key = "text"}), Documents{lines});
    EXPECT_EQ(documents_of(dir.write("a", lines)), Documents{lines});
    EXPECT_EQ(documents_of(dir.file("a"), {.json_key = "text"}), expected);
    EXPECT_EQ(documents_of(dir.write("b.jsonl", "{\"body\": \"b\"}"), {.json_key = "body"}), Documents{"b"});
    std::string found;
    JsonLines pieces("path", "text", [&](std::string_view text) { found += std::string(text) + "|"; });
    for (const char c : lines) pieces.add({&c, 1});
    pieces.finish();
    EXPECT_EQ(found, "one\n\xc3\xa9||three|");
}

TEST(DocumentSourceTest, ReportsBadJsonLines) {
    const TempDir dir;
    const auto expect_refused = [&](const std::string& line, std::initializer_list<std::string> parts) {
        const std::string path = dir.write("a.jsonl", "{\"text\": \"good\"}\n" + line + "\n");
        expect_error(ExitCode::data, {path + ": line 2"}, [&] { documents_of(path); });
        expect_error(ExitCode::data, parts, [&] { documents_of(path); });
    };
    expect_refused("{\"body\": 1, \"id\": 2}", {"key 'text' is missing", "body, id", "--json-key"});
    expect_refused("{\"text\": null}", {"key 'text' is null", "a string"});
    expect_refused("{\"text\": \"cut", {"not valid JSON"});
    expect_refused("[{\"text\": 1}]", {"expected an object per line", "jq"});
    expect_refused("{\"text\": \"a\", \"text\": \"b\"}", {"duplicate key"});
    expect_refused("{\"text\": \"\xff\"}", {"not valid JSON"});
    expect_refused(std::string(JsonLines::kMaxLineBytes + 1, ' '), {"32 MiB"});
}

TEST(DocumentSourceTest, CountsSeparatorTexts) {
    const TempDir dir;
    TextFindings findings;
    documents_of(dir.write("a", "x<|endoftext|><|endoftext|>\n<|endoftext|"), {}, findings);
    EXPECT_EQ(findings.separator_texts, 2);
    documents_of(dir.write("b", "x\n<|endoftext|>\ny"), {.marker = "<|endoftext|>"}, findings);
    EXPECT_EQ(findings.separator_texts, 2) << "markers are no text";
    std::string text(300'000, 'x');  // across the border of two pieces
    for (size_t at = 262'130; at < 262'144; ++at) {
        std::string shifted = text;
        shifted.insert(at, "<|endoftext|>");
        TextFindings one;
        documents_of(dir.write("c", shifted), {}, one);
        EXPECT_EQ(one.separator_texts, 1) << at;
    }
}

}  // namespace speedrun::document_source_test
