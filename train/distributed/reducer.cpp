#include "train/distributed/reducer.h"

#include "kernels/device/device.h"

namespace speedrun {

RegionRules region_rules(const Ranks& ranks) {
    RegionRules rules;
    if (ranks.plan.strategy == Strategy::ddp) return rules;
    rules.parts = ranks.mesh.size(Axis::shard);
    rules.index = ranks.mesh.coordinates(ranks.rank())[static_cast<size_t>(Axis::shard)];
    return rules;
}

Reducer::Reducer(const Ranks& ranks, ParameterStore& parameters, GradientStore& gradients)
    : ranks_(ranks), parameters_(parameters), gradients_(gradients) {
    if (!ranks.world || alone()) return;
    const auto connect = [&](const char* name, AxisSet axes) {
        return ranks.world->connect(name, ranks.mesh.group(ranks.rank(), axes));
    };
    all_ = connect("reduce over all", {Axis::replicate, Axis::shard});
    if (!sharded()) return;
    parts_ = connect("reduce over shard", {Axis::shard});
    gather_ = connect("gather over shard", {Axis::shard});
    if (ranks.mesh.size(Axis::replicate) > 1) copies_ = connect("reduce over replicate", {Axis::replicate});
}

void Reducer::reduce(const Region& region, Stream& stream) {
    if (!all_) return;
    if (!sharded()) return all_->all_reduce(gradients_.whole(region), stream);
    parts_->reduce_scatter(gradients_.padded_part(region), gradients_.whole(region), stream);
    if (copies_) copies_->all_reduce(gradients_.padded_part(region), stream);
}

void Reducer::sum_over_all(const Tensor& values, Stream& stream) {
    if (all_) all_->all_reduce(values, stream);
}

void Reducer::sum_over_parts(const Tensor& values, Stream& stream) {
    if (parts_) parts_->all_reduce(values, stream);
}

void Reducer::gather(const Region& region, Stream& stream) {
    if (!gather_) return;
    gather_->all_gather(parameters_.compute_whole(region), parameters_.compute_padded_part(region), stream);
}

void Reducer::gather_master(const Region& region, const Tensor& whole, Stream& stream) {
    if (!gather_) throw_internal("{}: its master is not shared among ranks", region.name());
    gather_->all_gather(whole, parameters_.master_padded_part(region), stream);
}

int64_t Reducer::bytes_sent() const {
    int64_t sum = 0;
    for (const auto* communicator : {&all_, &parts_, &copies_, &gather_}) {
        if (!*communicator) continue;
        for (const CollectiveCount& count : (*communicator)->counts()) sum += count.bytes_sent;
    }
    return sum;
}

}  // namespace speedrun
