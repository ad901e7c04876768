// The engine on ranks that are threads: a small model whose sizes divide nothing, trained for ten steps
// (with sanitizers, four) on rows with uneven documents, in every way of sharing the work.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_device.h"
#include "tests/sanitized.h"
#include "train/config/config.h"
#include "train/engine/step_runner.h"
#include "train/sharding/ranks.h"

namespace speedrun::testing {

constexpr int64_t kSequence = 16, kSteps = kSanitized ? 4 : 10;

struct Mode {
    Strategy strategy;
    int replicate, shard;
    int64_t accumulation;
    OptimizerKind optimizer;  // of the matrices
    Launch launch;
    DType precision = DType::f32;
    double clip = 0;
    std::optional<Accumulate> accumulate = {};
    std::optional<Reshard> reshard = {};
    OptimizerStep optimizer_step = OptimizerStep::after_backward;
    DType reduce_dtype = DType::f32;
    int64_t every = 1;  // of the group beside the matrices
    VectorNorm clip_norm = VectorNorm::two;
    // "gpt2" | "modern" | "recipe": modern with mixes and value embeddings | "parts": what no preset has
    // | "fp8": these with products of 8-bit numbers | "scales": … by scales that steps leave for the next
    // | "composed": "parts" with mixes of heads' maps
    // | "injected": bigrams with signs, injected at the input and behind sublayers
    // | "networks": numbers of each token that networks compute | "places": these, and values from other places
    // | "newest": all of these at once | "offset": … that ranks which share rows have, with keys of the token before
    const char* family = "recipe";
    Checkpointing checkpointing = Checkpointing::none;
    StepOrder step_order = StepOrder::reverse;
    bool stages = false;  // three, of other windows, rates and momentum
    int64_t rows = 24;    // of a step: a multiple of data ranks x accumulation
    bool masked = true;   // one target in eight does not count; never with graphs
    bool graphs = false;  // but for one step in five, which is by calls
    int context = 1;      // ranks that share rows
    int tensor = 1;       // … and matrices
    bool sequence = false;
    int64_t heads = 3;
    int64_t heads_per_matrix = 0;  // of muon, with second moments
    bool exchange_rows = false;    // of tables of models in parts
    int64_t bucket_bytes = 0;

    int data_ranks() const { return replicate * shard; }
    int ranks() const { return data_ranks() * context * tensor; }
};

void PrintTo(const Mode& mode, std::ostream* out);
std::string name_of(const Mode& mode);  // as PrintTo says: letters, digits and _
Sharing sharing_of(const Mode& mode);
Mesh mesh_of(const Mode& mode);
Config config_of(const Mode& mode);

// A rank's microbatches, from the first step on. All that is passed in must outlive it.
std::unique_ptr<BatchSource> batches_of(const Mode& mode, const Ranks& ranks);
// Batch::first_key of all rows of a step.
std::vector<int32_t> first_keys_of_step(const Mode& mode, int64_t step);

// What the engine of this mode has, without ranks that talk.
struct Layout {
    Ranks ranks;
    ParameterTable table;
    BucketLayout buckets;

    explicit Layout(const Mode& mode);
};

struct Curve {
    std::vector<double> losses, norms;
    std::vector<std::string> names;                  // of the parameters
    std::vector<std::vector<float>> start, masters;  // by parameter: before the steps, and after
    std::vector<float> scales;                       // that the last step left
    int64_t bytes_sent = 0;
    std::map<std::string, int64_t> memory;  // by category
};

struct Delays {
    double jitter_s = 0;
    uint64_t seed = 0;
};

// Given the engine before its first step, when nothing is in flight.
using Watch = std::function<void(StepRunner&, Runtime&)>;

// One rank's run; a world of the mode's ranks, or none for one rank alone. clock: of its device; null: the
// machine's.
Curve train(const Mode& mode, World* world, const Watch& watch = {}, CpuClock* clock = nullptr);
// Given the engine after its first step, from the start of every run.
void train_one_step(const Mode& mode, World* world, const Watch& watch);
// Curve of rank 0, after checking that all ranks agree in every bit; bytes_sent becomes the sum of all ranks.
Curve train_ranks(const Mode& mode, const Delays& delays = {});
// Curve of the same training with one rank and one microbatch, in the classic order.
const Curve& one_rank(const Mode& mode);

// Euclidean distance over Euclidean movement since the start, of each parameter: AdamW may turn around single
// elements whose gradient is next to nothing.
std::vector<double> master_deviations(const Curve& actual, const Curve& expected);

// What a mode chooses, as numbers from 0 to 15: strategy, replicate, shard, accumulation, muon, launch,
// step_order, optimizer_step, accumulate, reshard, every, family (recipe, modern, gpt2), clip, graphs.
constexpr size_t kNumChoices = 14;
using Choices = std::array<int, kNumChoices>;
Choices choices_of(const Mode& mode);
// Few modes in which every two choices meet that a legal config can have together; f32, always the same ones.
// all: the whole product of these choices instead, as far as it is legal.
std::vector<Mode> combined_modes(bool all);
// The newest recipe among data ranks, and where ranks of the tensor axis compute some attention whole, beside some that they
// share.
std::vector<Mode> modes_of_whole_attention(Strategy strategy);
// Keys of the token before, which another rank may have; of rows cut into chunks of 4 to 1 tokens.
std::vector<Mode> modes_of_offset_keys(Strategy strategy);

}  // namespace speedrun::testing
