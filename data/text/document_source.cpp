#include "data/text/document_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "data/bpe_vocabulary.h"
#include "data/text/json_lines.h"
#include "data/text/marker_search.h"
#include "data/text/text_source.h"

namespace speedrun {

namespace {

bool is_json_lines(std::string_view path, const DocumentFormat& format) {
    for (const std::string_view suffix : {".gz", ".zst"})
        if (path.ends_with(suffix)) path.remove_suffix(suffix.size());
    if (path.ends_with(".jsonl") || path.ends_with(".ndjson") || path.ends_with(".json")) return true;
    return !format.json_key.empty() && !path.ends_with(".txt");
}

// Counts a word in text that is read in pieces.
class WordCount {
  public:
    explicit WordCount(std::string_view word) : word_(word) {}

    void add(std::string_view piece) {
        border_.append(piece.substr(0, word_.size() - 1));
        count(border_);
        count(piece);
        const size_t kept = word_.size() - 1;
        if (piece.size() >= kept) {
            border_ = piece.substr(piece.size() - kept);
        } else {
            border_.erase(0, border_.size() - std::min(border_.size(), kept));
        }
    }
    void end() { border_.clear(); }
    int64_t found() const { return found_; }

  private:
    void count(std::string_view text) {
        for (size_t at = text.find(word_); at != text.npos; at = text.find(word_, at + word_.size()))
            ++found_;
    }

    const std::string_view word_;
    std::string border_;  // end of the pieces so far, shorter than the word
    int64_t found_ = 0;
};

}  // namespace

std::string TextFindings::InvalidUtf8::describe() const {
    return fmt::format("{}: {} bytes outside UTF-8, the first at byte {} of the text; they are kept", path,
                       bytes, first);
}

void read_documents(const std::string& path, const DocumentFormat& format, const DocumentHandler& handler,
                    TextFindings& findings) {
    TextSource source(path);
    WordCount separators(kSeparatorText);
    const bool is_json = is_json_lines(path, format), is_whole = !is_json && format.marker.empty();
    const auto pass_on = [&](std::string_view text) {
        separators.add(text);
        handler.text(text, is_whole);
    };
    const auto end = [&] {
        separators.end();
        handler.end();
    };
    const auto read_all = [&](const auto& take) {
        for (std::string_view piece = source.next(); !piece.empty(); piece = source.next()) take(piece);
    };
    if (is_json) {
        JsonLines lines(path, format.json_key.empty() ? "text" : format.json_key, [&](std::string_view text) {
            pass_on(text);
            end();
        });
        read_all([&](std::string_view piece) { lines.add(piece); });
        lines.finish();
    } else if (is_whole) {
        read_all(pass_on);
        end();
    } else {
        MarkerSearch search(format.marker, {.text = pass_on, .marker = [&] {
                                                ++findings.markers;
                                                end();
                                            }});
        read_all([&](std::string_view piece) { search.add(piece); });
        search.finish();
        end();
        findings.markers_inside_lines += search.inside_lines();
    }
    findings.text_files += is_json ? 0 : 1;
    findings.separator_texts += separators.found();
    if (source.utf8().invalid() > 0)
        findings.invalid.push_back({path, source.utf8().invalid(), source.utf8().first()});
}

}  // namespace speedrun
