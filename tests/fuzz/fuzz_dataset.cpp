// 'j': a dataset.json. 'l': a shards.lock. 'i': a data.json. Else: a shard, with all its tokens read.
#include "data/data_identity.h"
#include "data/dataset.h"
#include "data/json_text.h"
#include "data/shard_lock.h"
#include "data/token_dataset.h"
#include "tests/fuzz/fuzz_input.h"

void speedrun::fuzz::parse(std::string_view input) {
    if (input.empty()) return;
    const MemoryFile file(input.substr(1));
    if (input[0] == 'j') {
        read_dataset_info(file.path());
        return;
    }
    if (input[0] == 'l') {
        read_shard_lock(file.path());
        return;
    }
    if (input[0] == 'i') {
        try {
            data_identity_from_json(input.substr(1));
        } catch (const JsonError&) {
        }
        return;
    }
    const TokenDataset shard({file.path()}, 300, 256);
    std::vector<uint16_t> tokens(static_cast<size_t>(shard.num_tokens()));
    shard.read(0, tokens);
}
