#include "data/bpe_vocabulary.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const speedrun::fuzz::MemoryFile file({reinterpret_cast<const char*>(data), size});
    speedrun::fuzz::expect_clean([&] { speedrun::read_bpe_vocabulary(file.path()); });
    return 0;
}
