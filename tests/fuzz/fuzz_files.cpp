// What else a user may hand over. 'c': a checkpoint.json. 's': sums of files. 'g': config.json of a GPT-2. 'h': hosts of a launch.
// 'o': measured operations. Else: a trace.
#include <cstdlib>

#include "tests/fuzz/fuzz_input.h"
#include "tests/temp_dir.h"
#include "train/checkpoint/checkpoint_info.h"
#include "train/commands/host_list.h"
#include "train/engine/measured_kernels.h"
#include "train/hf/hf_gpt2.h"
#include "train/trace/trace_file.h"

namespace speedrun {
namespace {

void read_hosts(const std::string& path) {
    for (const LaunchHost& host : read_launch_hosts(path))
        if (host.name.empty() || host.slots < 1) std::abort();
}

void read_checkpoint(const std::string& text) {
    for (const CheckpointTensor& tensor : parse_checkpoint_info(text, "fuzz").tensors)
        if (tensor.numel() < 0) std::abort();
}

void read_gpt2(const std::string& text) {
    static const TempDir folder;
    folder.write("config.json", text);
    const ModelConfig model = read_hf_config(folder.path()).model;
    if (model.mlp_ratio < 1 || model.model_dim % model.num_heads != 0) std::abort();
}

}  // namespace
}  // namespace speedrun

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
    const speedrun::fuzz::MemoryFile file(text);
    speedrun::fuzz::expect_clean([&] {
        if (data[0] == 'c') return speedrun::read_checkpoint(text);
        if (data[0] == 's') return (void)speedrun::read_sums(file.path());
        if (data[0] == 'g') return speedrun::read_gpt2(text);
        if (data[0] == 'h') return speedrun::read_hosts(file.path());
        if (data[0] == 'o')
            return (void)speedrun::MeasuredKernels(file.path(), speedrun::DType::bf16,
                                                   speedrun::KernelChoice{});
        speedrun::read_trace(file.path());
    });
    return 0;
}
