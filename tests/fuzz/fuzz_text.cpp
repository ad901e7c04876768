#include "data/text/document_source.h"
#include "tests/fuzz/fuzz_input.h"

// The first byte selects the kind of documents.
void speedrun::fuzz::parse(std::string_view input) {
    if (input.empty()) return;
    const MemoryFile file(input.substr(1));
    DocumentFormat format;
    if (input[0] == 'm') format.marker = "%%";
    if (input[0] == 'j') format.json_key = "text";
    TextFindings findings;
    read_documents(file.path(), format, {.text = [](std::string_view, bool) {}, .end = [] {}}, findings);
}
