#include "data/bpe_vocabulary.h"
#include "tests/fuzz/fuzz_input.h"

void speedrun::fuzz::parse(std::string_view input) {
    const MemoryFile file(input);
    read_bpe_vocabulary(file.path());
}
