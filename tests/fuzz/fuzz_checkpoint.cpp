// A checkpoint.json. An accepted one names files in its folder and has values that a run can have.
#include <cstdlib>

#include "tests/fuzz/fuzz_input.h"
#include "train/checkpoint/checkpoint_info.h"

void speedrun::fuzz::parse(std::string_view input) {
    const CheckpointInfo info = parse_checkpoint_info(input, "fuzz");
    if (info.step < 0 || info.tokens < 0 || !(info.measured.train_ms >= 0)) std::abort();
    for (const CheckpointFile& file : info.files)
        if (file.bytes < 0 || file.name.find('/') != std::string::npos) std::abort();
    for (const CheckpointTensor& tensor : info.tensors)
        if (tensor.numel() < 0) std::abort();
}
