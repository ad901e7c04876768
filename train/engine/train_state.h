// TrainState: models of all stages, parameters, gradients, optimizer state, and communicators between ranks. Steps,
// validations and checkpoints operate on it.
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
    // Collective: all ranks construct their states together.
    TrainState(const Config& config, Runtime& runtime, const Ranks& ranks);

    // Model of the first stage. Models of all stages share the parameters.
    Transformer& model() const { return *models.front(); }
    Transformer& validation_model() const { return *models[stages.validation.model]; }
    const ParameterTable& table() const { return model().table(); }
    const RunStage& stage_of(int64_t step) const {
        return stages.stages[static_cast<size_t>(config.schedule.stage_of(step))];
    }

    // Enqueues the initialization of parameters and optimizer state.
    void initialize(uint64_t seed);
    // Sets all parameters to host values of whole parameters; index: parameter. Waits.
    void assign(const std::vector<std::vector<float>>& values);
    // Call after masters and optimizer state were set to their values after `trained_steps` steps. Updates the compute copies.
    // Collective. Waits.
    void finish_load(int64_t trained_steps);
    // Copies the f32 values of a whole parameter (Parameter::whole_numel) to the host. Collective. Waits.
    void read_master(const Parameter& p, float* host);
    // Enqueues copies of the source values into parameters that the last step's stage does not use
    // (Parameter::copy_of). Required before reads of masters or state.
    void refresh_copies();
    // Calls refresh_copies() at the first step of a stage that uses parameters unused by all earlier stages.
    void refresh_copies_before(int64_t step);

    // Communicators of nodes that exchange values; they use the exchange stream.
    std::vector<const Communicator*> value_communicators() const;
    bool exchanges_values() const { return context || tensor; }
    // Total bytes sent to other ranks.
    int64_t bytes_sent() const;

    const Config config;
    Runtime& runtime;
    const Ranks ranks;
    const int64_t period;  // common period of all optimizer groups, steps
    const RunStages stages;
    const std::vector<std::unique_ptr<Transformer>> models;  // index: shape
    const std::unique_ptr<Communicator> context;             // ranks that share rows; null if there is one
    // ranks that share matrices; null if there is one
    const std::unique_ptr<Communicator> tensor;
    GradientStore gradients;
    Reducer reducer;
    BucketSchedule schedule;
    SnapshotLog snapshots;
    int64_t steps = -1;  // steps contained in the masters; -1: unknown, set by a caller

  private:
    void check_copies() const;
    void copy_unused(const RunStage& stage);
};

}  // namespace speedrun
