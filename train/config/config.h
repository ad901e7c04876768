// The configuration of a run: one struct per section, with the defaults that the JSON file may override.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/config/choices.h"
#include "train/config/lr_schedule.h"
#include "train/config/model_parts.h"
#include "train/config/parallel_config.h"
#include "train/fields/field_visitor.h"
#include "train/optim/optimizers.h"

namespace speedrun {

struct ModelConfig {
    std::string preset = "modern";  // "none" in a config that was read (merge_over_preset)
    int64_t model_dim = 256;
    int64_t vocab_size = 257;
    double init_scale = 1;
    std::string init_from;
    ModelParts parts;

    int64_t padded_vocab_size() const { return (vocab_size + 63) / 64 * 64; }
    // Returns this model with the windows and loss weights of one stage of the schedule.
    ModelConfig in_stage(int64_t stage) const;
    void fields(FieldVisitor& v);
    // Throws a usage error, with key and values, for a model that cannot be built.
    void validate() const;
};

// A source of a mixture.
struct DataSource {
    std::vector<std::string> files;
    double weight = 1;
    void fields(FieldVisitor& v) {
        v.field("files", files, "token shards of a source of a mixture (file patterns)");
        v.field("weight", weight,
                "share of the rows that are drawn from the source, relative to the other sources",
                {1e-9, 1e9});
    }
};

struct DataConfig {
    std::vector<std::string> train, val;  // train: patterns of all sources
    std::vector<DataSource> sources;      // sources of data.train; empty: no mixture
    std::string vocabulary;
    int64_t val_tokens = 0;
    bool shuffle = true;
    RowKind rows = RowKind::stream;
    Scheduled<int64_t> max_document_tokens = 0;  // 0: batch.sequence_length
    bool document_mask = true;
    bool allow_overlap = false;
    void fields(FieldVisitor& v) {
        v.strings_or_objects(
            "train", train, sources,
            "token shards to train on (file patterns); or a list of objects, the sources of a mixture");
        if (!sources.empty()) train.clear();
        for (const DataSource& source : sources)
            train.insert(train.end(), source.files.begin(), source.files.end());
        v.field("val", val, "token shards to validate on (file patterns)");
        v.field(
            "vocabulary", vocabulary,
            "vocabulary of the tokenizer, a tiktoken file or GPT-2's tokenizer.json; model.loss.prefix_weight reads the bytes of "
            "tokens from it; empty: the file that speedrun prepare wrote in the folder of data.train");
        v.field("val_tokens", val_tokens, "tokens of the validation stream that are scored; 0: all",
                {0, 1e15});
        v.field("shuffle", shuffle,
                "visit sequences, or documents, in a random order, a function of seed and step alone");
        v.choice(
            "rows", rows,
            "content of a training sequence; stream: consecutive tokens of a shard; documents: documents from their starts, packed "
            "until the sequence is full, the rest of the last one dropped");
        v.field("max_document_tokens", max_document_tokens,
                "tokens used per document with rows=documents, the rest is dropped; 0: "
                "sequence length + 1, which includes the last target",
                {0, 1 << 20});
        v.field("document_mask", document_mask, "attention does not cross documents");
        v.field("allow_overlap", allow_overlap,
                "train although a shard is in the list twice, or in data.train and data.val");
    }
    // Throws a usage error for a source without files or of a tiny share.
    void validate() const;
};

struct BatchConfig {
    Scheduled<int64_t> sequence_length = 512;
    Scheduled<int64_t> microbatch_tokens = 8192;
    Scheduled<int64_t> tokens_per_step = 8192;
    void fields(FieldVisitor& v) {
        v.field("sequence_length", sequence_length, "tokens of a sequence", {1, 1 << 20});
        v.field("microbatch_tokens", microbatch_tokens,
                "tokens of a microbatch of a rank, a multiple of sequence_length", {1, 1 << 24});
        v.field("tokens_per_step", tokens_per_step,
                "tokens of an optimizer step over all ranks, a multiple of microbatch_tokens x ranks",
                {1, 1e12});
    }
};

struct MemoryConfig {
    Checkpointing activation_checkpointing = Checkpointing::none;
    int64_t logits_at_once = 0;  // 0: by device, see logits_on()
    void fields(FieldVisitor& v) {
        v.choice(
            "activation_checkpointing", activation_checkpointing,
            "values that a block stores for backward, which recomputes the others; none: all values; selective: outputs of "
            "matmuls and attention; full: the input of the block");
        v.retired("checkpointed_blocks",
                  {.off = "\"all\"", .why = "all blocks but the last are checkpointed, or none"});
        v.field(
            "logits_at_once", logits_at_once,
            "logits (tokens x vocabulary) that the head computes and turns into gradients in one chunk; 0: all logits of the "
            "microbatch on a GPU, 2^26 on a CPU",
            {0, 1e12});
    }
    // Returns logits_at_once, or the default of a device: 2^26 on a CPU, where larger chunks are not faster. A GPU reads and
    // writes the f32 gradient of the head once per chunk: 2^31, the limit of 32-bit offsets of a library.
    int64_t logits_on(DeviceKind device) const {
        if (logits_at_once > 0) return logits_at_once;
        return int64_t{1} << (device == DeviceKind::cuda ? 31 : 26);
    }
};

struct EvalConfig {
    int64_t every = 0;
    int64_t sequence_length = 0;                           // 0: the last stage's
    std::vector<std::pair<std::string, int64_t>> windows;  // size by name; the others: the last stage's
    void fields(FieldVisitor& v) {
        v.field("every", every, "steps between validations; 0: only after the last step", {0, 1e12});
        v.field("sequence_length", sequence_length, "tokens of a row of validation; 0: as in the last stage",
                {0, 1 << 20});
        v.section(
            "windows",
            "windows of validation, by their names in model.windows (presets: \"window\"); the others are the "
            "last stage's",
            [this](FieldVisitor& s) {
                read_own<int64_t>(s, windows, [&](const std::string& key, int64_t& keys) {
                    s.field(key.c_str(), keys, "largest number of keys per query, itself included; 0: all",
                            {0, 1e9});
                });
            });
    }
};

struct CheckpointConfig {
    int64_t every = 0;
    int64_t keep = 2;
    bool last = true;
    void fields(FieldVisitor& v) {
        v.field("every", every,
                "steps between checkpoints, written while training goes on; 0: none in between", {0, 1e12});
        v.field("keep", keep,
                "number of checkpoints to keep; older ones are deleted when a newer one is complete",
                {1, 1e6});
        v.field("last", last,
                "write a checkpoint after the last step; a run stopped by a signal always writes one");
    }
};

struct RecordConfig {
    std::string track;
    double target_loss = 0;
    void fields(FieldVisitor& v) {
        v.field("track", track, "name of the track in records/ that the run is an attempt at");
        v.field("target_loss", target_loss,
                "validation loss in nats per token that the run must reach; 0: none", {0, 100});
    }
};

struct CudaConfig : CudaLibraries {
    bool graph = true;
    bool dependent_launch = false;
    void fields(FieldVisitor& v) {
        v.choice(
            "products", products,
            "library: matmuls by cuBLASLt where it is installed; hand: by own kernels; wgmma: as library, but matmuls with an "
            "epilogue (ReLU²) by own kernels for compute capability 9.0 (H100, H200) where they are modelled to be faster, and "
            "Muon's matmuls in bf16");
        v.choice(
            "attention", attention,
            "hand: own kernels; wgmma: own kernels for compute capability 9.0 (H100, H200), for bf16, head sizes (q and k/v) 64/64, "
            "64/128, 96/96, 96/128 and 128/128, and undivided sequences; cudnn: head sizes 64 and 128, data.document_mask off");
        v.field("graph", graph, "launch the work of a step as recorded CUDA graphs");
        v.field(
            "dependent_launch", dependent_launch,
            "start a kernel while its predecessor ends (programmatic dependent launch); compute capability 9.0 and above; not yet "
            "run on a GPU");
    }
};

struct Config {
    ModelConfig model;
    DataConfig data;
    BatchConfig batch;
    MemoryConfig memory;
    OptimizersConfig optimizers;
    ScheduleConfig schedule;
    ParallelConfig parallel;
    EvalConfig eval;
    CheckpointConfig checkpoint;
    RecordConfig record;
    CudaConfig cuda;
    std::optional<DType> precision;
    std::optional<DeviceKind> device;
    int64_t threads = 0;
    int64_t seed = 1;

    // Returns the config of one stage, without schedule.stages.
    Config in_stage(int64_t stage) const;
    Config in_last_stage() const { return in_stage(schedule.num_stages() - 1); }
    // Returns the config of this stage, or of the last one. Throws a usage error for an unknown stage.
    Config in_chosen_stage(const std::optional<int64_t>& stage) const;
    // Returns the config of validation: the last stage, with the sequence length and the windows of section `eval`. A
    // microbatch has one row or more.
    Config in_validation() const;
    // Returns the longest sequence of all stages and of validation.
    int64_t longest_sequence() const;
    // Returns the number of tokens of all steps before this one.
    int64_t tokens_before(int64_t step) const;

    // Returns the number of microbatches of a rank in a step of a config of one stage.
    int64_t microbatches_per_step(int64_t num_data_ranks = 1) const {
        return batch.tokens_per_step / (batch.microbatch_tokens * num_data_ranks);
    }
    void fields(FieldVisitor& v);
    // Throws a usage error, with key and values, for combinations that cannot run.
    void validate() const;

  private:
    // Largest number of operations of a step: counts of bytes and operations fit 64 bits.
    static constexpr double kMaxWork = 4e18;
    static constexpr double kMaxTokens = 4e18;  // largest number of tokens of a run
    double rough_work() const;                  // floating-point operations of a step
    void validate_stage() const;                // for a config of one stage
    void validate_scheduled() const;            // one entry per stage in lists, at most kMaxTokens tokens
};

}  // namespace speedrun
