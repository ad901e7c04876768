#include "train/config/config.h"

#include <cmath>
#include <system_error>

#include "kernels/device/error.h"

namespace speedrun {

void DataConfig::fields(FieldVisitor& v) {
    v.field("train", train, "token shards to train on (file patterns)");
    v.field("val", val, "token shards to validate on (file patterns)");
    v.field(
        "vocabulary", vocabulary,
        "the tokenizer's vocabulary, a tiktoken file or GPT-2's tokenizer.json, for what goes by the bytes of tokens "
        "(model.loss.prefix_weight); empty: the one in the folder of data.train, if speedrun prepare made it");
    v.field("val_tokens", val_tokens, "tokens of the validation stream that are scored; 0: all", {0, 1e15});
    v.field("shuffle", shuffle,
            "visit sequences, or documents, in a random order, a function of seed and step alone");
    v.choice(
        "rows", rows,
        "what a training sequence holds; stream: the tokens that follow each other in a shard; documents: "
        "documents from their starts, packed until the sequence is full, the rest of the last one "
        "dropped");
    v.field("max_document_tokens", max_document_tokens,
            "rows=documents: tokens of a document that are used, the rest is dropped; 0: "
            "the sequence length and one, for the last target",
            {0, 1 << 20});
    v.field("document_mask", document_mask, "attention does not cross documents");
    v.field("allow_overlap", allow_overlap,
            "train although a shard is in the list twice, or in data.train and data.val");
}

void BatchConfig::fields(FieldVisitor& v) {
    v.field("sequence_length", sequence_length, "tokens of a sequence", {1, 1 << 20});
    v.field("microbatch_tokens", microbatch_tokens,
            "tokens that a rank processes at once, a multiple of sequence_length", {1, 1 << 24});
    v.field("tokens_per_step", tokens_per_step,
            "tokens of an optimizer step over all ranks, a multiple of microbatch_tokens x ranks", {1, 1e12});
}

void MemoryConfig::fields(FieldVisitor& v) {
    v.choice("activation_checkpointing", activation_checkpointing,
             "what a block keeps for backward, which computes the rest again; none: everything; selective: "
             "what products and attention gave; full: what entered it");
    v.retired("checkpointed_blocks",
              {.off = "\"all\"", .why = "all blocks but the last are checkpointed, or none"});
    v.field(
        "logits_at_once", logits_at_once,
        "logits (tokens x vocabulary) that the head makes, turns into gradients and uses up at a time; 0: "
        "those of the microbatch on a GPU, 2^26 on a CPU",
        {0, 1e12});
}

int64_t MemoryConfig::logits_on(DeviceKind device) const {
    if (logits_at_once > 0) return logits_at_once;
    return int64_t{1} << (device == DeviceKind::cuda ? 31 : 26);
}

void ScheduleConfig::fields(FieldVisitor& v) {
    v.field("steps", steps, "optimizer steps of the run, but for final_steps", {0, 1e12});
    v.field("final_steps", final_steps,
            "further steps behind them, at the learning rate that the cooldown ends at; 0: none", {0, 1e12});
    v.field("warmup_steps", warmup_steps, "steps of linear warm-up", {0, 1e12});
    v.choice("decay", decay, "shape of the cooldown");
    v.field("cooldown_fraction", cooldown_fraction, "share of schedule.steps, at their end, that cools down",
            {0, 1});
    v.field("final_lr_fraction", final_lr_fraction, "learning rate at the end, as a share of the top",
            {0, 1});
    v.field(
        "stages", stages,
        "the steps after which stages of the run end, the last one being all of them (schedule.steps + schedule.final_steps); keys that may change from "
        "stage to stage take a list with one entry for each: a number, or [from, to], linear in the stage's "
        "steps; empty: one stage",
        {1, 1e12});
    v.field("lr_factor", lr_factor, "factor of every learning rate, beside warm-up and cooldown", {0, 1e3});
}

void ParallelConfig::fields(FieldVisitor& v) {
    v.choice("strategy", strategy,
             "what a rank holds only its shard of; ddp: nothing (but matrices of muon have one owner each); "
             "zero1: optimizer state; zero2: gradients too; zero3: parameters too");
    v.choice("launch", launch,
             "when a gradient's reduction starts: as soon as it is final, or when backward has ended");
    v.choice(
        "accumulate", accumulate,
        "gradients between microbatches; local: each rank its own, reduced after the last; "
        "reduce_scatter: each microbatch's is reduced and added to the rank's shard; auto: the latter for "
        "zero2 and zero3");
    v.choice("reduce_dtype", reduce_dtype, "in which gradients travel; they are accumulated in f32");
    v.choice("optimizer_step", optimizer_step,
             "in_backward: step each parameter as soon as its gradient is reduced, whose memory is then used "
             "again");
    v.choice("reshard_after_forward", reshard_after_forward,
             "zero3: free gathered parameters after forward and gather them again for backward; true, false, "
             "or except_last (auto): but for those that backward needs first");
    v.field(
        "bucket_bytes", bucket_bytes,
        "f32 gradients that are reduced as one, in the order of backward; a larger one goes alone; 1: all "
        "do; 0: half a MiB for each rank (latency times bandwidth), at most 1/16 of all; zero3: a block's, "
        "whatever its size",
        {0, 1e12});
    v.retired("coalesce_below_bytes", {.off = "65536", .why = "bucket_bytes decides what is reduced as one"});
    v.choice("step_order", step_order,
             "order in which parameters are stepped and gathered: that in which backward completes them, or "
             "as declared, to measure the difference; muon's updates come back as declared either way");
    v.field("replicate", replicate, "mesh axis: copies of the sharded model", {1, 65536});
    v.field("shard", shard, "mesh axis: ranks that share one copy; \"auto\": the rest of the ranks");
    v.field(
        "context", context,
        "mesh axis: ranks that share each row of tokens, two chunks of it each, and fetch keys and values",
        {1, 65536});
    v.retired(
        "context_exchange",
        {.off = "\"gather\"",
         .why = "a ring sends 1.5 times the bytes, and windows leave few keys to send: keys are gathered"});
    v.field(
        "tensor", tensor,
        "mesh axis: ranks that share each matrix: attention by heads, the MLP by hidden units, tables and head by "
        "their rows; they work on one microbatch",
        {1, 65536});
    v.field(
        "sequence", sequence,
        "with tensor: outside of matrices these ranks share the microbatch's tokens (sequence parallelism), which "
        "needs as many bytes between ranks and less memory");
    v.retired("tensor_chunks", {.off = "1", .why = "2 and 4 chunks made no step faster than one"});
    v.choice(
        "communicator", communicator,
        "between GPUs: NCCL, or staged through the host's memory, so that ranks may share a GPU; auto: NCCL "
        "where it is installed and each rank has a GPU of its own");
    v.field("nccl_max_ctas", nccl_max_ctas,
            "blocks (CTAs) of a GPU that one of NCCL's collectives may take; 0: as NCCL decides", {0, 64});
    v.field("timeout_s", timeout_s,
            "seconds without progress after which a rank takes another for lost and ends the run",
            {1, 86400});
    v.field("start_timeout_s", start_timeout_s,
            "the same while NCCL connects the ranks, which takes minutes where there are many hosts",
            {1, 86400});
    v.field("simulate_latency_us", simulate_latency_us,
            "for measuring: every collective takes so many microseconds longer; 0: off", {0, 1e7});
    v.field("simulate_gbytes_per_s", simulate_gbytes_per_s,
            "for measuring: and its bytes leave a rank no faster than this, in 1e9 bytes per second; 0: off",
            {0, 1e6});
    v.field("simulate_jitter_us", simulate_jitter_us,
            "for measuring: and a random time below this, another for every rank and collective; 0: off",
            {0, 1e7});
}

void EvalConfig::fields(FieldVisitor& v) {
    v.field("every", every, "steps between validations; 0: only after the last step", {0, 1e12});
    v.field("sequence_length", sequence_length, "tokens of a row of validation; 0: as in the last stage",
            {0, 1 << 20});
    v.section(
        "windows",
        "windows of validation, by their names in model.windows (presets: \"window\"); the others are the "
        "last stage's",
        [this](FieldVisitor& s) {
            read_own<int64_t>(s, windows, [&](const std::string& key, int64_t& keys) {
                s.field(key.c_str(), keys, "keys that a query sees at most, itself included; 0: all",
                        {0, 1e9});
            });
        });
}

void CheckpointConfig::fields(FieldVisitor& v) {
    v.field("every", every, "steps between checkpoints, written while training goes on; 0: none in between",
            {0, 1e12});
    v.field("keep", keep, "how many to keep: older ones are deleted when a newer one is complete", {1, 1e6});
    v.field("last", last, "write one after the last step; a run that a signal stops writes one in any case");
}

void RecordConfig::fields(FieldVisitor& v) {
    v.field("track", track, "name of the track in records/ that the run is an attempt at");
    v.field("target_loss", target_loss,
            "validation loss, in nats per token, that the run has to reach; 0: none", {0, 100});
}

void CudaConfig::fields(FieldVisitor& v) {
    v.choice("products", products,
             "matrix products by cuBLASLt where it is installed, or by our own kernels");
    v.choice(
        "attention", attention,
        "attention by our own kernels; by those of them that are for GPUs of compute capability 9.0 alone (H100, "
        "H200), where they serve: bf16, head sizes 64 and 128, undivided sequences; or by cuDNN where it serves: "
        "the same, data.document_mask off");
    v.field("graph", graph, "launch forward and backward as one recorded CUDA graph");
    v.field(
        "dependent_launch", dependent_launch,
        "let kernels begin while those before them end (programmatic dependent launch); compute capability 9.0 "
        "and above; not yet run on a GPU");
}

void Config::fields(FieldVisitor& v) {
    v.section("model", "architecture", [this](FieldVisitor& s) { model.fields(s); });
    v.section("data", "token shards", [this](FieldVisitor& s) { data.fields(s); });
    v.section("batch", "batch arithmetic", [this](FieldVisitor& s) { batch.fields(s); });
    v.section("memory", "memory against work", [this](FieldVisitor& s) { memory.fields(s); });
    v.section("optimizers", "optimizer groups", [this](FieldVisitor& s) { optimizers.fields(s); });
    v.section("schedule", "learning-rate schedule", [this](FieldVisitor& s) { schedule.fields(s); });
    v.section("parallel", "mesh of ranks", [this](FieldVisitor& s) { parallel.fields(s); });
    v.section("eval", "validation", [this](FieldVisitor& s) { eval.fields(s); });
    v.section("checkpoint", "what a stopped run continues from",
              [this](FieldVisitor& s) { checkpoint.fields(s); });
    v.section("record", "record attempt", [this](FieldVisitor& s) { record.fields(s); });
    v.section("cuda", "what only a GPU knows", [this](FieldVisitor& s) { cuda.fields(s); });
    v.choice("precision", precision, "compute type; auto: bf16 where the hardware has it");
    v.choice("device", device, "auto: a GPU if there is one that this build can use");
    v.field("threads", threads, "threads of a rank for the CPU; 0: all cores, or its share of them",
            {0, 4096});
    v.field("seed", seed, "of initial weights and data order", {0, 9e15});
}

// Six per weight and token, and attention to half of the sequence.
double Config::rough_work() const {
    const auto number = [](int64_t value) { return static_cast<double>(value); };
    const ModelParts parts = model.parts;
    const double width = number(model.model_dim);
    double weights = width * number(model.padded_vocab_size()) * (1 + number(std::ssize(parts.tables)));
    double attention = 0;
    for (const auto& layer : parts.layers.resolved()) {
        if (layer && layer->mlp) weights += 2 * width * width * number(layer->mlp->ratio);
        if (layer && layer->attention)
            weights += 4 * width * width, attention += width * number(batch.sequence_length);
    }
    return 6 * number(batch.tokens_per_step) * (weights + attention);
}

void Config::validate() const {
    schedule.validate();
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
    constexpr int64_t kMostMicrobatches = 1 << 16;
    if (const int64_t count = batch.tokens_per_step / batch.microbatch_tokens; count > kMostMicrobatches) {
        throw_usage(
            "batch.tokens_per_step {} is {} microbatches of batch.microbatch_tokens {}, at most {} are run",
            batch.tokens_per_step, count, batch.microbatch_tokens, kMostMicrobatches);
    }
    if (const double work = rough_work(); work > kMostWork) {
        throw_usage(
            "a step would be about {:.1e} floating-point operations ({} layers x {}, {} "
            "tokens), at most {:.0e} are counted: lower model's sizes or batch.tokens_per_step",
            work, model.parts.num_layers(), model.model_dim, batch.tokens_per_step, kMostWork);
    }
    optimizers.validate(schedule.total_steps());
    if (precision) optimizers.check_precision(*precision);
    for (size_t i = 0; i < optimizers.groups.size(); ++i) {
        if (checkpoint.every % optimizers.groups[i].every != 0) {
            throw_usage(
                "checkpoint.every {} is not a multiple of optimizers.groups[{}].every {}: in between, "
                "gradients wait that no checkpoint holds",
                checkpoint.every, i, optimizers.groups[i].every);
        }
    }
}

}  // namespace speedrun
