#include "train/sharding/parameter_store.h"

#include <algorithm>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

// f32 values per chunk that are rounded to bf16 masters.
constexpr int64_t kMaxUnrounded = int64_t{1} << 20;

int64_t aligned(int64_t bytes) {
    return (bytes + kAlignedBytes - 1) / kAlignedBytes * kAlignedBytes;
}

Tensor shaped(const Buffer& buffer, DType dtype, const std::vector<int64_t>& shape, int64_t offset) {
    return shape.size() == 2 ? buffer.tensor(dtype, {shape[0], shape[1]}, offset)
                             : buffer.tensor(dtype, {shape[0]}, offset);
}

// Returns the piece's elements of the whole parameter.
std::vector<float> part_of(const std::vector<float>& whole, const Piece& piece) {
    std::vector<float> part;
    part.reserve(static_cast<size_t>(piece.in_parameter.count));
    for (const Range& range : contiguous_ranges(piece.parameter->boxes(piece.in_parameter)))
        part.insert(part.end(), whole.begin() + range.begin, whole.begin() + range.end());
    part.resize(static_cast<size_t>(piece.in_parameter.count));  // padding
    return part;
}

}  // namespace

ParameterStore::ParameterStore(const ParameterTable& table, const BucketRules& rules, Runtime& runtime)
    : table_(table), runtime_(runtime), layout_(table, rules) {
    int64_t bytes = 0, copy_bytes = 0;
    for (const Bucket& bucket : layout_.all()) {
        if (bucket.master != DType::f32 && copied(bucket))
            throw_internal("{}: bf16 masters, but computed in f32", bucket.name());
        const bool sharded = copied(bucket) || stored_sharded();
        bytes = aligned(bytes);
        master_offset_.push_back(bytes);
        if (bucket.master == DType::f32)
            bytes += (sharded ? bucket.shard_size : layout_.padded(bucket)) * size_of(DType::f32);
        copy_offset_.push_back(stored_sharded() ? copy_bytes
                                                : bucket.offset * size_of(runtime.compute_dtype()));
        if (dtype_of(bucket) != DType::f32)
            copy_bytes = aligned(copy_bytes + bucket.shard_size * size_of(runtime.compute_dtype()));
    }
    if (bytes > 0) masters_ = Buffer(runtime.device(), "f32 masters", MemoryCategory::master_weights, bytes);
    if (copy_bytes > 0) {
        copies_ =
            Buffer(runtime.device(), "compute copies", MemoryCategory::parameters,
                   stored_sharded() ? copy_bytes : layout_.elements() * size_of(runtime.compute_dtype()));
    }
    if (stored_sharded()) place_gathered();
}

void ParameterStore::place_gathered() {
    const UnitPasses unit_passes(table_.num_units());
    std::vector<std::vector<Lifetime>> lifetimes;
    std::vector<int64_t> element_bytes;
    for (const Bucket& bucket : layout_.all()) {
        lifetimes.push_back(reads_of(bucket, unit_passes, *layout_.rules().stored_sharded));
        for (Lifetime& lifetime : lifetimes.back()) --lifetime.first;  // gathered one stage ahead
        element_bytes.push_back(size_of(dtype_of(bucket)));
    }
    gathered_place_ = share_memory(layout_, lifetimes, element_bytes);
    gathered_ =
        Buffer(runtime_.device(), "gathered parameters", MemoryCategory::parameters, gathered_place_.bytes);
}

DType ParameterStore::dtype_of(const Parameter& p) const {
    return p.full_precision ? DType::f32 : runtime_.compute_dtype();
}

Tensor ParameterStore::compute(const Parameter& p) const {
    const Bucket& bucket = layout_.bucket_of(p);
    const int64_t in_bucket = layout_.in_bucket(p) * size_of(dtype_of(p));
    if (stored_sharded())
        return shaped(gathered_, dtype_of(p), p.shape, gathered_place_.offset[bucket.id] + in_bucket);
    if (dtype_of(p) != DType::f32)
        return shaped(copies_, dtype_of(p), p.shape, copy_offset_[bucket.id] + in_bucket);
    return shaped(masters_, DType::f32, p.shape, master_offset(bucket) + in_bucket);
}

Tensor ParameterStore::compute_flat(const Parameter& p) const {
    return compute(p).reshaped({p.numel()});
}

Tensor ParameterStore::master(const Parameter& p) const {
    const Bucket& bucket = layout_.bucket_of(p);
    if (bucket.num_shards > 1) throw_internal("{}: this rank holds a shard of the master only", p.name);
    if (bucket.master != DType::f32) return compute_flat(p);
    return masters_.tensor(DType::f32, {p.numel()},
                           master_offset(bucket) + layout_.in_bucket(p) * size_of(DType::f32));
}

Tensor ParameterStore::master_padded_shard(const Bucket& bucket) const {
    if (bucket.master != DType::f32) return compute_padded_shard(bucket);
    const bool all_here = dtype_of(bucket) == DType::f32 && !stored_sharded();
    const int64_t begin = all_here ? bucket.index * bucket.shard_size : 0;
    return masters_.tensor(DType::f32, {bucket.shard_size},
                           master_offset(bucket) + begin * size_of(DType::f32));
}

Tensor ParameterStore::master_shard(const Bucket& bucket) const {
    return Tensor(master_padded_shard(bucket).data, bucket.master, {layout_.valid(bucket)});
}

Tensor ParameterStore::compute_whole(const Bucket& bucket) const {
    const int64_t count = layout_.padded(bucket);
    if (stored_sharded())
        return gathered_.tensor(dtype_of(bucket), {count}, gathered_place_.offset[bucket.id]);
    if (dtype_of(bucket) == DType::f32) return masters_.tensor(DType::f32, {count}, master_offset(bucket));
    return copies_.tensor(dtype_of(bucket), {count}, copy_offset_[bucket.id]);
}

Tensor ParameterStore::compute_padded_shard(const Bucket& bucket) const {
    if (stored_sharded()) {
        if (dtype_of(bucket) == DType::f32) return master_padded_shard(bucket);
        return copies_.tensor(dtype_of(bucket), {bucket.shard_size}, copy_offset_[bucket.id]);
    }
    const Tensor whole = compute_whole(bucket);
    return whole.reshaped({bucket.num_shards, bucket.shard_size})
        .row_slice(bucket.index, 1)
        .reshaped({bucket.shard_size});
}

Tensor ParameterStore::compute_shard(const Bucket& bucket) const {
    return Tensor(compute_padded_shard(bucket).data, dtype_of(bucket), {layout_.valid(bucket)});
}

void ParameterStore::initialize(uint64_t seed) {
    Buffer unrounded;  // small for any parameter size, because all other memory is allocated by now
    for (const Bucket& bucket : layout_.all()) {
        const Tensor shard = master_shard(bucket);
        for (const Piece& piece : layout_.shard_pieces(bucket)) {
            const Tensor values = elements(shard, {piece.in_shard, piece.in_parameter.count});
            if (bucket.master == DType::f32) {
                initialize_piece(piece, values, seed);
                continue;
            }
            if (!unrounded.data())
                unrounded = Buffer(runtime_.device(), "weights to round", MemoryCategory::workspace,
                                   kMaxUnrounded * size_of(DType::f32));
            initialize_rounded(piece, values, unrounded, seed);
        }
    }
    cast_shards_to_compute();
    if (unrounded.data()) runtime_.compute().synchronize();
}

void ParameterStore::initialize_rounded(const Piece& piece, const Tensor& values, const Buffer& unrounded,
                                        uint64_t seed) {
    const auto [begin, all] = piece.in_parameter;
    for (int64_t first = 0; first < all; first += kMaxUnrounded) {
        const int64_t count = std::min(kMaxUnrounded, all - first);
        const Tensor some = unrounded.tensor(DType::f32, {count});
        initialize_piece({piece.parameter, {begin + first, count}, piece.in_shard + first}, some, seed);
        runtime_.ops().cast({.out = elements(values, {first, count}), .in = some}, runtime_.compute());
    }
}

void ParameterStore::cast_shards_to_compute() {
    for (const Bucket& bucket : layout_.all()) cast_shard_to_compute(bucket, runtime_.compute());
}

void ParameterStore::assign(const std::vector<std::vector<float>>& values) {
    std::vector<std::vector<float>> parts;  // sources of the enqueued copies
    std::vector<std::vector<Bf16>> halves;
    for (const Bucket& bucket : layout_.all()) {
        const Tensor shard = master_shard(bucket);
        for (const Piece& piece : layout_.shard_pieces(bucket)) {
            const Parameter& p = *piece.parameter;
            const std::vector<float>& from = values.at(static_cast<size_t>(p.id));
            if (static_cast<int64_t>(from.size()) != p.whole_numel())
                throw_internal("{}: {} values for {} elements", p.name, from.size(), p.whole_numel());
            const float* first = from.data() + piece.in_parameter.begin;
            if (!p.cut.all()) first = parts.emplace_back(part_of(from, piece)).data();
            const void* source = first;
            const int64_t count = piece.in_parameter.count;
            if (bucket.master == DType::bf16) source = halves.emplace_back(first, first + count).data();
            const Tensor to = elements(shard, {piece.in_shard, count});
            runtime_.device().copy(to.data, source, to.bytes(), runtime_.compute());
        }
        cast_shard_to_compute(bucket, runtime_.compute());
    }
    runtime_.compute().synchronize();
}

// A random value depends on its index in the whole parameter: one operation per row that is contiguous there.
void ParameterStore::initialize_piece(const Piece& piece, const Tensor& values, uint64_t seed) {
    Stream& stream = runtime_.compute();
    Ops& ops = runtime_.ops();
    const InitRule& init = piece.parameter->init;
    const auto sequence = static_cast<uint64_t>(piece.parameter->id);
    const std::vector<Range> ranges = contiguous_ranges(piece.parameter->boxes(piece.in_parameter));
    const auto each_range = [&](const auto& enqueue) {
        int64_t at = 0;
        for (const Range& range : ranges) {
            enqueue(elements(values, {at, range.count}), range.begin);
            at += range.count;
        }
    };
    int64_t valid = 0;
    for (const Range& range : ranges) valid += range.count;
    if (valid < piece.in_parameter.count) ops.fill({.x = values, .value = 0.0f}, stream);  // padding
    if (valid == 0) return;
    switch (init.kind) {
        case InitRule::Kind::constant:
            ops.fill({.x = elements(values, {0, valid}), .value = init.value}, stream);
            break;
        case InitRule::Kind::elements:
            each_range([&](const Tensor& x, int64_t offset) {
                for (int64_t i = 0; i < x.numel(); ++i)
                    ops.fill({.x = elements(x, {i, 1}),
                              .value = init.elements.at(static_cast<size_t>(offset + i))},
                             stream);
            });
            break;
        case InitRule::Kind::normal:
            each_range([&](const Tensor& x, int64_t offset) {
                ops.random_normal(
                    {.x = x, .seed = seed, .sequence = sequence, .offset = offset, .deviation = init.value},
                    stream);
            });
            break;
        case InitRule::Kind::uniform:
            each_range([&](const Tensor& x, int64_t offset) {
                ops.random_uniform(
                    {.x = x, .seed = seed, .sequence = sequence, .offset = offset, .bound = init.value},
                    stream);
            });
            break;
    }
}

void ParameterStore::cast_shard_to_compute(const Bucket& bucket, Stream& stream) {
    if (!copied(bucket) || layout_.valid(bucket) == 0) return;
    runtime_.ops().cast({.out = compute_shard(bucket), .in = master_shard(bucket)}, stream);
}

void ParameterStore::cast_to_compute(const Parameter& p, Stream& stream) {
    if (copied(layout_.bucket_of(p))) runtime_.ops().cast({.out = compute_flat(p), .in = master(p)}, stream);
}

void ParameterStore::assign(const Parameter& p, const float* values) {
    const Tensor to = master(p);
    std::vector<Bf16> halves;
    if (to.dtype == DType::bf16) halves = std::vector<Bf16>(values, values + p.numel());
    const void* const source = halves.empty() ? static_cast<const void*>(values) : halves.data();
    runtime_.device().copy(to.data, source, to.bytes(), runtime_.compute());
    cast_to_compute(p, runtime_.compute());
    runtime_.compute().synchronize();
}

}  // namespace speedrun
