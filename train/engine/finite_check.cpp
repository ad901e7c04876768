#include "train/engine/finite_check.h"

#include <numeric>

namespace speedrun {

namespace {

// Returns the number of non-finite values in this rank's shards of all masters. Waits.
double count_nonfinite_masters(const ParameterStore& parameters, Runtime& runtime) {
    runtime.synchronize();
    Stream& stream = runtime.gather();
    const BucketLayout& layout = parameters.layout();
    const Buffer memory(runtime.device(), "counts of non-finite values", MemoryCategory::workspace,
                        layout.size() * size_of(DType::f32));
    for (const Bucket& bucket : layout.all()) {
        const Tensor masters = parameters.master_shard(bucket);
        if (masters.numel() == 0) continue;
        const Tensor count = memory.tensor(DType::f32, {1}, bucket.id * size_of(DType::f32));
        runtime.ops().count_nonfinite({.out = count, .x = masters}, stream);
    }
    std::vector<float> counts(layout.all().size());
    runtime.device().copy(counts.data(), memory.data(), memory.bytes(), stream);
    stream.synchronize();
    return std::accumulate(counts.begin(), counts.end(), 0.0);
}

// Returns the number of non-finite values in p's compute copy, which must be whole on this rank, after the work of the
// gather stream. Waits.
double count_nonfinite(const Parameter& p, const ParameterStore& parameters, Runtime& runtime) {
    Stream& stream = runtime.gather();
    float count = 0;
    const Buffer memory(runtime.device(), "counts of non-finite values", MemoryCategory::workspace,
                        size_of(DType::f32));
    const Tensor out = memory.tensor(DType::f32, {1});
    runtime.ops().count_nonfinite({.out = out, .x = parameters.compute_flat(p)}, stream);
    runtime.device().copy(&count, out.data, out.bytes(), stream);
    stream.synchronize();
    return count;
}

}  // namespace

// Counts non-finite masters first, in one pass without other ranks' shards: usually there are none.
std::string first_bad_parameter(TrainState& state) {
    double bad = count_nonfinite_masters(state.model().parameters(), state.runtime);
    if (state.ranks.world()) bad = state.ranks.world()->max(bad);
    if (bad == 0) return "";
    const std::vector<Parameter>& all = state.table().all();
    double first = static_cast<double>(all.size()), count = 0;
    for (const Parameter& p : all) {
        state.schedule.gather(state.gradients.layout().bucket_of(p));
        const double here = count_nonfinite(p, state.model().parameters(), state.runtime);
        if (here > 0 && p.id < first) first = p.id, count = here;
    }
    // Tensor ranks count only their own parts.
    const double own = first;
    if (state.ranks.world()) first = state.ranks.world()->min(first);
    if (state.ranks.world()) count = state.ranks.world()->max(own == first ? count : 0);
    const auto id = static_cast<size_t>(first);
    if (id >= all.size()) return "a parameter that has no name";
    return fmt::format("{} ({:.0f} of {} values are not finite)", all[id].name, count, all[id].numel());
}

void expect_finite_parameters(TrainState& state, int64_t steps) {
    const std::string bad = first_bad_parameter(state);
    if (bad.empty()) return;
    throw Error(
        ExitCode::diverged,
        fmt::format(
            "diverged in step {}: first bad parameter: {}. Lower the learning rate of its group or set "
            "optimizers.clip.",
            steps - 1, bad));
}

}  // namespace speedrun
