// Counts bytes outside valid UTF-8 in text that is read in pieces.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace speedrun {

class Utf8Check {
  public:
    // Checks the next piece of the text. A character may continue in the piece after it.
    void add(std::string_view piece);
    // Counts an incomplete character at the end of the text.
    void finish();

    int64_t invalid() const { return invalid_; }  // bytes
    int64_t first() const { return first_; }      // offset of the first invalid byte

  private:
    size_t check(std::string_view text);
    void count(int64_t offset);

    std::string pending_;  // begin of a character
    int64_t offset_ = 0;   // offset of pending_
    int64_t invalid_ = 0, first_ = 0;
};

}  // namespace speedrun
