// Writes token shards with the statistics of text, for timing a training step: frequencies of a 50k
// vocabulary and lengths of documents. The King James text as bytes would not do: 60 different tokens put all
// of the embedding's gradient into 60 rows.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <random>

#include "data/dataset.h"
#include "data/shard.h"
#include "data/zipf_tokens.h"
#include "kernels/device/error.h"
#include "tests/bench/guarded_main.h"
#include "tests/bench/shapes.h"

namespace speedrun::bench {
namespace {

// Length of documents in tokens, log-normal; median 0: exponential, as in op_bench.
struct Lengths {
    double median = 0, mean = 0;
};

// Position of each token in its document.
std::vector<int32_t> positions_of(int64_t count, const Lengths& lengths) {
    if (lengths.median == 0) {
        ModelShape shape;
        shape.tokens = shape.sequence_length = count;
        shape.mean_document = full_shapes().recipe.mean_document;
        shape.window = 0;
        return documents_of(shape).position;
    }
    constexpr double kShortest = 32;  // tokens
    std::mt19937_64 generator(1);
    const auto uniform = [&] { return (static_cast<double>(generator() >> 11) + 0.5) * 0x1p-53; };
    const double deviation = std::sqrt(2 * std::log(lengths.mean / lengths.median));
    std::vector<int32_t> positions;
    while (static_cast<int64_t>(positions.size()) < count) {
        const double radius = std::sqrt(-2 * std::log(uniform()));
        const double normal = radius * std::cos(2 * std::numbers::pi * uniform());
        const double length = std::max(kShortest, lengths.median * std::exp(deviation * normal));
        for (int32_t i = 0; i < static_cast<int32_t>(std::min(length, static_cast<double>(count))); ++i)
            positions.push_back(i);
    }
    positions.resize(static_cast<size_t>(count));
    return positions;
}

struct Split {
    const char* name;
    int64_t count;  // tokens
};

// One shard of a split; every document starts with the separator, the vocabulary's last token.
ShardInfo write_split(const std::string& folder, const Split& split, int64_t vocab_size,
                      const Lengths& lengths) {
    const int64_t count = split.count;
    const std::vector<int32_t> positions = positions_of(count, lengths);
    const std::vector<int32_t> ids = zipf_tokens({.count = count, .vocab_size = vocab_size - 1});
    std::vector<uint16_t> tokens;
    for (size_t i = 0; i < ids.size(); ++i)
        tokens.push_back(static_cast<uint16_t>(positions[i] == 0 ? vocab_size - 1 : ids[i]));
    const std::string file = std::string(split.name) + "_000000.bin", path = folder + "/" + file;
    write_shard(path, tokens);
    return {file, split.name, count, sha256_file(path)};
}

int run(int argc, char** argv) {
    CLI::App app("Writes train_000000.bin and val_000000.bin: random tokens with the frequencies of text.");
    std::string folder;
    Lengths lengths;
    int64_t tokens = 1 << 22, val_tokens = 1 << 16, vocab_size = 50257;
    app.add_option("folder", folder, "made if it is not there")->required();
    app.add_option("--tokens", tokens, "of the training shard")->check(CLI::Range(2, 1 << 30));
    app.add_option("--val-tokens", val_tokens)->check(CLI::Range(2, 1 << 30));
    app.add_option("--vocab-size", vocab_size)->check(CLI::Range(4, 65536));
    auto* const median =
        app.add_option("--median-document", lengths.median, "tokens; documents of log-normal length")
            ->check(CLI::Range(1, 1 << 20));
    auto* const mean = app.add_option("--mean-document", lengths.mean, "tokens, above the median")
                           ->check(CLI::Range(1, 1 << 20))
                           ->needs(median);
    median->needs(mean);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : static_cast<int>(ExitCode::usage);
    }
    if (lengths.mean < lengths.median)
        throw_usage("--mean-document {} is below the median {}", lengths.mean, lengths.median);
    std::filesystem::create_directories(folder);
    DatasetInfo info;
    info.name = "random";
    info.vocab_size = static_cast<int32_t>(vocab_size);
    info.separator = static_cast<int32_t>(vocab_size - 1);
    info.shards = {write_split(folder, {"train", tokens}, vocab_size, lengths),
                   write_split(folder, {"val", val_tokens}, vocab_size, lengths)};
    write_dataset_info(folder + "/dataset.json", info);
    fmt::print("{}: {} training tokens, {} for validation\n", folder, tokens, val_tokens);
    return 0;
}

}  // namespace
}  // namespace speedrun::bench

int main(int argc, char** argv) {
    return speedrun::bench::guarded_main(speedrun::bench::run, argc, argv);
}
