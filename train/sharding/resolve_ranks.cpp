#include "train/sharding/resolve_ranks.h"

#include <algorithm>

#include "kernels/device/error.h"
#include "train/model/parts/attention.h"

namespace speedrun {

namespace {

// Throws a usage error unless a step is whole microbatches of all ranks. where: prefix of the message.
void validate_stage(const std::string& where, const BatchConfig& b, int64_t ranks) {
    const int64_t at_once = b.microbatch_tokens * ranks;
    if (b.tokens_per_step % at_once == 0) return;
    // A rank's share of a step must be whole microbatches of whole sequences.
    const int64_t rows = b.tokens_per_step / b.sequence_length;
    std::string advice = fmt::format("set batch.tokens_per_step to a multiple of {}", at_once);
    if (rows % ranks == 0) {
        int64_t fitting = std::min<int64_t>(rows / ranks, b.microbatch_tokens / b.sequence_length);
        while (rows / ranks % fitting != 0) --fitting;
        advice += fmt::format(", or --set batch.microbatch_tokens={}", fitting * b.sequence_length);
    } else {
        advice += fmt::format("; {} sequences cannot be shared by {} ranks", rows, ranks);
    }
    throw_usage(
        "{}batch.tokens_per_step {} is not a multiple of batch.microbatch_tokens {} x {} ranks = {}: {}",
        where, b.tokens_per_step, b.microbatch_tokens, ranks, at_once, advice);
}

// Throws a usage error if rows are too short to share.
void validate_context(const Config& config, int ranks) {
    if (ranks == 1) return;
    const auto layers = config.in_stage(0).model.parts.layers.resolved();
    for (size_t i = 0; i < layers.size(); ++i) {
        if (!layers[i] || !layers[i]->attention) continue;
        for (const auto& [key, part] : layers[i]->attention->parts.all())
            if (part->needs_whole_rows())
                throw_usage(
                    "parallel.context is {}, but attention of layer {} has {}, for which rows are not cut among ranks: set "
                    "parallel.context=1, or leave {} out",
                    ranks, i, key, key);
    }
    int64_t shortest = config.in_validation().batch.sequence_length;
    for (const auto& entry : config.batch.sequence_length.entries())
        shortest = std::min(shortest, entry.from);
    if (shortest / 2 < ranks)
        throw_usage(
            "parallel.context is {}, but rows have {} tokens: every rank takes two chunks of a row, so lower it to {} "
            "or raise batch.sequence_length",
            ranks, shortest, std::max<int64_t>(1, shortest / 2));
}

// Number of heads, hidden units or tokens, which must be a multiple of the tensor ranks, and the words of its message.
struct Shared {
    std::string where;
    int64_t count;
    const char* what;
};
void validate_shares(const Shared& shared, int ranks) {
    const auto& [where, count, what] = shared;
    if (count % ranks == 0) return;
    std::string fitting;
    for (int64_t size = 1; size <= std::min<int64_t>(count, 64); ++size)
        if (count % size == 0) fitting += (fitting.empty() ? "" : ", ") + std::to_string(size);
    throw_usage(
        "parallel.tensor is {}, but {} has {} {}, not divisible by it: of sizes up to 64, {} are possible",
        ranks, where, count, what, fitting);
}

void validate_tensor(const Config& config, const Mesh& mesh) {
    const int ranks = mesh.size(Axis::tensor);
    if (ranks == 1) return;
    const ModelConfig model = config.in_stage(0).model;
    const ModelParts parts = model.parts;
    const WholeAttention whole = whole_attention(parts);
    const auto layers = parts.layers.resolved();
    for (size_t i = 0; i < layers.size(); ++i) {
        if (!layers[i]) continue;
        const bool divided = whole.layers.count(static_cast<int64_t>(i)) == 0;
        if (const auto& attention = layers[i]->attention; attention && divided)
            validate_shares({fmt::format("attention of layer {}", i), attention->heads, "heads"}, ranks);
        if (const auto& mlp = layers[i]->mlp)
            validate_shares(
                {fmt::format("the MLP of layer {}", i), mlp->ratio * model.model_dim, "hidden units"}, ranks);
    }
    if (!config.parallel.sequence) return;
    const auto validate_tokens = [&](const char* where, const BatchConfig& batch) {
        const ContextSlice part{.size = mesh.size(Axis::context), .index = 0};
        const int64_t tokens =
            batch.microbatch_tokens / batch.sequence_length * part.local_length(batch.sequence_length);
        validate_shares({where, tokens, "tokens on a rank (parallel.sequence shares them)"}, ranks);
    };
    for (int64_t stage = 0; stage < config.schedule.num_stages(); ++stage)
        validate_tokens("a microbatch", config.in_stage(stage).batch);
    validate_tokens("a batch of validation", config.in_validation().batch);
}

}  // namespace

void validate_ranks(const Config& config, const Mesh& mesh) {
    validate_context(config, mesh.size(Axis::context));
    validate_tensor(config, mesh);
    for (int64_t stage = 0; stage < config.schedule.num_stages(); ++stage)
        validate_stage(
            config.schedule.stages.empty() ? "" : fmt::format("stage {} of schedule.stages: ", stage),
            config.in_stage(stage).batch, mesh.size({Axis::replicate, Axis::shard}));
}

RankTokens rank_tokens(const Config& config, const Ranks& ranks) {
    RankTokens most;
    for (int64_t stage = 0; stage < config.schedule.num_stages(); ++stage) {
        const Config in_stage = config.in_stage(stage);
        const BatchConfig& batch = in_stage.batch;
        const int64_t tokens = batch.microbatch_tokens / batch.sequence_length *
                               ranks.part().local_length(batch.sequence_length);
        most.microbatch = std::max(most.microbatch, tokens);
        most.step = std::max(most.step, tokens * in_stage.microbatches_per_step(ranks.num_data_ranks()));
    }
    return most;
}

Ranks plan_ranks(const Config& config, int num_ranks) {
    const Mesh mesh = resolve_mesh(config.parallel, num_ranks);
    const Ranks ranks(mesh, config.parallel);
    validate_ranks(config, mesh);
    return ranks;
}

Ranks resolve_ranks(const Config& config, World& world) {
    return plan_ranks(config, world.size()).with_world(world);
}

}  // namespace speedrun
