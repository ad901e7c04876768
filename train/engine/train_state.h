// TrainState: models of all stages with their parameters, gradients and optimizer state, and the communicators between ranks. Steps,
// validations and checkpoints work on it.
#pragma once

#include <memory>
#include <vector>

#include "train/engine/run_stages.h"
#include "train/engine/snapshot_log.h"
#include "train/model/transformer.h"
#include "train/sharding/bucket_schedule.h"

namespace speedrun {

inline const Ranks kAlone{};

struct TrainState {
    // Collective: all ranks construct theirs at the same time.
    TrainState(const Config& config, Runtime& runtime, const Ranks& ranks);

    // The model of the first stage. Models of all stages have the same parameters.
    Transformer& model() const { return *models.front(); }
    Transformer& validation_model() const { return *models[stages.validation.model]; }
    const ParameterTable& table() const { return model().table(); }
    const RunStage& stage_of(int64_t step) const {
        return stages.stages[static_cast<size_t>(config.schedule.stage_of(step))];
    }

    // Enqueues the parameters and the optimizer state of step 0.
    void initialize(uint64_t seed);
    // Sets all parameters to host values, by parameter, of whole parameters. Waits.
    void assign(const std::vector<std::vector<float>>& values);
    // After masters and optimizer state were written as they are after `trained_steps` steps: updates the compute copies.
    // Collective. Waits.
    void publish(int64_t trained_steps);
    // Copies the f32 values of a whole parameter (Parameter::whole_numel) to the host. Collective. Waits.
    void read_master(const Parameter& p, float* host);
    // Enqueues that each parameter which the stage of the last step does not use (Parameter::copy_of) gets the values of its
    // source. Required before reads of masters or state.
    void refresh_copies();
    // refresh_copies(), at the first step of a stage that uses a parameter which no earlier stage uses.
    void refresh_copies_before(int64_t step);

    // Communicators of nodes that exchange values, on the exchange stream.
    std::vector<const Communicator*> value_communicators() const;
    bool exchanges_values() const { return context || tensor; }
    // Bytes to other ranks, so far.
    int64_t bytes_sent() const;

    const Config config;
    Runtime& runtime;
    const Ranks ranks;
    const int64_t period;  // steps: the common period of all optimizer groups
    const RunStages stages;
    const std::vector<std::unique_ptr<Transformer>> models;  // index: shape
    const std::unique_ptr<Communicator> context;             // among the ranks that share rows, or null
    const std::unique_ptr<Communicator> tensor;              // among the ranks that share matrices, or null
    GradientStore gradients;
    Reducer reducer;
    BucketSchedule schedule;
    SnapshotLog snapshots;
    int64_t steps = -1;  // trained into the masters; -1: unknown, a caller has set them

  private:
    void check_copies() const;
    void copy_unused(const RunStage& stage);
};

}  // namespace speedrun
