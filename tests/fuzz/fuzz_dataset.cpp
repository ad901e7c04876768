// 'j': a dataset.json. 'l': a shards.lock. Else: a shard, of which every token is read.
#include "data/dataset.h"
#include "data/shard_lock.h"
#include "data/token_dataset.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    const speedrun::fuzz::MemoryFile file({reinterpret_cast<const char*>(data) + 1, size - 1});
    speedrun::fuzz::expect_clean([&] {
        if (data[0] == 'j') {
            speedrun::read_dataset_info(file.path());
            return;
        }
        if (data[0] == 'l') {
            speedrun::read_shard_lock(file.path());
            return;
        }
        const speedrun::TokenDataset shard({file.path()}, 300, 256);
        std::vector<int32_t> tokens(static_cast<size_t>(shard.num_tokens()));
        shard.read_stream(0, tokens);
    });
    return 0;
}
