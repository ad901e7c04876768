#include "data/text/text_source.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <array>

#include "data/text/first_bytes.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

constexpr size_t kPieceBytes = size_t{1} << 18;
constexpr std::string_view kUtf8Mark = "\xef\xbb\xbf", kLittleMark = "\xff\xfe", kBigMark = "\xfe\xff";

bool is_high_surrogate(uint32_t unit) {
    return unit >= 0xd800 && unit < 0xdc00;
}
bool is_low_surrogate(uint32_t unit) {
    return unit >= 0xdc00 && unit < 0xe000;
}

}  // namespace

TextSource::TextSource(const std::string& path) : path_(path), source_(open_bytes(path)) {
    fill();
    const std::string_view begin = bytes_;
    const bool is_utf32 = begin.starts_with(std::string_view("\xff\xfe\0\0", 4));
    const auto skip_mark = [&](std::string_view mark, Encoding encoding) {
        if (is_utf32 || !begin.starts_with(mark)) return;
        begin_ = mark.size();
        encoding_ = encoding;
    };
    skip_mark(kUtf8Mark, Encoding::utf8);
    skip_mark(kLittleMark, Encoding::utf16_little);
    skip_mark(kBigMark, Encoding::utf16_big);
    offset_ = static_cast<int64_t>(begin_);
    if (encoding_ != Encoding::utf8) decode_utf16();
    const std::string_view text = encoding_ == Encoding::utf8 ? begin.substr(begin_) : decoded_;
    if (const std::string reason = why_not_text(text, path_); !reason.empty())
        throw_data("{}: {}", path_, reason);
}

// Reads after the bytes that are not decoded yet, until a piece is full or the file ends.
void TextSource::fill() {
    bytes_.erase(0, begin_);
    begin_ = 0;
    size_t size = bytes_.size();
    bytes_.resize(kPieceBytes);
    while (size < bytes_.size()) {
        const size_t got = source_->read(std::span(bytes_).subspan(size));
        if (got == 0) {
            ended_ = true;
            break;
        }
        size += got;
    }
    bytes_.resize(size);
}

std::string_view TextSource::next() {
    if (!first_) {
        begin_ = encoding_ == Encoding::utf8 ? bytes_.size() : begin_;
        if (ended_) return "";
        fill();
        if (encoding_ != Encoding::utf8) decode_utf16();
    }
    first_ = false;
    const std::string_view text =
        encoding_ == Encoding::utf8 ? std::string_view(bytes_).substr(begin_) : decoded_;
    utf8_.add(text);
    if (ended_) utf8_.finish();
    return text;
}

void TextSource::bad_utf16(const std::string& reason) const {
    throw_data("{}: damaged UTF-16 at byte {}: {}", path_, offset_, reason);
}

// Decodes whole characters; half of one stays in bytes_ until the next piece.
void TextSource::decode_utf16() {
    decoded_.clear();
    const auto unit_at = [&](size_t at) {
        const auto first = static_cast<unsigned char>(bytes_[at]);
        const auto second = static_cast<unsigned char>(bytes_[at + 1]);
        return encoding_ == Encoding::utf16_little ? uint32_t{second} << 8 | first
                                                   : uint32_t{first} << 8 | second;
    };
    std::array<utf8proc_uint8_t, 4> character{};
    while (begin_ + 2 <= bytes_.size()) {
        uint32_t code = unit_at(begin_);
        size_t used = 2;
        if (is_low_surrogate(code)) bad_utf16(fmt::format("lone surrogate {:04x}", code));
        if (is_high_surrogate(code)) {
            if (begin_ + 4 > bytes_.size()) break;
            const uint32_t low = unit_at(begin_ + 2);
            if (!is_low_surrogate(low)) bad_utf16(fmt::format("lone surrogate {:04x}", code));
            code = 0x10000 + ((code - 0xd800) << 10 | (low - 0xdc00));
            used = 4;
        }
        const auto length = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), character.data());
        decoded_.append(reinterpret_cast<const char*>(character.data()), static_cast<size_t>(length));
        begin_ += used;
        offset_ += static_cast<int64_t>(used);
    }
    if (ended_ && begin_ < bytes_.size()) bad_utf16("the file ends within a character");
}

}  // namespace speedrun
