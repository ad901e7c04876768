// A checkpoint.json. An accepted one names files in its folder and has values that a run can have.
#include <cmath>
#include <cstdlib>

#include "tests/fuzz/fuzz_input.h"
#include "train/checkpoint/checkpoint_info.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    speedrun::fuzz::expect_clean([&] {
        const speedrun::CheckpointInfo info =
            speedrun::parse_checkpoint_info({reinterpret_cast<const char*>(data), size}, "fuzz");
        if (info.step < 0 || info.tokens < 0 || !(info.measured.train_ms >= 0)) std::abort();
        for (const speedrun::CheckpointFile& file : info.files)
            if (file.bytes < 0 || file.name.find('/') != std::string::npos) std::abort();
        for (const speedrun::CheckpointTensor& tensor : info.tensors)
            if (tensor.numel() < 0) std::abort();
    });
    return 0;
}
