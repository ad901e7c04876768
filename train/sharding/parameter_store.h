// Values of all parameters on the device: masters, and the copies that compute reads. A master in the compute dtype
// (f32, or bf16 with Bucket::master) is itself read by compute. If ranks share a parameter's optimizer state (buckets
// of several shards), a rank holds only its shard of the master. With sharded storage (BucketRules) it also holds only
// a shard of the copy. Compute then reads shared memory into which parameters are gathered while needed.
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

    // Tensor that forward and backward read: in the compute dtype, or f32 for full-precision parameters, in the table's
    // shape.
    Tensor compute(const Parameter& p) const;
    Tensor compute_flat(const Parameter& p) const;
    // Master, flat [n], f32 or bf16. It is the compute copy's memory if the dtypes are equal. Throws if this rank holds
    // only a shard.
    Tensor master(const Parameter& p) const;

    // This rank's shard of a bucket, without padding: the master, and its range of the compute copy.
    Tensor master_shard(const Bucket& bucket) const;
    Tensor compute_shard(const Bucket& bucket) const;
    Tensor master_padded_shard(const Bucket& bucket) const;
    // Whole bucket as read by compute, with padding, and this rank's shard: within it, or in its own memory with
    // sharded storage.
    Tensor compute_whole(const Bucket& bucket) const;
    Tensor compute_padded_shard(const Bucket& bucket) const;
    DType dtype_of(const Bucket& bucket) const {
        return bucket.full_precision ? DType::f32 : runtime_.compute_dtype();
    }
    // True if compute reads a rounded copy of the masters.
    bool copied(const Bucket& bucket) const { return dtype_of(bucket) != bucket.master; }

    // Enqueues the initial values of this rank's shards on the compute stream. They depend only on seed, parameter and
    // element of the whole parameter, not on layout or tensor axis. Waits if masters are bf16.
    void initialize(uint64_t seed);
    // Enqueues on compute the rounding of this rank's masters to their compute copies.
    void cast_shards_to_compute();
    // Sets this rank's shards of masters and compute copies from host values of whole parameters; index: parameter.
    // Waits.
    void assign(const std::vector<std::vector<float>>& values);
    // Sets one master and its compute copy from host values; requires a whole master, as master(). Waits.
    void assign(const Parameter& p, const float* values);
    // Enqueues the rounding of one master to its compute copy; requires a whole master, as master().
    void cast_to_compute(const Parameter& p, Stream& stream);

  private:
    DType dtype_of(const Parameter& p) const;
    void initialize_piece(const Piece& piece, const Tensor& values, uint64_t seed);
    void initialize_rounded(const Piece& piece, const Tensor& values, const Buffer& unrounded, uint64_t seed);
    void cast_shard_to_compute(const Bucket& bucket, Stream& stream);
    int64_t master_offset(const Bucket& bucket) const {
        return master_offset_[static_cast<size_t>(bucket.id)];
    }

    void place_gathered();

    const ParameterTable& table_;
    Runtime& runtime_;
    const BucketLayout layout_;
    // f32 masters, per bucket: all of it if compute reads f32 and has it all, otherwise this rank's shard.
    Buffer masters_;
    Buffer copies_;                // layout of the buckets; with sharded storage, one shard after another
    Buffer gathered_;              // gathered parameters with sharded storage
    SharedMemory gathered_place_;  // layout of gathered_
    std::vector<int64_t> master_offset_;  // bytes; index: bucket
    std::vector<int64_t> copy_offset_;    // bytes; index: bucket; of the shard with sharded storage
};

}  // namespace speedrun
