// Documents of text files, in pieces.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace speedrun {

// JSON Lines are files named .jsonl, .ndjson and .json, with json_key all but .txt; .gz or .zst may follow. Other files are text.
struct DocumentFormat {
    // A line equal to this ends a document of a text file; empty: one document per file.
    std::string marker{};
    // Key of the text in JSON Lines; empty: "text".
    std::string json_key{};
};

struct DocumentHandler {
    // Part of a document. is_cuttable: the document is a whole text file, which may be cut at a line end.
    std::function<void(std::string_view text, bool is_cuttable)> text;
    std::function<void()> end;  // end of a document, which may be empty
};

// Findings in the files read so far.
struct TextFindings {
    int64_t markers = 0;               // marker lines
    int64_t markers_inside_lines = 0;  // the marker with other text in its line
    int64_t text_files = 0;            // files that are not JSON Lines
    int64_t separator_texts = 0;       // "<|endoftext|>" within documents
    struct InvalidUtf8 {
        std::string path;
        int64_t bytes = 0, first = 0;  // first: offset in the text

        std::string describe() const;  // a sentence for a warning
    };
    std::vector<InvalidUtf8> invalid;  // files with bytes outside UTF-8, which are kept
};

// Passes the documents of a file to the handler, in order. Memory: pieces of 256 KiB, or a line of JSON. Throws a data error for a
// file that cannot be read, is damaged or looks binary.
void read_documents(const std::string& path, const DocumentFormat& format, const DocumentHandler& handler,
                    TextFindings& findings);

}  // namespace speedrun
