// The engine on ranks that are threads: a small model whose sizes divide nothing, trained for ten steps on
// rows with uneven documents, in every way of sharing the work.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "train/config/config.h"
#include "train/sharding/ranks.h"
#include "train/step_runner.h"

namespace speedrun::testing {

constexpr int64_t kSequence = 16, kRows = 24, kSteps = 10;

struct Mode {
    Strategy strategy;
    int replicate, shard;
    int64_t accumulation;
    const char* optimizer;  // of the matrices
    Launch launch;
    const char* precision = "f32";
    double clip = 0;
    std::optional<Accumulate> accumulate = {};
    std::optional<Reshard> reshard = {};
    OptimizerStep optimizer_step = OptimizerStep::after_backward;
    DType reduce_dtype = DType::f32;
    int64_t every = 1;  // of the group beside the matrices
    const char* clip_norm = "2";
    const char* family = "recipe";  // "gpt2" | "modern" | "recipe": modern with mixes and value embeddings
    const char* checkpointing = "none";

    int ranks() const { return replicate * shard; }
};

void PrintTo(const Mode& mode, std::ostream* out);
ParallelPlan plan_of(const Mode& mode);
Config config_of(const Mode& mode);

// What the engine of this mode has, without ranks that talk.
struct Layout {
    Ranks ranks;
    ParameterTable table;
    BucketLayout buckets;

    explicit Layout(const Mode& mode);
};

struct Curve {
    std::vector<double> losses, norms;
    std::vector<std::vector<float>> masters;  // by parameter
    int64_t bytes_sent = 0;
    std::map<std::string, int64_t> memory;  // by category
};

struct Delays {
    double jitter_s = 0;
    uint64_t seed = 0;
};

// Given the engine before its first step, when nothing is in flight.
using Watch = std::function<void(StepRunner&, Runtime&)>;

// One rank's run; a world of the mode's ranks, or none for one rank alone.
Curve train(const Mode& mode, World* world, const Watch& watch = {});
// Curve of rank 0, after checking that all ranks agree in every bit; bytes_sent becomes the sum of all ranks.
Curve train_ranks(const Mode& mode, const Delays& delays = {});
// Curve of the same training with one rank and one microbatch, in the classic order.
const Curve& one_rank(const Mode& mode);

}  // namespace speedrun::testing
