#include "tests/fuzz/fuzz_input.h"
#include "train/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const speedrun::fuzz::MemoryFile file({reinterpret_cast<const char*>(data), size});
    speedrun::fuzz::expect_clean([&] { speedrun::read_safetensors(file.path()); });
    return 0;
}
