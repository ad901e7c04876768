// Finds the lines of a text that equal a marker, in text that is read in pieces.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace speedrun {

class MarkerSearch {
  public:
    struct Handler {
        std::function<void(std::string_view)> text;  // part of a document
        std::function<void()> marker;                // a marker line, which is no part of a document
    };

    // marker: not empty, without line ends.
    MarkerSearch(std::string marker, Handler handler);

    // Lines end with \n, \r\n or \r.
    void add(std::string_view piece);
    void finish();

    int64_t inside_lines() const { return inside_lines_; }  // occurrences that are not a whole line

  private:
    void search(bool last);

    const std::string marker_;
    const Handler handler_;
    std::string pending_;        // text that may have a part of a marker at its end
    bool at_line_begin_ = true;  // state of pending_
    int64_t inside_lines_ = 0;
};

}  // namespace speedrun
