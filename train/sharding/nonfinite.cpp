#include "train/sharding/nonfinite.h"

#include <numeric>

namespace speedrun {

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

}  // namespace speedrun
