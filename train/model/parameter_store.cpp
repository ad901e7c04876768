#include "train/model/parameter_store.h"

namespace speedrun {

namespace {

constexpr int64_t kAlignment = 64;  // bytes: a cache line, and the widest vector

int64_t aligned(int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

Tensor shaped(const Buffer& buffer, DType dtype, const std::vector<int64_t>& shape, int64_t offset) {
    return shape.size() == 2 ? buffer.tensor(dtype, {shape[0], shape[1]}, offset)
                             : buffer.tensor(dtype, {shape[0]}, offset);
}

}  // namespace

ParameterStore::ParameterStore(const ParameterTable& table, Runtime& runtime)
    : table_(table), runtime_(runtime) {
    int64_t master_bytes = 0, copy_bytes = 0;
    for (const Parameter& p : table.all()) {
        master_offset_.push_back(master_bytes);
        copy_offset_.push_back(copy_bytes);
        master_bytes += aligned(p.numel() * size_of(DType::f32));
        if (dtype_of(p) != DType::f32) copy_bytes += aligned(p.numel() * size_of(dtype_of(p)));
    }
    masters_ = Buffer(runtime.device(), "f32 masters", MemoryCategory::master_weights, master_bytes);
    if (copy_bytes > 0)
        copies_ = Buffer(runtime.device(), "compute copies", MemoryCategory::parameters, copy_bytes);
}

DType ParameterStore::dtype_of(const Parameter& p) const {
    return p.full_precision ? DType::f32 : runtime_.real();
}

Tensor ParameterStore::compute(const Parameter& p) const {
    if (dtype_of(p) == DType::f32) return shaped(masters_, DType::f32, p.shape, master_offset_[p.id]);
    return shaped(copies_, dtype_of(p), p.shape, copy_offset_[p.id]);
}

Tensor ParameterStore::compute_flat(const Parameter& p) const {
    return compute(p).reshaped({p.numel()});
}

Tensor ParameterStore::master(const Parameter& p) const {
    return masters_.tensor(DType::f32, {p.numel()}, master_offset_[p.id]);
}

void ParameterStore::initialize(uint64_t seed) {
    Stream& stream = runtime_.compute();
    Ops& ops = runtime_.ops();
    for (const Parameter& p : table_.all()) {
        const Tensor values = master(p);
        const auto sequence = static_cast<uint64_t>(p.id);
        switch (p.init.kind) {
            case InitRule::Kind::constant:
                ops.fill(values, p.init.value, stream);
                break;
            case InitRule::Kind::first_element:
                ops.fill(values, 0.0f, stream);
                ops.fill(values.reshaped({p.numel(), 1}).row_slice(0, 1), p.init.value, stream);
                break;
            case InitRule::Kind::normal:
                ops.random_normal(values, seed, sequence, 0, p.init.value, stream);
                break;
            case InitRule::Kind::uniform:
                ops.random_uniform(values, seed, sequence, 0, p.init.value, stream);
                break;
        }
        publish(p, stream);
    }
}

void ParameterStore::publish(const Parameter& p, Stream& stream) {
    const Tensor copy = compute_flat(p);
    if (copy.data != master(p).data || copy.dtype != DType::f32) runtime_.ops().cast(copy, master(p), stream);
}

}  // namespace speedrun
