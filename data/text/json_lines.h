// Texts of a JSON Lines file: one object per line, the text under one key.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace speedrun {

class JsonLines {
  public:
    using Handler = std::function<void(std::string_view text)>;

    static constexpr size_t kMaxLineBytes = size_t{32} << 20;

    // path: for messages. `handle` is called with the string under `key` of each line, in order.
    JsonLines(std::string path, std::string key, Handler handle);

    // Adds the next piece of the file. Empty lines are skipped. Throws a data error that names the line: not an object,
    // no such key, another type, longer than kMaxLineBytes.
    void add(std::string_view piece);
    void finish();

  private:
    void read_line(std::string_view line);

    const std::string path_, key_;
    const Handler handle_;
    std::string line_;  // begin of a line
    int64_t number_ = 1;
};

}  // namespace speedrun
