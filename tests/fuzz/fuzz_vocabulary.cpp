#include "data/bpe_vocabulary.h"
#include "data/vocabulary_pair.h"
#include "tests/fuzz/fuzz_input.h"

// With a NUL, the input is two files.
void speedrun::fuzz::parse(std::string_view input) {
    const size_t border = input.find('\0');
    const MemoryFile file(input.substr(0, border));
    if (border == input.npos) {
        read_bpe_vocabulary(file.path());
    } else {
        const MemoryFile merges(input.substr(border + 1));
        read_vocabulary_pair({file.path(), merges.path()});
    }
}
