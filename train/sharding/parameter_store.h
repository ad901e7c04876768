// The values of all parameters on the device: masters, and the copies that compute reads. A master that has compute's
// type (f32, or bf16 where a group keeps its weights in that: Bucket::master) is what compute reads itself. Of a parameter
// whose optimizer state is shared among ranks (buckets of several shards), a rank holds the master of its
// shard alone. Where parameters are stored sharded (BucketRules), so are the copies: compute reads memory
// into which they are gathered for as long as they are needed, and which buckets therefore share.
#pragma once

#include <vector>

#include "kernels/runtime/runtime.h"
#include "train/sharding/bucket_layout.h"
#include "train/sharding/lifetimes.h"

namespace speedrun {

class ParameterStore {
  public:
    ParameterStore(const ParameterTable& table, const BucketRules& rules, Runtime& runtime);
    ParameterStore(const ParameterTable& table, Runtime& runtime)
        : ParameterStore(table, BucketRules{}, runtime) {}

    const BucketLayout& layout() const { return layout_; }

    bool stored_sharded() const { return layout_.rules().stored_sharded.has_value(); }

    // What forward and backward read: the compute type, or f32 for full-precision parameters. Shape of the
    // table.
    Tensor compute(const Parameter& p) const;
    Tensor compute_flat(const Parameter& p) const;
    // The master, flat [n], f32 or bf16. The same memory as the compute copy where that has its type. Throws if this
    // rank holds only a shard of it.
    Tensor master(const Parameter& p) const;

    // This rank's shard of a bucket, without padding: the master, and its place in the compute copy.
    Tensor master_shard(const Bucket& bucket) const;
    Tensor compute_shard(const Bucket& bucket) const;
    Tensor master_padded_shard(const Bucket& bucket) const;
    // The whole bucket as compute reads it, padding included, and this rank's shard: of that, or (stored
    // sharded) on its own.
    Tensor compute_whole(const Bucket& bucket) const;
    Tensor compute_padded_shard(const Bucket& bucket) const;
    DType dtype_of(const Bucket& bucket) const {
        return bucket.full_precision ? DType::f32 : runtime_.real();
    }
    // Does compute read a rounded copy of the masters, and not these?
    bool copied(const Bucket& bucket) const { return dtype_of(bucket) != bucket.master; }

    // Enqueues the initial values of this rank's shards on the compute stream: a function of (seed,
    // parameter, element of the whole parameter) alone, whatever the layout and the tensor axis. Waits if masters
    // are bf16.
    void initialize(uint64_t seed);
    // Enqueues the rounding of this rank's shards of the masters to their compute copies, on the compute
    // stream.
    void publish_shards();
    // The masters become these host values, by parameter id, of whole parameters, each rank its shards; and so
    // do its shards of what compute reads. Waits.
    void assign(const std::vector<std::vector<float>>& values);
    // The master of one parameter becomes these host values, and what compute reads of it too; as master(). Waits.
    void assign(const Parameter& p, const float* values);
    // Enqueues the rounding of one master to its compute copy; as master().
    void publish(const Parameter& p, Stream& stream);

  private:
    DType dtype_of(const Parameter& p) const;
    void initialize_piece(const Piece& piece, const Tensor& values, uint64_t seed);
    void initialize_rounded(const Piece& piece, const Tensor& values, const Buffer& unrounded, uint64_t seed);
    void publish_shard(const Bucket& bucket, Stream& stream);
    int64_t master_offset(const Bucket& bucket) const {
        return master_offset_[static_cast<size_t>(bucket.id)];
    }

    void place_gathered();

    const ParameterTable& table_;
    Runtime& runtime_;
    const BucketLayout layout_;
    // What is f32, per bucket: all of it where compute reads f32 and has it all, else this rank's shard.
    Buffer masters_;
    Buffer copies_;    // laid out as the buckets; where parameters are stored sharded, those one by one
    Buffer gathered_;  // of parameters stored sharded
    SharedMemory gathered_place_;         // in gathered_
    std::vector<int64_t> master_offset_;  // bytes, by bucket
    std::vector<int64_t> copy_offset_;    // bytes, by bucket: of the shard, if parameters are stored sharded
};

}  // namespace speedrun
