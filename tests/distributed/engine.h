// The engine on ranks that are threads. A small model with sizes that nothing divides trains for ten steps (with sanitizers, four)
// on rows with uneven documents.
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

// A config of the test: parallelism, and the model.
struct Mode {
    Strategy strategy = Strategy::ddp;
    int replicate = 1, shard = 1;
    int64_t accumulation = 1;
    OptimizerKind optimizer = OptimizerKind::adamw;  // for matrices
    Launch launch = Launch::ready;
    DType precision = DType::f32;
    double clip = 0;
    std::optional<Accumulate> accumulate = {};
    std::optional<Reshard> reshard = {};
    OptimizerStep optimizer_step = OptimizerStep::after_backward;
    DType reduce_dtype = DType::f32;
    int64_t every = 1;  // for other parameters
    VectorNorm clip_norm = VectorNorm::two;
    std::string family =
        "recipe";  // "gpt2", "modern", "recipe" (modern with mixes and value embeddings), or of engine_models.h
    Checkpointing checkpointing = Checkpointing::none;
    StepOrder step_order = StepOrder::reverse;
    bool stages = false;  // three, with different windows, learning rates and momentum
    int64_t rows = 24;    // per step: a multiple of data ranks x accumulation
    bool masked = true;   // one target in eight does not count; never with graphs
    bool graphs = false;  // in four steps of five
    int context = 1;      // context parallel ranks
    int tensor = 1;       // tensor parallel ranks
    bool sequence = false;
    int64_t heads = 3;
    int64_t heads_per_matrix = 0;  // Muon's, with second moments
    bool exchange_rows = false;    // table gradients
    int64_t bucket_bytes = 0;

    int data_ranks() const { return replicate * shard; }
    int ranks() const { return data_ranks() * context * tensor; }
};

// Reads a mode: "zero1 2x4 /3 muon in_backward tensor=2 heads=4 model=parts" has 2 replicas of 4 shards, 3 microbatches, Muon for
// the matrices. Words are values or keys of a config; absent ones have the defaults above.
Mode mode_of(const std::string& words);
// Product of strategies and modes.
std::vector<Mode> modes_of(const std::vector<std::string>& strategies, const std::vector<std::string>& words);
inline const std::vector<std::string> kStrategies = {"ddp", "zero1", "zero2", "zero3"};

void PrintTo(const Mode& mode, std::ostream* out);
std::string name_of(const Mode& mode);  // the text of PrintTo: letters, digits and _
Sharing sharing_of(const Mode& mode);
Mesh mesh_of(const Mode& mode);
Config config_of(const Mode& mode);

// Microbatches of a rank, from the first step on. The arguments must outlive it.
std::unique_ptr<BatchSource> batches_of(const Mode& mode, const Ranks& ranks);
// Batch::first_key of all rows of a step.
std::vector<int32_t> first_keys_of_step(const Mode& mode, int64_t step);

// The engine's parameters and buckets, without communication.
struct Layout {
    Ranks ranks;
    ParameterTable table;
    BucketLayout buckets;

    explicit Layout(const Mode& mode);
};

struct Curve {
    std::vector<double> losses, norms;
    std::vector<std::string> names;                  // parameter names
    std::vector<std::vector<float>> start, masters;  // one entry per parameter: before the steps, and after
    std::vector<float> scales;                       // after the last step
    int64_t bytes_sent = 0;
    std::map<std::string, int64_t> memory;  // bytes per category
};

struct Delays {
    double jitter_s = 0;
    uint64_t seed = 0;
};

// Inspects the engine before its first step, without work in flight.
using Watch = std::function<void(StepRunner&, Runtime&)>;

// Trains one rank. world: null for a single rank. clock: the device's; null for the machine's.
Curve train(const Mode& mode, World* world, const Watch& watch = {}, CpuClock* clock = nullptr);
// Calls watch after the first step.
void train_one_step(const Mode& mode, World* world, const Watch& watch);
// Returns the curve of rank 0, with bytes_sent summed over ranks. Checks that all ranks agree bitwise.
Curve train_ranks(const Mode& mode, const Delays& delays = {});
// Returns the curve of the same training with one rank and one microbatch.
const Curve& one_rank(const Mode& mode);

// Returns for each parameter the Euclidean distance over the Euclidean movement since the start. AdamW may reverse single elements
// with a negligible gradient.
std::vector<double> master_deviations(const Curve& actual, const Curve& expected);

// Choices of a mode, as numbers from 0 to 15: strategy, replicate, shard, accumulation, muon, launch,
// step_order, optimizer_step, accumulate, reshard, every, family (recipe, modern, gpt2), clip, graphs.
constexpr size_t kNumChoices = 14;
using Choices = std::array<int, kNumChoices>;
Choices choices_of(const Mode& mode);
// Returns a few f32 modes that contain every pair of choices that a legal config permits; deterministic.
// all: returns every legal combination of these choices instead.
std::vector<Mode> combined_modes(bool all);

}  // namespace speedrun::testing
