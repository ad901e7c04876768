#include "train/engine/train_state.h"

#include "train/model/build_model.h"
#include "train/sharding/read_master.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun {

namespace {

// Returns the communicator over an axis; null if the axis has size 1 or no other rank runs.
std::unique_ptr<Communicator> connect_values(const Ranks& ranks, Axis axis) {
    if (ranks.size() == 1 || ranks.mesh().size(axis) == 1) return nullptr;
    return ranks.world()->connect(fmt::format("values over {}", name_of(axis)),
                                  ranks.mesh().group(ranks.rank(), {axis}));
}

BucketRules rules_of(const Config& config, const Ranks& ranks, DType compute_dtype) {
    config.optimizers.check_precision(compute_dtype);  // resolves precision=auto
    return bucket_rules(ranks, parameters_of(config.model, config.longest_sequence(), ranks.tensor()),
                        config.optimizers, rank_tokens(config, ranks));
}

}  // namespace

TrainState::TrainState(const Config& c, Runtime& r, const Ranks& all)
    : config(c),
      runtime(r),
      ranks(all),
      period(common_period(config.optimizers)),
      stages(run_stages(config, ranks)),
      models(Transformer::make(stages.shapes, runtime,
                               {.rules = rules_of(config, ranks, runtime.compute_dtype()),
                                .documents = config.data.document_mask,
                                .memory = config.memory})),
      context(connect_values(ranks, Axis::context)),
      tensor(connect_values(ranks, Axis::tensor)),
      gradients(table(), model().parameters().layout(), runtime,
                gradient_memory(ranks, stages.max_microbatches(), period == 1)),
      reducer(ranks, model().parameters(), gradients, runtime),
      schedule(config.optimizers, table(), ranks, {model().parameters(), gradients, reducer, runtime}),
      snapshots(runtime) {
    check_copies();
    for (Communicator* values : {context.get(), tensor.get()})
        if (values) values->time_by(&reducer.meter(), ExposureMeter::Kind::collective);
    for (const auto& model : models) {
        model->track(&schedule);
        model->connect({.context = context.get(), .tensor = tensor.get(), .meter = &reducer.meter()});
        model->scale_by(&schedule.state().scales());
    }
}

void TrainState::initialize(uint64_t seed) {
    model().parameters().initialize(seed);
    schedule.state().reset();
    schedule.gather_all();
    steps = 0;
    refresh_copies();
}

void TrainState::assign(const std::vector<std::vector<float>>& values) {
    model().parameters().assign(values);
    schedule.gather_all();
}

void TrainState::finish_load(int64_t trained_steps) {
    steps = trained_steps;
    model().parameters().cast_shards_to_compute();
    schedule.gather_all();
}

void TrainState::read_master(const Parameter& p, float* host) {
    if (p.copy_of >= 0) {
        refresh_copies();
        runtime.synchronize();
    }
    speedrun::read_master(table()[p.id], model().parameters(), {.reducer = reducer, .tensor = tensor.get()},
                          runtime, host);
}

std::vector<const Communicator*> TrainState::value_communicators() const {
    std::vector<const Communicator*> all;
    for (const Communicator* values : {context.get(), tensor.get()})
        if (values) all.push_back(values);
    return all;
}

int64_t TrainState::bytes_sent() const {
    int64_t bytes = reducer.bytes_sent();
    for (const Communicator* values : value_communicators())
        for (const CollectiveCount& count : values->counts()) bytes += count.bytes_sent;
    return bytes;
}

}  // namespace speedrun
