#include "data/gpt2_pieces.h"

#include <utf8proc.h>

#include <array>
#include <cstdint>

namespace speedrun {

namespace {

enum class Kind : uint8_t { letter, number, space, other };

struct Character {
    Kind kind;
    size_t bytes;
};

Kind kind_of(utf8proc_int32_t code) {
    // control characters that are White_Space
    if ((code >= 0x09 && code <= 0x0d) || code == 0x85) return Kind::space;
    switch (utf8proc_category(code)) {
        case UTF8PROC_CATEGORY_LU:
        case UTF8PROC_CATEGORY_LL:
        case UTF8PROC_CATEGORY_LT:
        case UTF8PROC_CATEGORY_LM:
        case UTF8PROC_CATEGORY_LO:
            return Kind::letter;
        case UTF8PROC_CATEGORY_ND:
        case UTF8PROC_CATEGORY_NL:
        case UTF8PROC_CATEGORY_NO:
            return Kind::number;
        case UTF8PROC_CATEGORY_ZS:
        case UTF8PROC_CATEGORY_ZL:
        case UTF8PROC_CATEGORY_ZP:
            return Kind::space;
        default:
            return Kind::other;
    }
}

const std::array<Kind, 128> kAscii = [] {
    std::array<Kind, 128> kinds{};
    for (size_t i = 0; i < kinds.size(); ++i) kinds[i] = kind_of(static_cast<utf8proc_int32_t>(i));
    return kinds;
}();

// Returns class and length of the character at `at`, which must be below text.size().
Character character(std::string_view text, size_t at) {
    const auto first = static_cast<unsigned char>(text[at]);
    if (first < kAscii.size()) return {kAscii[first], 1};
    utf8proc_int32_t code = 0;
    const utf8proc_ssize_t bytes =
        utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                         static_cast<utf8proc_ssize_t>(text.size() - at), &code);
    if (bytes < 1) return {Kind::other, 1};
    return {kind_of(code), static_cast<size_t>(bytes)};
}

// Returns the end of the run of one kind that starts at `at`.
size_t end_of_run(std::string_view text, size_t at, Kind kind) {
    while (at < text.size()) {
        const auto byte = static_cast<unsigned char>(text[at]);
        if (byte < kAscii.size()) {
            if (kAscii[byte] != kind) break;
            ++at;
            continue;
        }
        const Character next = character(text, at);
        if (next.kind != kind) break;
        at += next.bytes;
    }
    return at;
}

// Returns 2 or 3 if the text begins with one of GPT-2's English contractions, else 0.
size_t contraction(std::string_view text) {
    if (text.size() < 2 || text[0] != '\'') return 0;
    if (text[1] == 's' || text[1] == 't' || text[1] == 'm' || text[1] == 'd') return 2;
    const std::string_view two = text.substr(1, 2);
    return two == "re" || two == "ve" || two == "ll" ? 3 : 0;
}

// Returns the length of the leading spaces: all if the text ends with them, otherwise all but the last. The last one
// joins the next piece if it is ' ', and otherwise forms its own piece.
size_t spaces(std::string_view text) {
    size_t end = 0, before_last = 0;
    while (end < text.size()) {
        const Character next = character(text, end);
        if (next.kind != Kind::space) return before_last > 0 ? before_last : end;
        before_last = end;
        end += next.bytes;
    }
    return end;
}

}  // namespace

size_t gpt2_piece_length(std::string_view text) {
    if (const size_t length = contraction(text)) return length;
    const size_t begin = text[0] == ' ' && text.size() > 1 ? 1 : 0;
    const Character first = character(text, begin);
    if (first.kind == Kind::space) return spaces(text);
    return end_of_run(text, begin + first.bytes, first.kind);
}

size_t gpt2_next_piece(std::string_view text, bool is_end) {
    const std::string_view window = text.substr(0, kMaxPieceBytes + kPieceLookahead);
    size_t length = gpt2_piece_length(window);
    if (length > kMaxPieceBytes) {
        length = kMaxPieceBytes;
        while ((static_cast<unsigned char>(text[length]) & 0xc0) == 0x80 && length + 3 > kMaxPieceBytes)
            --length;
        return length;
    }
    return is_end || length + kPieceLookahead <= window.size() ? length : 0;
}

}  // namespace speedrun
