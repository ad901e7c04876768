// The configuration of a run: one struct per section, with the defaults that the JSON file may override.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/config/choices.h"
#include "train/config/model_parts.h"
#include "train/fields/field_visitor.h"
#include "train/optim/optimizers.h"

namespace speedrun {

struct ModelConfig {
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

struct DataConfig {
    std::vector<std::string> train, val;
    std::string vocabulary;
    int64_t val_tokens = 0;
    bool shuffle = true;
    RowKind rows = RowKind::stream;
    Scheduled<int64_t> max_document_tokens = 0;  // 0: batch.sequence_length
    bool document_mask = true;
    bool allow_overlap = false;
    void fields(FieldVisitor& v);
};

struct BatchConfig {
    Scheduled<int64_t> sequence_length = 512;
    Scheduled<int64_t> microbatch_tokens = 8192;
    Scheduled<int64_t> tokens_per_step = 8192;
    void fields(FieldVisitor& v);
};

struct MemoryConfig {
    Checkpointing activation_checkpointing = Checkpointing::none;
    int64_t logits_at_once = 0;  // 0: as suits the device, see logits_on()
    void fields(FieldVisitor& v);
    // logits_at_once, chosen for a device of this kind where it is 0. A CPU's memory is the model's and the
    // program's: 2^26, of which more gain nothing. A GPU reads and writes the head's f32 gradient once per
    // chunk, which costs more than the logits' memory: the batch, as far as 32-bit offsets of a library
    // reach.
    int64_t logits_on(DeviceKind device) const;
};

struct ScheduleConfig {
    int64_t steps = 1000;     // over which the learning rate goes its way
    int64_t final_steps = 0;  // behind them, at its end
    int64_t warmup_steps = 0;
    Decay decay = Decay::linear;
    double cooldown_fraction = 0.5;
    double final_lr_fraction = 0.1;
    std::vector<int64_t> stages;  // the steps after which each ends; none: the run is one stage
    Scheduled<double> lr_factor = 1;
    void fields(FieldVisitor& v);
    // Throws a usage error, with key and values, for stages that do not follow each other to the last step, and for
    // final steps behind no cooldown.
    void validate() const;

    int64_t total_steps() const { return steps + final_steps; }  // of the run
    int64_t num_stages() const { return stages.empty() ? 1 : static_cast<int64_t>(stages.size()); }
    int64_t first_step(int64_t stage) const {
        return stage == 0 ? 0 : stages[static_cast<size_t>(stage) - 1];
    }
    int64_t end_step(int64_t stage) const {
        return stages.empty() ? total_steps() : stages[static_cast<size_t>(stage)];
    }
    int64_t stage_of(int64_t step) const;  // steps behind the last are of the last stage
    StagePoint point_of(int64_t step) const;

  private:
    void check_final_steps() const;
};

// How ranks share a step, beside the mesh: the part of section `parallel` that the schedule follows from.
struct SharingConfig {
    Strategy strategy = Strategy::ddp;
    Launch launch = Launch::ready;
    std::optional<Accumulate> accumulate;
    DType reduce_dtype = DType::f32;
    OptimizerStep optimizer_step = OptimizerStep::after_backward;
    std::optional<Reshard> reshard_after_forward;
    int64_t bucket_bytes = 0;  // of gradients that are reduced as one; 0: from the number of ranks
    StepOrder step_order = StepOrder::reverse;
};

struct ParallelConfig : SharingConfig {
    int64_t replicate = 1;
    std::string shard = "auto";
    int64_t context = 1;
    int64_t tensor = 1;
    bool sequence = false;
    std::optional<CommunicatorKind> communicator;
    int64_t nccl_max_ctas = 0;
    double timeout_s = 60, start_timeout_s = 600;
    double simulate_latency_us = 0, simulate_gbytes_per_s = 0, simulate_jitter_us = 0;

    bool simulates() const {
        return simulate_latency_us > 0 || simulate_gbytes_per_s > 0 || simulate_jitter_us > 0;
    }
    void fields(FieldVisitor& v);
};

struct EvalConfig {
    int64_t every = 0;
    int64_t sequence_length = 0;                           // 0: the last stage's
    std::vector<std::pair<std::string, int64_t>> windows;  // of model.windows; the others: the last stage's
    void fields(FieldVisitor& v);
};

struct CheckpointConfig {
    int64_t every = 0;
    int64_t keep = 2;
    bool last = true;
    void fields(FieldVisitor& v);
};

struct RecordConfig {
    std::string track;
    double target_loss = 0;
    void fields(FieldVisitor& v);
};

struct CudaConfig : CudaLibraries {
    bool graph = true;
    bool dependent_launch = false;
    void fields(FieldVisitor& v);
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

    // The config of one stage of the schedule, which has no others.
    Config in_stage(int64_t stage) const;
    Config in_last_stage() const { return in_stage(schedule.num_stages() - 1); }
    // The one that a person asked for; by default the last. Throws a usage error for one that is not there.
    Config in_chosen_stage(const std::optional<int64_t>& stage) const;
    // The config of validation: the last stage, with the length of rows and the windows of section `eval`. Rows are
    // as many as fit a microbatch, one at least.
    Config in_validation() const;
    // The longest row that any stage, or validation, has.
    int64_t longest_sequence() const;
    // Of the steps before this one.
    int64_t tokens_before(int64_t step) const;

    // Of one stage: microbatches of each rank, where this many work on different tokens.
    int64_t microbatches_per_step(int64_t num_data_ranks = 1) const {
        return batch.tokens_per_step / (batch.microbatch_tokens * num_data_ranks);
    }
    void fields(FieldVisitor& v);
    // Throws a usage error, with key and values, for combinations that cannot run.
    void validate() const;

  private:
    // Below this, counts of bytes and operations of a step fit 64 bits; it is a day of 46 TFLOP/s.
    static constexpr double kMostWork = 4e18;
    static constexpr double kMostTokens = 4e18;  // of a run
    double rough_work() const;                   // floating-point operations of a step
    void validate_stage() const;                 // of a config of one stage
    void validate_scheduled() const;             // lists have one entry for each stage, tokens can be counted
};

}  // namespace speedrun
