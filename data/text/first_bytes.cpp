#include "data/text/first_bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "data/text/utf8_check.h"
#include "data/text_file.h"

namespace speedrun {

namespace {

struct Signature {
    std::string_view bytes;
    const char* format;
    const char* cure;
};

using std::string_view_literals::operator""sv;

constexpr std::array kSignatures = {
    Signature{"%PDF-"sv, "a PDF document", "convert it with pdftotext"},
    Signature{"PK\x03\x04"sv, "a zip archive or an office document", "unpack it, or save it as text"},
    Signature{"BZh"sv, "bzip2 data", "decompress it with bunzip2"},
    Signature{"\xfd\x37zXZ\0"sv, "xz data", "decompress it with unxz"},
    Signature{"7z\xbc\xaf\x27\x1c"sv, "a 7z archive", "unpack it"},
    Signature{"\x1f\x8b"sv, "gzip data in compressed data", "decompress it once"},
    Signature{"\x28\xb5\x2f\xfd"sv, "Zstandard data in compressed data", "decompress it once"},
    Signature{"\xff\xfe\0\0"sv, "UTF-32", "convert it with iconv -f utf-32 -t utf-8"},
    Signature{"\0\0\xfe\xff"sv, "UTF-32", "convert it with iconv -f utf-32 -t utf-8"},
};

// True for a control character that text does not have. Text may have \b, \t, \n, \v, \f, \r and escape sequences.
bool is_control(unsigned char c) {
    return (c < 0x20 && (c < '\b' || c > '\r') && c != 0x1b) || c == 0x7f;
}

}  // namespace

std::string shown_bytes(std::string_view bytes) {
    constexpr size_t kShown = 16;
    if (bytes.empty()) return "the file is empty";
    const std::string_view part = bytes.substr(0, kShown);
    std::string text = "it begins with the bytes";
    for (const char c : part) text += fmt::format(" {:02x}", static_cast<unsigned char>(c));
    return text + " (\"" + shown_text(part) + "\")";
}

std::string why_not_text(std::string_view bytes, const std::string& path) {
    if (bytes.starts_with("PAR1"))
        return fmt::format(
            "Parquet is not read; convert it: python3 -c \"import pandas; "
            "pandas.read_parquet('{}').to_json('text.jsonl', orient='records', lines=True)\"; {}",
            path, shown_bytes(bytes));
    for (const Signature& known : kSignatures) {
        if (bytes.starts_with(known.bytes))
            return fmt::format("{}: {}; {}", known.format, known.cure, shown_bytes(bytes));
    }
    if (const size_t at = bytes.find('\0'); at != bytes.npos)
        return fmt::format(
            "looks binary: NUL at byte {}, expected UTF-8, or UTF-16 with a byte order mark; {}", at,
            shown_bytes(bytes));
    Utf8Check check;
    check.add(bytes);
    const auto controls = std::count_if(bytes.begin(), bytes.end(),
                                        [](char c) { return is_control(static_cast<unsigned char>(c)); });
    if (10 * (controls + check.invalid()) > static_cast<int64_t>(bytes.size()))
        return fmt::format(
            "looks binary: of the first {} bytes {} are control characters and {} are outside UTF-8; {}; text in another "
            "encoding is converted with iconv -f ENCODING -t utf-8",
            bytes.size(), controls, check.invalid(), shown_bytes(bytes));
    return "";
}

}  // namespace speedrun
