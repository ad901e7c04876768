#include "train/model/parameter_store.h"

#include "kernels/device/error.h"

namespace speedrun {

namespace {

constexpr int64_t kAlignment = 64;  // bytes: a cache line, and the widest vector

Tensor shaped(const Buffer& buffer, DType dtype, const std::vector<int64_t>& shape, int64_t offset) {
    return shape.size() == 2 ? buffer.tensor(dtype, {shape[0], shape[1]}, offset)
                             : buffer.tensor(dtype, {shape[0]}, offset);
}

}  // namespace

ParameterStore::ParameterStore(const ParameterTable& table, const RegionRules& rules, Runtime& runtime)
    : table_(table), runtime_(runtime), layout_(table, rules) {
    int64_t bytes = 0, end_of_last = 0;
    bool any_copies = false;
    for (const Region& region : layout_.all()) {
        // Regions of one bank follow one another without a gap: a parameter may lie in several.
        if (region.offset != end_of_last) bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
        end_of_last = region.offset + layout_.padded(region);
        master_offset_.push_back(bytes);
        const bool whole = dtype_of(region) == DType::f32;
        any_copies = any_copies || !whole;
        bytes += (whole ? layout_.padded(region) : region.part) * size_of(DType::f32);
    }
    masters_ = Buffer(runtime.device(), "f32 masters", MemoryCategory::master_weights, bytes);
    if (any_copies) {
        copies_ = Buffer(runtime.device(), "compute copies", MemoryCategory::parameters,
                         layout_.elements() * size_of(runtime.real()));
    }
}

DType ParameterStore::dtype_of(const Parameter& p) const {
    return p.full_precision ? DType::f32 : runtime_.real();
}

Tensor ParameterStore::compute(const Parameter& p) const {
    const int64_t offset = layout_.offset_of(p);
    if (dtype_of(p) != DType::f32)
        return shaped(copies_, dtype_of(p), p.shape, offset * size_of(dtype_of(p)));
    const Region& first = layout_[layout_.regions_of(p).front()];
    return shaped(masters_, DType::f32, p.shape,
                  master_offset(first) + (offset - first.offset) * size_of(DType::f32));
}

Tensor ParameterStore::compute_flat(const Parameter& p) const {
    return compute(p).reshaped({p.numel()});
}

Tensor ParameterStore::master(const Parameter& p) const {
    if (layout_.parts() > 1) throw_internal("{}: this rank holds a part of the master only", p.name);
    return masters_.tensor(DType::f32, {p.numel()}, master_offset(layout_[layout_.regions_of(p).front()]));
}

Tensor ParameterStore::master_padded_part(const Region& region) const {
    const int64_t begin = dtype_of(region) == DType::f32 ? layout_.index() * region.part : 0;
    return masters_.tensor(DType::f32, {region.part}, master_offset(region) + begin * size_of(DType::f32));
}

Tensor ParameterStore::master_part(const Region& region) const {
    return Tensor(master_padded_part(region).data, DType::f32, {layout_.valid(region)});
}

Tensor ParameterStore::compute_whole(const Region& region) const {
    const int64_t count = layout_.padded(region);
    if (dtype_of(region) == DType::f32) return masters_.tensor(DType::f32, {count}, master_offset(region));
    return copies_.tensor(dtype_of(region), {count}, region.offset * size_of(dtype_of(region)));
}

Tensor ParameterStore::compute_padded_part(const Region& region) const {
    const Tensor whole = compute_whole(region);
    return whole.reshaped({layout_.parts(), region.part})
        .row_slice(layout_.index(), 1)
        .reshaped({region.part});
}

Tensor ParameterStore::compute_part(const Region& region) const {
    return Tensor(compute_padded_part(region).data, dtype_of(region), {layout_.valid(region)});
}

void ParameterStore::initialize(uint64_t seed) {
    for (const Region& region : layout_.all()) {
        const Tensor part = master_part(region);
        for (const Piece& piece : layout_.part_pieces(region)) {
            const Tensor values(part.data ? static_cast<float*>(part.data) + piece.in_region : nullptr,
                                DType::f32, {piece.count});
            initialize_piece(piece, values, seed);
        }
        publish_part(region, runtime_.compute());
    }
}

void ParameterStore::assign(const std::vector<std::vector<float>>& values) {
    for (const Region& region : layout_.all()) {
        const Tensor part = master_part(region);
        for (const Piece& piece : layout_.part_pieces(region)) {
            const std::vector<float>& from = values.at(static_cast<size_t>(piece.parameter->id));
            if (static_cast<int64_t>(from.size()) != piece.parameter->numel()) {
                throw_internal("{}: {} values for {} elements", piece.parameter->name, from.size(),
                               piece.parameter->numel());
            }
            runtime_.device().copy(static_cast<float*>(part.data) + piece.in_region,
                                   from.data() + piece.in_parameter, piece.count * size_of(DType::f32),
                                   runtime_.compute());
        }
        publish_part(region, runtime_.compute());
    }
    runtime_.compute().synchronize();
}

void ParameterStore::initialize_piece(const Piece& piece, const Tensor& values, uint64_t seed) {
    Stream& stream = runtime_.compute();
    Ops& ops = runtime_.ops();
    const InitRule& init = piece.parameter->init;
    const auto sequence = static_cast<uint64_t>(piece.parameter->id);
    switch (init.kind) {
        case InitRule::Kind::constant:
            ops.fill(values, init.value, stream);
            break;
        case InitRule::Kind::first_element:
            ops.fill(values, 0.0f, stream);
            if (piece.in_parameter == 0) ops.fill(Tensor(values.data, DType::f32, {1}), init.value, stream);
            break;
        case InitRule::Kind::normal:
            ops.random_normal(values, seed, sequence, piece.in_parameter, init.value, stream);
            break;
        case InitRule::Kind::uniform:
            ops.random_uniform(values, seed, sequence, piece.in_parameter, init.value, stream);
            break;
    }
}

void ParameterStore::publish_part(const Region& region, Stream& stream) {
    if (dtype_of(region) == DType::f32 || layout_.valid(region) == 0) return;
    runtime_.ops().cast(compute_part(region), master_part(region), stream);
}

void ParameterStore::publish(const Parameter& p, Stream& stream) {
    if (dtype_of(p) != DType::f32) runtime_.ops().cast(compute_flat(p), master(p), stream);
}

}  // namespace speedrun
