#include "data/text/marker_search.h"

#include <utility>

namespace speedrun {

namespace {

bool ends_line(char c) {
    return c == '\n' || c == '\r';
}

// Returns the length of the line end at the start of the text; 0 if there is none.
size_t line_end_length(std::string_view text) {
    return text.starts_with("\r\n") ? 2 : !text.empty() && ends_line(text[0]) ? 1 : 0;
}

}  // namespace

MarkerSearch::MarkerSearch(std::string marker, Handler handler)
    : marker_(std::move(marker)), handler_(std::move(handler)) {}

void MarkerSearch::add(std::string_view piece) {
    pending_ += piece;
    search(false);
}

void MarkerSearch::finish() {
    search(true);
    at_line_begin_ = true;
}

void MarkerSearch::search(bool last) {
    const std::string_view text = pending_;
    size_t begin = 0;  // begin of the part that is not passed on
    const auto pass_on = [&](size_t end) {
        if (end > begin) handler_.text(text.substr(begin, end - begin));
        begin = end;
    };
    // A marker and both bytes of "\r\n" must be present before it is certain that a line ends after the marker.
    const size_t needed = marker_.size() + 2;
    size_t from = 0;
    for (;;) {
        const size_t at = text.find(marker_, from);
        if (at == text.npos || (!last && at + needed > text.size())) break;
        const bool begins_line = at == 0 ? at_line_begin_ : ends_line(text[at - 1]);
        const size_t after = at + marker_.size();
        const size_t line_end = line_end_length(text.substr(after));
        if (!begins_line || (line_end == 0 && after < text.size())) {
            ++inside_lines_;
            from = at + 1;
            continue;
        }
        pass_on(at);
        handler_.marker();
        begin = from = after + line_end;
        at_line_begin_ = true;
        if (begin == text.size()) break;
    }
    // The rest may be the begin of a marker line.
    const size_t kept = last ? 0 : needed - 1;
    if (text.size() > kept && text.size() - kept > begin) pass_on(text.size() - kept);
    if (begin > 0) at_line_begin_ = ends_line(text[begin - 1]);
    pending_.erase(0, begin);
}

}  // namespace speedrun
