// Text of plain, compressed and UTF-16 files; refused formats and damaged files.
// Covers: data/text/byte_source.cpp data/text/first_bytes.cpp data/text/utf8_check.cpp
#include "data/text/text_source.h"

#include <gmock/gmock.h>
#include <zlib.h>
#include <zstd.h>

#include <random>

#include "tests/data/test_files.h"

namespace speedrun::text_source_test {

using std::string_literals::operator""s;

std::string read_all(const std::string& path) {
    TextSource source(path);
    std::string text;
    for (std::string_view piece = source.next(); !piece.empty(); piece = source.next()) text += piece;
    return text;
}

std::string gzipped(std::string text) {
    z_stream stream{};
    EXPECT_EQ(deflateInit2(&stream, 1, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    std::string out(deflateBound(&stream, text.size()), '\0');
    stream.next_in = reinterpret_cast<Bytef*>(text.data());
    stream.avail_in = static_cast<uInt>(text.size());
    stream.next_out = reinterpret_cast<Bytef*>(out.data());
    stream.avail_out = static_cast<uInt>(out.size());
    EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
    out.resize(stream.total_out);
    deflateEnd(&stream);
    return out;
}

std::string zstd(const std::string& text) {
    std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx*)> context(ZSTD_createCCtx(), ZSTD_freeCCtx);
    ZSTD_CCtx_setParameter(context.get(), ZSTD_c_checksumFlag, 1);
    std::string out(ZSTD_compressBound(text.size()), '\0');
    out.resize(ZSTD_compress2(context.get(), out.data(), out.size(), text.data(), text.size()));
    return out;
}

// Words, so that pieces and compressed blocks differ.
std::string long_text() {
    std::mt19937 random(1);
    std::string text;
    while (text.size() < 1'000'000) text += std::to_string(random() % 5000) + "\n";
    return text;
}

std::string utf16(const std::u16string& text, bool little) {
    std::string bytes;
    for (const char16_t unit : u"\ufeff" + text) {
        const char high = static_cast<char>(unit >> 8), low = static_cast<char>(unit & 0xff);
        bytes += little ? std::string{low, high} : std::string{high, low};
    }
    return bytes;
}

TEST(TextSourceTest, ReadsPlainAndCompressedFiles) {
    const TempDir dir;
    const std::string text = long_text();
    EXPECT_EQ(read_all(dir.write("a", text)), text);
    EXPECT_EQ(read_all(dir.write("a.gz", gzipped(text))), text);
    EXPECT_EQ(read_all(dir.write("b", gzipped(text))), text) << "recognised by its bytes";
    EXPECT_EQ(read_all(dir.write("c.gz", gzipped("one") + gzipped("") + gzipped(text))), "one" + text);
    EXPECT_EQ(read_all(dir.write("a.zst", zstd(text))), text);
    EXPECT_EQ(read_all(dir.write("b.zst", zstd("one") + zstd("") + zstd(text))), "one" + text);
    EXPECT_EQ(read_all(dir.write("empty", "")), "");
    EXPECT_EQ(read_all(dir.write("empty.gz", gzipped(""))), "");
    EXPECT_EQ(read_all(dir.write("empty.zst", zstd(""))), "");
}

// A truncation at every length of a small archive, and a change of every byte: an error, or the same text (a change of a
// file time in gzip's header).
TEST(TextSourceTest, ReportsDamagedArchives) {
    const TempDir dir;
    const std::string text = long_text().substr(0, 300);
    for (const std::string& archive : {gzipped(text), zstd(text)}) {
        for (size_t size = 4; size < archive.size(); ++size)
            expect_error(ExitCode::data, {"damaged", "truncated"},
                         [&] { read_all(dir.write("damaged", archive.substr(0, size))); });
        int64_t errors = 0;
        for (size_t at = 4; at < archive.size(); ++at) {
            std::string changed = archive;
            changed[at] = static_cast<char>(changed[at] ^ 0x55);
            try {
                EXPECT_EQ(read_all(dir.write("damaged", changed)), text) << at;
            } catch (const Error& error) {
                EXPECT_EQ(error.code(), ExitCode::data);
                EXPECT_THAT(error.what(), ::testing::HasSubstr("damaged"));
                ++errors;
            }
        }
        EXPECT_GE(errors, static_cast<int64_t>(archive.size()) - 12);
        expect_error(ExitCode::data, {"damaged", "at byte"},
                     [&] { read_all(dir.write("more", archive + "trailing")); });
    }
    expect_error(ExitCode::data, {"a.gz", "not compressed as its name says", "74 65 78 74"},
                 [&] { read_all(dir.write("a.gz", "text")); });
    expect_error(ExitCode::data, {"a.zst", "the file is empty"}, [&] { read_all(dir.write("a.zst", "")); });
}

TEST(TextSourceTest, DecodesByteOrderMarks) {
    const TempDir dir;
    const std::u16string text = u"a\u00e9\u20ac\U0001f642\r\n";
    const std::string expected = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82\r\n";
    EXPECT_EQ(read_all(dir.write("mark", "\xef\xbb\xbf" + expected)), expected);
    EXPECT_EQ(read_all(dir.write("little", utf16(text, true))), expected);
    EXPECT_EQ(read_all(dir.write("big", utf16(text, false))), expected);
    EXPECT_EQ(read_all(dir.write("big.gz", gzipped(utf16(text, false)))), expected);
    EXPECT_EQ(read_all(dir.write("marks", "\xef\xbb\xbf\xef\xbb\xbfx")), "\xef\xbb\xbfx");
    // Characters of 4 bytes across the pieces.
    std::u16string many = u"x";
    std::string many_expected = "x";
    for (int i = 0; i < 200'000; ++i) {
        many += u"\U0001f642";
        many_expected += "\xf0\x9f\x99\x82";
    }
    EXPECT_EQ(read_all(dir.write("many", utf16(many, true))), many_expected);
    for (const bool little : {true, false}) {
        const auto lone = [&](const std::u16string& units) {
            return dir.write("lone", utf16(units, little));
        };
        expect_error(ExitCode::data, {"damaged UTF-16 at byte 4", "d800"}, [&] {
            read_all(lone({u'a', 0xd800, u'b'}));
        });
        expect_error(ExitCode::data, {"damaged UTF-16 at byte 2", "dc00"}, [&] { read_all(lone({0xdc00})); });
        expect_error(ExitCode::data, {"ends within a character"}, [&] { read_all(lone({0xd800})); });
        expect_error(ExitCode::data, {"ends within a character"},
                     [&] { read_all(dir.write("odd", utf16(u"ab", little) + "c")); });
    }
}

TEST(TextSourceTest, RefusesBinaryFiles) {
    const TempDir dir;
    const auto expect_refused = [&](const std::string& bytes, std::initializer_list<std::string> parts) {
        const std::string path = dir.write("file", bytes);
        expect_error(ExitCode::data, {path}, [&] { TextSource{path}; });
        expect_error(ExitCode::data, parts, [&] { TextSource{path}; });
    };
    expect_refused("PAR1\x15\0\x15"s, {"Parquet", "python3 -c", "read_parquet(", "50 41 52 31"});
    expect_refused("%PDF-1.7\n", {"PDF", "pdftotext"});
    expect_refused("\x89PNG\r\n\x1a\n\0\0"s, {"NUL at byte 8", "89 50 4e 47"});
    expect_refused("plain text\0"s, {"NUL at byte 10"});
    expect_refused("\xff\xfe\0\0a\0\0\0"s, {"UTF-32"});
    expect_refused("a\0b\0"s, {"byte order mark"});
    expect_refused("\xcf\xf0\xe8\xe2\xe5\xf2 \xec\xe8\xf0",
                   {"outside UTF-8", "iconv"});  // Cyrillic in CP1251
    expect_refused("\x01\x02\x03 text", {"3 are control characters"});
    expect_refused(gzipped(gzipped("text")), {"gzip data in compressed data", "1f 8b"});
    expect_refused(zstd("PAR1"), {"Parquet"});
    expect_refused(utf16(u"a\0b"s, true), {"NUL"});
}

TEST(TextSourceTest, CountsBytesOutsideUtf8) {
    const TempDir dir;
    const std::string good = "a rest of text, \xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82. ";
    const auto invalid_of = [&](const std::string& text) {
        TextSource source(dir.write("file", text));
        while (!source.next().empty()) {
        }
        return std::pair(source.utf8().invalid(), source.utf8().first());
    };
    EXPECT_EQ(invalid_of(good).first, 0);
    EXPECT_EQ(invalid_of(good + "\xff"), std::pair(int64_t{1}, static_cast<int64_t>(good.size())));
    EXPECT_EQ(invalid_of(good + "\xe2\x82").first, 2) << "incomplete at the end";
    EXPECT_EQ(invalid_of(good + "\xc0\xaf").first, 2) << "overlong";
    EXPECT_EQ(invalid_of(good + "\xed\xa0\x80").first, 3) << "surrogate";
    // Cuts into pieces change no count.
    const std::string text = good + "\xe2\x82" + good + "\xff" + good + "\xf0\x9f";
    for (size_t size = 1; size < 8; ++size) {
        Utf8Check check;
        for (size_t at = 0; at < text.size(); at += size) check.add(std::string_view(text).substr(at, size));
        check.finish();
        EXPECT_EQ(check.invalid(), 5) << size;
        EXPECT_EQ(check.first(), static_cast<int64_t>(good.size())) << size;
    }
}

}  // namespace speedrun::text_source_test
