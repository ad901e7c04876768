#include "train/sharding/read_master.h"

namespace speedrun {

void read_master(const Parameter& p, const ParameterStore& parameters, Reducer& reducer, Runtime& runtime,
                 float* host) {
    Stream& stream = runtime.gather();
    const auto copy = [&](const void* from) {
        runtime.device().copy(host, from, p.numel() * size_of(DType::f32), stream);
        stream.synchronize();
    };
    const BucketLayout& layout = parameters.layout();
    const Bucket& bucket = layout.bucket_of(p);
    const bool sharded = bucket.num_shards > 1;
    const bool read_in_f32 = p.full_precision || runtime.real() == DType::f32;  // by compute, all of it
    if (!sharded) return copy(parameters.master(p).data);
    if (read_in_f32 && !parameters.stored_sharded()) return copy(parameters.compute_flat(p).data);
    const Buffer whole(runtime.device(), "gathered master", MemoryCategory::workspace,
                       layout.padded(bucket) * size_of(DType::f32));
    reducer.gather_master(bucket, whole.tensor(DType::f32, {layout.padded(bucket)}), stream);
    copy(static_cast<const float*>(whole.data()) + layout.in_bucket(p));
}

}  // namespace speedrun
