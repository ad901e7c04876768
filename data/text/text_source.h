// Text of a file in pieces of UTF-8: decompressed, decoded, without a byte order mark.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "data/text/byte_source.h"
#include "data/text/utf8_check.h"

namespace speedrun {

class TextSource {
  public:
    // Throws a data error for a file that cannot be opened or looks binary, see why_not_text().
    explicit TextSource(const std::string& path);

    // Returns the next piece, valid until the next call; "" at the end. A piece may end within a character or a line
    // end. UTF-8 keeps its bytes, also invalid ones. Throws a data error for damaged compressed data or UTF-16.
    std::string_view next();

    const Utf8Check& utf8() const { return utf8_; }  // counts of the text so far

  private:
    enum class Encoding : uint8_t { utf8, utf16_little, utf16_big };

    void fill();
    void decode_utf16();
    [[noreturn]] void bad_utf16(const std::string& reason) const;

    const std::string path_;
    std::unique_ptr<ByteSource> source_;
    Encoding encoding_ = Encoding::utf8;
    std::string bytes_;    // as read
    size_t begin_ = 0;     // bytes_ before this index are decoded
    std::string decoded_;  // text of UTF-16
    int64_t offset_ = 0;   // offset of bytes_[begin_] in the file
    bool ended_ = false, first_ = true;
    Utf8Check utf8_;
};

}  // namespace speedrun
