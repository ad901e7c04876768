// The engine on ranks that are threads. A small model with sizes that nothing divides trains for ten steps (with sanitizers, four)
// on rows with uneven documents.
#pragma once

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

// A training of these tests: a config, and settings that no config has.
struct Mode {
    std::string words;  // mode_of()
    Config config;
    bool masked = true;   // one target in eight does not count; never with graphs
    bool graphs = false;  // in four steps of five

    Mesh mesh() const;
    int num_ranks() const { return mesh().world_size(); }
    int data_ranks() const { return mesh().size({Axis::replicate, Axis::shard}); }
    int64_t accumulation() const { return config.microbatches_per_step(data_ranks()); }
    int64_t rows() const { return config.batch.tokens_per_step / kSequence; }  // per step
    // Ranks of the config. null: ranks that do not run.
    Ranks ranks(World* world = nullptr) const;
    bool has(const std::string& word) const;
};

// Reads a mode: "zero1 2x4 /3 muon in_backward tensor=2 heads=4 model=parts" has 2 replicas of 4 shards, 3 microbatches, Muon for
// the matrices. A word is a setting of the config, or several (engine.cpp has the table); model: "recipe" (modern with mixes and
// value embeddings, the default) or one of engine_models.h.
Mode mode_of(const std::string& words);
// Product of strategies and words.
std::vector<Mode> modes_of(const std::vector<std::string>& strategies, const std::vector<std::string>& words);
inline const std::vector<std::string> kStrategies = {"ddp", "zero1", "zero2", "zero3"};

void PrintTo(const Mode& mode, std::ostream* out);
// The ranks exchange the gradients of tables by row.
void exchange_rows(Mode& mode);
// Words as letters, digits and _, in an order that does not depend on theirs.
std::string name_of(const std::string& words);

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
    std::vector<StepResult> steps;
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
// Returns the curve of rank 0, with bytes_sent summed over ranks. Checks that all ranks agree bitwise.
Curve train_ranks(const Mode& mode, const Delays& delays = {});
// Returns the curve of the same training with one rank and one microbatch.
const Curve& one_rank(const Mode& mode);

// Returns for each parameter the Euclidean distance over the Euclidean movement since the start. AdamW may reverse single elements
// with a negligible gradient.
std::vector<double> master_deviations(const Curve& actual, const Curve& expected);

// Words of the choices of a mode, by choice and value; joined, they are the words of a mode.
extern const std::vector<std::vector<std::string>> kChoices;
using Choices = std::vector<size_t>;  // index: choice; values from 0 to 15
std::string words_of(const Choices& choices);
// The choices that a mode's config has.
Choices choices_of(const Mode& mode);
// True if no config has choice `a` with value `of_a` together with choice b > a with value `of_b`.
bool refused(size_t a, size_t of_a, size_t b, size_t of_b);
bool last_is_refused(const Choices& choices);  // together with one before it
// Visits the values of the first choice, and for each of them the values of the next choices. If `visit` returns false, the
// following choices are left out.
using Visit = std::function<bool(const Choices&)>;
void each_combination(const Visit& visit);
// Returns a few f32 modes that contain every pair of choices that is not refused; deterministic.
// all: returns every combination of these choices instead.
std::vector<Choices> combined_modes(bool all);

}  // namespace speedrun::testing
