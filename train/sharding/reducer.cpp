#include "train/sharding/reducer.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "kernels/device/device.h"
#include "kernels/device/error.h"

namespace speedrun {

GradientMemory gradient_memory(const Ranks& ranks, int64_t microbatches, bool every_step) {
    const Sharing& sharing = ranks.sharing();
    const bool in_backward = sharing.optimizer_step == OptimizerStep::in_backward;
    const bool used_up_at_once = in_backward && microbatches == 1 && every_step;
    GradientMemory memory;
    memory.accumulators = sharing.accumulate.value() == Accumulate::reduce_scatter &&
                          ranks.mesh().size({Axis::shard, Axis::context}) > 1 && !used_up_at_once;
    memory.ring = sharing.launch == Launch::ready && (memory.accumulators || used_up_at_once);
    return memory;
}

Reducer::Reducer(const Ranks& ranks, ParameterStore& parameters, GradientStore& gradients, Runtime& runtime)
    : ranks_(ranks),
      parameters_(parameters),
      gradients_(gradients),
      ops_(runtime.ops()),
      norm_axes_(speedrun::norm_axes(parameters.layout(), ranks)),
      collectives_(step_collectives(parameters.layout(), ranks, runtime.real())),
      rows_(parameters.layout().all().size()),
      rows_exchange_(collectives_, parameters.layout(), ranks, runtime),
      meter_(std::make_unique<ExposureMeter>(runtime.device())) {
    for (const CollectiveRow& row : collectives_)
        if (row.bucket >= 0) rows_[static_cast<size_t>(row.bucket)] = &row;
    if (ranks.sharing().reduce_dtype != DType::f32 && ranks.mesh().world_size() > 1) {
        int64_t largest = 0;
        for (const Bucket& bucket : parameters.layout().all())
            largest = std::max(largest,
                               bucket.most_rows > 0 ? bucket.shard_size : parameters.layout().padded(bucket));
        wire_ = Buffer(runtime.device(), "gradients to reduce", MemoryCategory::workspace,
                       largest * size_of(ranks.sharing().reduce_dtype));
    }
    if (ranks.size() == 1) return;
    // Ranks with different lists would deadlock or reduce mismatched tensors.
    std::vector<std::string> lines;
    for (const CollectiveRow& row : collectives_) lines.push_back(row.describe());
    lines.push_back(fmt::format("steps in {} order",
                                ranks.sharing().step_order == StepOrder::reverse ? "reverse" : "forward"));
    expect_same_on_all_ranks(*ranks.world(), "collectives of a step", lines);
    for (const CollectiveRow& row : collectives_)
        for (const StepCollective& collective : row.collectives) connect(collective);
}

Reducer::Lane Reducer::lane_of(const StepCollective& collective) {
    if (collective.kind == Collective::all_gather) return Lane::gather;
    return collective.kind == Collective::all_to_all && !collective.rows ? Lane::exchange : Lane::reduce;
}

int64_t Reducer::num_communicators() const {
    std::set<std::pair<Lane, std::string>> keys;
    for (const CollectiveRow& row : collectives_)
        for (const StepCollective& collective : row.collectives)
            keys.emplace(lane_of(collective), collective.axes.describe());
    return static_cast<int64_t>(keys.size());
}

void Reducer::connect(const StepCollective& collective) {
    constexpr std::array<const char*, 3> kNames{"reduce", "gather", "exchange"};
    const Lane lane = lane_of(collective);
    const std::string axes = collective.axes.describe();
    std::unique_ptr<Communicator>& communicator = communicators_[{lane, axes}];
    if (communicator) return;
    communicator = ranks_.world()->connect(fmt::format("{} over {}", kNames[static_cast<size_t>(lane)], axes),
                                           ranks_.mesh().group(ranks_.rank(), collective.axes));
    communicator->time_by(meter_.get(), lane == Lane::exchange ? ExposureMeter::Kind::exchange
                                                               : ExposureMeter::Kind::collective);
}

Communicator* Reducer::over(AxisSet axes, Lane lane) const {
    const auto found = communicators_.find({lane, axes.describe()});
    return found == communicators_.end() ? nullptr : found->second.get();
}

Communicator* Reducer::of(const Bucket& bucket, Collective kind) const {
    for (const StepCollective& collective : row_of(bucket).collectives)
        if (collective.kind == kind) return over(collective.axes, lane_of(collective));
    return nullptr;
}

void Reducer::sum(Communicator& group, const Tensor& values, Stream& stream) {
    if (!wire_.data()) return group.all_reduce(values, stream);
    const Tensor wire = wire_.tensor(ranks_.sharing().reduce_dtype, {values.numel()});
    ops_.cast({.out = wire, .in = values}, stream);
    group.all_reduce(wire, stream);
    ops_.cast({.out = values, .in = wire}, stream);
}

void Reducer::scatter_sum(Communicator& group, const Tensor& shard, const Tensor& whole, Stream& stream) {
    if (!wire_.data()) return group.reduce_scatter(shard, whole, stream);
    const Tensor wire = wire_.tensor(ranks_.sharing().reduce_dtype, {whole.numel()});
    const Tensor own = wire.reshaped({group.size(), shard.numel()}).row_slice(group.index(), 1);
    ops_.cast({.out = wire, .in = whole}, stream);
    group.reduce_scatter(own.reshaped({shard.numel()}), wire, stream);
    ops_.cast({.out = shard, .in = own.reshaped({shard.numel()})}, stream);
}

void Reducer::sum_rows(Communicator& group, const Bucket& bucket, const Tensor& into, const Tensor& part,
                       Stream& stream) {
    rows_exchange_.sum(group, bucket, gradients_.whole(bucket), stream);
    if (wire_.data()) {
        const Tensor wire = wire_.tensor(ranks_.sharing().reduce_dtype, {part.numel()});
        ops_.cast({.out = wire, .in = part}, stream);
        ops_.cast({.out = into, .in = wire}, stream);
    } else if (into.data != part.data) {
        ops_.cast({.out = into, .in = part}, stream);
    }
}

void Reducer::scatter(Communicator& group, const StepCollective& collective, const Bucket& bucket, bool first,
                      Stream& stream) {
    const Tensor whole = gradients_.whole(bucket), raw = gradients_.padded_shard(bucket);
    const Tensor shard = gradients_.accumulated_shard(bucket);
    const bool adds = gradients_.memory().accumulators && !first;
    if (collective.rows) {
        sum_rows(group, bucket, adds ? raw : shard, raw, stream);
    } else {
        scatter_sum(group, adds ? raw : shard, whole, stream);
    }
    if (!adds) return;
    const int64_t rows = std::gcd(shard.numel(), int64_t{64});  // rows for parallel threads
    const auto matrix = [&](const Tensor& t) { return t.reshaped({rows, t.numel() / rows}); };
    ops_.add({.y = matrix(shard), .x = matrix(shard), .z = matrix(raw)}, stream);
}

void Reducer::reduce(const Bucket& bucket, bool first, bool last, Stream& stream) {
    for (const StepCollective& collective : row_of(bucket).collectives) {
        if (lane_of(collective) != Lane::reduce) continue;
        if (collective.when == When::last_microbatch && !last) continue;
        Communicator* const group = over(collective.axes, Lane::reduce);
        if (!group) continue;
        const Tensor whole = gradients_.whole(bucket);
        if (collective.kind == Collective::reduce_scatter || (collective.rows && bucket.num_shards > 1)) {
            scatter(*group, collective, bucket, first, stream);
        } else if (collective.rows) {
            sum_rows(*group, bucket, whole, whole, stream);
        } else {
            sum(*group, summed_by(collective, bucket), stream);
        }
    }
}

Tensor Reducer::summed_by(const StepCollective& all_reduce, const Bucket& bucket) const {
    const int64_t elements = all_reduce.payload_bytes / size_of(all_reduce.dtype);
    if (elements == parameters_.layout().padded(bucket)) return gradients_.whole(bucket);
    if (elements != bucket.shard_size)
        throw_internal("{}: an all_reduce of {} elements, of {} in {} shards", bucket.name(), elements,
                       parameters_.layout().padded(bucket), bucket.num_shards);
    return gradients_.accumulated_shard(bucket);
}

void Reducer::reduce_over_all(const Tensor& values, Reduction reduction, Stream& stream) {
    if (Communicator* const all = over(ranks_.mesh().larger_than_one(loss_axes()), Lane::reduce))
        all->all_reduce(values, stream, reduction);
}

void Reducer::reduce_over_shards(const Tensor& values, Reduction reduction, Stream& stream) {
    if (Communicator* const shards = over(norm_axes_, Lane::reduce))
        shards->all_reduce(values, stream, reduction);
}

void Reducer::gather(const Bucket& bucket, Stream& stream) {
    if (Communicator* const shards = of(bucket, Collective::all_gather))
        shards->all_gather(parameters_.compute_whole(bucket), parameters_.compute_padded_shard(bucket),
                           stream);
}

void Reducer::gather_master(const Bucket& bucket, const Tensor& whole, Stream& stream) {
    Communicator* const shards = of(bucket, Collective::all_gather);
    if (!shards) throw_internal("{}: its master is not sharded", bucket.name());
    shards->all_gather(whole, parameters_.master_padded_shard(bucket), stream);
}

void Reducer::exchange(const Bucket& bucket, const Tensor& output, const Tensor& input,
                       const Exchange& slices, Stream& stream) {
    if (Communicator* const shards = of(bucket, Collective::all_to_all))
        shards->all_to_all(output, input, slices, stream);
}

int64_t Reducer::bytes_sent() const {
    int64_t sum = 0;
    for (const CollectiveCount& count : counts()) sum += count.bytes_sent;
    return sum;
}

CollectiveCounts Reducer::counts() const {
    CollectiveCounts sum{};
    for (const auto& [key, communicator] : communicators_) sum = sum + communicator->counts();
    return sum;
}

void Reducer::count(Counts& into, Runtime& runtime) const {
    const auto count = [&](Count& to, Lane lane, Stream& stream) {
        std::vector<const Communicator*> all;
        for (const auto& [key, communicator] : communicators_)
            if (key.first == lane) all.push_back(communicator.get());
        if (all.empty()) return;
        Communicator::count_at(to.counts, std::move(all), stream);
        stream.record(*to.done);
    };
    count(into.reduce, Lane::reduce, runtime.reduce());
    count(into.gather, Lane::gather, runtime.gather());
    count(into.exchange, Lane::exchange, runtime.optimizer());
}

}  // namespace speedrun
