// build: in watch_tests
#include "tests/simt/watched_cases.h"

#include "kernels/cuda/ops/cuda_ops.h"
#include "tests/simt/simt_device.h"

namespace speedrun::simt {

bench::Shapes watched_shapes() {
    return {.recipe = {"recipe", 128, 128, 256, 2, 128, 512, 500, 512, 50, 60},
            .gpt2 = {"gpt2", 128, 64, 256, 4, 64, 512, 500, 512, 0, 0},
            .attention_tokens = 128,
            .attention_width = 128,
            .attention_sequences = {128}};
}

bench::Shapes tiny_shapes() {
    // Hidden layer of 528: more steps of a matmul than stages of its pipeline, and whole units of 16 bytes in FP8.
    return {.recipe = {"recipe", 96, 96, 128, 2, 64, 528, 131, 144, 40, 30},
            .gpt2 = {"gpt2", 96, 48, 64, 1, 64, 104, 131, 136, 0, 0},
            .attention_tokens = 384,
            .attention_width = 128,
            .attention_sequences = {64, 384}};  // 384: more tiles of keys than stages of a pipeline
}

std::vector<WatchedCase> watched(const std::vector<bench::Case>& cases, DType compute_dtype) {
    std::vector<WatchedCase> all;
    for (const bench::Case& c : cases) {
        all.push_back({c, compute_dtype, false});
        // Queries of one rank have places, which wgmma does not support.
        const bool served =
            (c.op.rfind("attention_", 0) == 0 && c.name.find(".rank.") == std::string::npos) ||
            c.name.find(".relu_squared") != std::string::npos;
        if (compute_dtype == DType::bf16 && served) all.push_back({c, compute_dtype, true});
    }
    return all;
}

std::string WatchedCase::title() const {
    return c.name + (compute_dtype == DType::bf16 ? " bf16" : " f32") + (wgmma ? " wgmma" : "");
}

int64_t run_watched(const WatchedCase& watched_case, Watch& watch, Options options) {
    const auto& [c, compute_dtype, wgmma] = watched_case;
    options.kernels_wait = true;
    SimtDevice device(options);
    const auto ops = make_cuda_ops(device, nullptr, wgmma ? make_wgmma_attention(device) : nullptr, wgmma);
    const auto before = device.create_stream("setup");
    device.set_watch(&watch);
    const auto watched = device.create_stream("watched");
    bench::CaseMemory memory(device, *ops, *before, compute_dtype);
    const bench::Enqueue enqueue = c.prepare(memory);
    before->synchronize();
    enqueue(*ops, *watched);
    watched->synchronize();
    return memory.counted().bytes();
}

}  // namespace speedrun::simt
