#include "train/config/config.h"

#include <system_error>

#include "kernels/device/error.h"

namespace speedrun {

void Config::fields(FieldVisitor& v) {
    v.section("model", "architecture", [this](FieldVisitor& s) { model.fields(s); });
    v.section("data", "token shards", [this](FieldVisitor& s) { data.fields(s); });
    v.section("batch", "batch arithmetic", [this](FieldVisitor& s) { batch.fields(s); });
    v.section("memory", "activation checkpointing and chunks of logits",
              [this](FieldVisitor& s) { memory.fields(s); });
    v.section("optimizers", "optimizer groups", [this](FieldVisitor& s) { optimizers.fields(s); });
    v.section("schedule", "learning-rate schedule", [this](FieldVisitor& s) { schedule.fields(s); });
    v.section("parallel", "mesh of ranks", [this](FieldVisitor& s) { parallel.fields(s); });
    v.section("eval", "validation", [this](FieldVisitor& s) { eval.fields(s); });
    v.section("checkpoint", "checkpoints to resume a run", [this](FieldVisitor& s) { checkpoint.fields(s); });
    v.section("record", "record attempt", [this](FieldVisitor& s) { record.fields(s); });
    v.section("cuda", "options of CUDA devices", [this](FieldVisitor& s) { cuda.fields(s); });
    v.choice("precision", precision, "compute dtype; auto: bf16 if the hardware supports it");
    v.choice("device", device, "device of the run; auto: a GPU if this build can use one");
    v.field("threads", threads, "CPU threads per rank; 0: all cores, divided among the ranks of a host",
            {0, 4096});
    v.field("seed", seed, "seed of initial weights and data order", {0, 9e15});
}

// 6 operations per weight and token. Attention reads half of the sequence on average.
double Config::rough_work() const {
    const auto number = [](int64_t value) { return static_cast<double>(value); };
    const ModelParts parts = model.parts;
    const double width = number(model.model_dim);
    double weights = width * number(model.padded_vocab_size()) * (1 + number(std::ssize(parts.tables)));
    double attention = 0;
    const auto add_attention = [&](const AttentionConfig& config) {
        const double heads = number(config.heads), qk = heads * number(config.qk_dim(model.model_dim)),
                     v = heads * number(config.v_dim(model.model_dim));
        weights += 2 * (qk + v) * width;
        attention += (qk + v) / 2 * number(batch.sequence_length);
    };
    for (const auto& layer : parts.layers.resolved()) {
        if (layer && layer->mlp)
            weights += number(layer->mlp->num_matrices() * layer->mlp->ratio) * width * width;
        if (layer && layer->attention) add_attention(*layer->attention);
    }
    return 6 * number(batch.tokens_per_step) * (weights + attention);
}

void DataConfig::validate() const {
    constexpr double kMinShare = 1e-9;
    double sum = 0;
    for (const DataSource& source : sources) sum += source.weight;
    for (size_t i = 0; i < sources.size(); ++i) {
        if (sources[i].files.empty())
            throw_usage("data.train[{}].files is empty: name the token shards of the source", i);
        if (const double share = sources[i].weight / sum; share < kMinShare)
            throw_usage(
                "data.train[{}].weight {} is a share of {:.1e} of the rows, at least {:.0e} are drawn", i,
                sources[i].weight, share, kMinShare);
    }
}

void Config::validate() const {
    schedule.validate();
    data.validate();
    validate_scheduled();
    if (eval.sequence_length > 0 || !eval.windows.empty()) in_validation().model.validate();
    for (int64_t stage = 0; stage < schedule.num_stages(); ++stage) {
        try {
            in_stage(stage).validate_stage();
        } catch (const Error& error) {
            if (schedule.num_stages() == 1 || error.code() != ExitCode::usage) throw;
            throw_usage("stage {} of schedule.stages: {}", stage, error.what());
        }
    }
}

void Config::validate_stage() const {
    model.validate();
    if (batch.microbatch_tokens % batch.sequence_length != 0) {
        throw_usage("batch.microbatch_tokens {} is not a multiple of batch.sequence_length {}",
                    batch.microbatch_tokens, batch.sequence_length);
    }
    if (batch.tokens_per_step % batch.microbatch_tokens != 0) {
        throw_usage("batch.tokens_per_step {} is not a multiple of batch.microbatch_tokens {}",
                    batch.tokens_per_step, batch.microbatch_tokens);
    }
    if (data.rows == RowKind::stream && data.max_document_tokens > 0) {
        throw_usage("data.max_document_tokens {} is for data.rows=documents, data.rows is stream",
                    data.max_document_tokens);
    }
    if (data.max_document_tokens > batch.sequence_length) {
        throw_usage("data.max_document_tokens {} exceeds batch.sequence_length {}", data.max_document_tokens,
                    batch.sequence_length);
    }
    constexpr int64_t kMaxMicrobatches = 1 << 16;
    if (const int64_t count = batch.tokens_per_step / batch.microbatch_tokens; count > kMaxMicrobatches) {
        throw_usage(
            "batch.tokens_per_step {} is {} microbatches of batch.microbatch_tokens {}, at most {} are run",
            batch.tokens_per_step, count, batch.microbatch_tokens, kMaxMicrobatches);
    }
    if (const double work = rough_work(); work > kMaxWork) {
        throw_usage(
            "a step would be about {:.1e} floating-point operations ({} layers x {}, {} "
            "tokens), at most {:.0e} are counted: lower model's sizes or batch.tokens_per_step",
            work, model.parts.num_layers(), model.model_dim, batch.tokens_per_step, kMaxWork);
    }
    if (parallel.optimizer_step == OptimizerStep::in_backward && optimizers.clip > 0) {
        throw_usage(
            "parallel.optimizer_step is in_backward and optimizers.clip is on: clipping needs the norm of all "
            "gradients, which is known only after backward; set optimizers.clip to 0, or optimizer_step to "
            "after_backward");
    }
    optimizers.validate(schedule.total_steps());
    if (precision) optimizers.check_precision(*precision);
    for (size_t i = 0; i < optimizers.groups.size(); ++i) {
        if (checkpoint.every % optimizers.groups[i].every != 0) {
            throw_usage(
                "checkpoint.every {} is not a multiple of optimizers.groups[{}].every {}: "
                "checkpoints do not store gradients pending between updates",
                checkpoint.every, i, optimizers.groups[i].every);
        }
    }
}

}  // namespace speedrun
