#include "train/sharding/resolve_ranks.h"

#include <algorithm>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

Sharing plan_of(const Config& config) {
    Sharing sharing{config.parallel};
    sharing.global_clip = config.optimizers.clip > 0;
    return sharing;
}

// `where`: what a message begins with.
void validate_stage(const std::string& where, const BatchConfig& b, int64_t ranks) {
    const int64_t at_once = b.microbatch_tokens * ranks;
    if (b.tokens_per_step % at_once == 0) return;
    // What one rank takes of a step has to be whole microbatches of whole sequences.
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

// Rows are long enough to be shared.
void validate_context(const Config& config, int ranks) {
    if (ranks == 1) return;
    int64_t shortest = config.in_validation().batch.sequence_length;
    for (const auto& entry : config.batch.sequence_length.entries())
        shortest = std::min(shortest, entry.from);
    if (shortest / 2 < ranks)
        throw_usage(
            "parallel.context is {}, but rows have {} tokens: every rank takes two chunks of a row, so lower it to {} "
            "or raise batch.sequence_length",
            ranks, shortest, std::max<int64_t>(1, shortest / 2));
}

}  // namespace

void validate_ranks(const Config& config, const Mesh& mesh) {
    validate_context(config, mesh.size(Axis::context));
    for (int64_t stage = 0; stage < config.schedule.num_stages(); ++stage)
        validate_stage(
            config.schedule.stages.empty() ? "" : fmt::format("stage {} of schedule.stages: ", stage),
            config.in_stage(stage).batch, mesh.size({Axis::replicate, Axis::shard}));
}

Ranks plan_ranks(const Config& config, int num_ranks) {
    const Mesh mesh = resolve_mesh(config.parallel, num_ranks);
    const Ranks ranks(mesh, plan_of(config));
    validate_ranks(config, mesh);
    return ranks;
}

Ranks resolve_ranks(const Config& config, World& world) {
    return plan_ranks(config, world.size()).with_world(world);
}

}  // namespace speedrun
