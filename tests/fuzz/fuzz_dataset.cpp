// 'j': a dataset.json. 'l': a shards.lock. 'i': a data.json. Else: a shard, with all its tokens read.
#include "data/data_identity.h"
#include "data/dataset.h"
#include "data/json_text.h"
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
        if (data[0] == 'i') {
            try {
                const std::string_view text{reinterpret_cast<const char*>(data) + 1, size - 1};
                speedrun::data_identity_from_json(text);
            } catch (const speedrun::JsonError&) {
            }
            return;
        }
        const speedrun::TokenDataset shard({file.path()}, 300, 256);
        std::vector<uint16_t> tokens(static_cast<size_t>(shard.num_tokens()));
        shard.read(0, tokens);
    });
    return 0;
}
