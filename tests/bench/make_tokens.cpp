// Writes token shards with the statistics of text, for timing a training step: frequencies of a 50k
// vocabulary and lengths of documents. The King James text as bytes would not do: 60 different tokens put all
// of the embedding's gradient into 60 rows.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "data/dataset.h"
#include "data/shard.h"
#include "data/zipf_tokens.h"
#include "kernels/device/error.h"
#include "tests/bench/guarded_main.h"
#include "tests/bench/shapes.h"

namespace speedrun::bench {
namespace {

// One shard of a split; every document starts with the separator, the vocabulary's last token.
ShardInfo write_split(const std::string& folder, const std::string& split, int64_t count,
                      int64_t vocab_size) {
    ModelShape shape;
    shape.tokens = shape.sequence_length = count;
    shape.mean_document = full_shapes().recipe.mean_document;
    shape.window = 0;
    const Documents documents = documents_of(shape);
    const std::vector<int32_t> ids = zipf_tokens({.count = count, .vocab_size = vocab_size - 1});
    std::vector<uint16_t> tokens;
    for (size_t i = 0; i < ids.size(); ++i)
        tokens.push_back(static_cast<uint16_t>(documents.position[i] == 0 ? vocab_size - 1 : ids[i]));
    const std::string file = split + "_000000.bin", path = folder + "/" + file;
    write_shard(path, tokens);
    return {file, split, count, sha256_file(path)};
}

int run(int argc, char** argv) {
    CLI::App app("Writes train_000000.bin and val_000000.bin: random tokens with the frequencies of text.");
    std::string folder;
    int64_t tokens = 1 << 22, val_tokens = 1 << 16, vocab_size = 50257;
    app.add_option("folder", folder, "made if it is not there")->required();
    app.add_option("--tokens", tokens, "of the training shard")->check(CLI::Range(2, 1 << 30));
    app.add_option("--val-tokens", val_tokens)->check(CLI::Range(2, 1 << 30));
    app.add_option("--vocab-size", vocab_size)->check(CLI::Range(4, 65536));
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::usage);
    }
    std::filesystem::create_directories(folder);
    DatasetInfo info;
    info.name = "random";
    info.vocab_size = static_cast<int32_t>(vocab_size);
    info.separator = static_cast<int32_t>(vocab_size - 1);
    info.shards = {write_split(folder, "train", tokens, vocab_size),
                   write_split(folder, "val", val_tokens, vocab_size)};
    write_dataset_info(folder + "/dataset.json", info);
    fmt::print("{}: {} training tokens, {} for validation\n", folder, tokens, val_tokens);
    return 0;
}

}  // namespace
}  // namespace speedrun::bench

int main(int argc, char** argv) {
    return speedrun::bench::guarded_main(speedrun::bench::run, argc, argv);
}
