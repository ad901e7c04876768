#include "train/sharding/read_master.h"

#include <algorithm>
#include <vector>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

// Reads this rank's part.
void read_part(const Parameter& p, const ParameterStore& parameters, Reducer& reducer, Runtime& runtime,
               float* host) {
    Stream& stream = runtime.gather();
    const BucketLayout& layout = parameters.layout();
    const Bucket& bucket = layout.bucket_of(p);
    const int64_t size = size_of(bucket.master);
    std::vector<Bf16> halves(bucket.master == DType::bf16 ? static_cast<size_t>(p.numel()) : 0);
    const auto copy = [&](const void* from) {
        void* const to = halves.empty() ? static_cast<void*>(host) : halves.data();
        runtime.device().copy(to, from, p.numel() * size, stream);
        stream.synchronize();
        std::copy(halves.begin(), halves.end(), host);
    };
    if (bucket.num_shards == 1) return copy(parameters.master(p).data);
    // Every rank has the whole compute copy.
    if (!parameters.copied(bucket) && !parameters.stored_sharded())
        return copy(parameters.compute_flat(p).data);
    const Buffer whole(runtime.device(), "gathered master", MemoryCategory::workspace,
                       layout.padded(bucket) * size);
    reducer.gather_master(bucket, whole.tensor(bucket.master, {layout.padded(bucket)}), stream);
    copy(static_cast<const char*>(whole.data()) + layout.in_bucket(p) * size);
}

}  // namespace

void read_master(const Parameter& p, const ParameterStore& parameters, const MasterPeers& peers,
                 Runtime& runtime, float* host) {
    if (p.cut.all()) return read_part(p, parameters, peers.reducer, runtime, host);
    std::vector<float> part(static_cast<size_t>(p.numel())), parts(part.size() * p.cut.parts);
    read_part(p, parameters, peers.reducer, runtime, part.data());
    const Buffer memory(runtime.device(), "a master in parts", MemoryCategory::workspace,
                        (1 + p.cut.parts) * p.numel() * size_of(DType::f32));
    const Tensor own = memory.tensor(DType::f32, {p.numel()}),
                 all = memory.tensor(DType::f32, {p.cut.parts * p.numel()}, own.bytes());
    Stream& stream = runtime.compute();
    runtime.device().copy(own.data, part.data(), own.bytes(), stream);
    if (!peers.tensor) throw_internal("parameter {}: no communicator for its other parts", p.name);
    peers.tensor->all_gather(all, own, stream);
    runtime.device().copy(parts.data(), all.data, all.bytes(), stream);
    stream.synchronize();
    for (int index = 0; index < p.cut.parts; ++index) {
        TensorCut cut = p.cut;
        cut.index = index;
        const float* from = parts.data() + index * p.numel();
        for (const Range& range : contiguous_ranges(boxes_of(p.shape, cut, {0, p.numel()}))) {
            std::copy_n(from, range.count, host + range.begin);
            from += range.count;
        }
    }
}

}  // namespace speedrun
