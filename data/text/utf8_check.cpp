#include "data/text/utf8_check.h"

#include <utf8proc.h>

#include <cstring>

namespace speedrun {

namespace {

constexpr size_t kLongestCharacter = 4;

// Returns the number of ASCII bytes at the start, in whole words of 8 bytes.
size_t ascii_words(std::string_view text) {
    constexpr uint64_t kHighBits = 0x8080808080808080u;
    size_t at = 0;
    uint64_t word = 0;
    for (; at + sizeof(word) <= text.size(); at += sizeof(word)) {
        std::memcpy(&word, text.data() + at, sizeof(word));
        if (word & kHighBits) break;
    }
    return at;
}

// Returns the length of the character that starts with this byte; 1 if none does.
size_t length_of(unsigned char first) {
    return first < 0xc2 || first > 0xf4 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : kLongestCharacter;
}

}  // namespace

void Utf8Check::count(int64_t offset) {
    if (invalid_++ == 0) first_ = offset;
}

// Returns the number of bytes before an incomplete character at the end.
size_t Utf8Check::check(std::string_view text) {
    size_t at = 0;
    while (at < text.size()) {
        const auto first = static_cast<unsigned char>(text[at]);
        if (first < 0x80) {
            const size_t words = ascii_words(text.substr(at));
            at += words > 0 ? words : 1;
            continue;
        }
        const size_t length = length_of(first);
        if (length > text.size() - at) return at;
        utf8proc_int32_t code = 0;
        const auto used = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                                           static_cast<utf8proc_ssize_t>(length), &code);
        if (used < 1) count(offset_ + static_cast<int64_t>(at));
        at += used < 1 ? 1 : static_cast<size_t>(used);
    }
    return at;
}

void Utf8Check::add(std::string_view piece) {
    while (!pending_.empty() && !piece.empty()) {
        pending_ += piece.front();
        piece.remove_prefix(1);
        const size_t done = check(pending_);
        pending_.erase(0, done);
        offset_ += static_cast<int64_t>(done);
    }
    const size_t done = check(piece);
    pending_ += piece.substr(done);
    offset_ += static_cast<int64_t>(done);
}

void Utf8Check::finish() {
    for (; !pending_.empty(); pending_.pop_back()) count(offset_);
}

}  // namespace speedrun
