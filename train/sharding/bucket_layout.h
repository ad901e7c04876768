// BucketLayout: memory layout of parameters, cut into buckets. A bucket is reduced, updated and gathered as a whole.
//
// A bucket is a contiguous range of the gradient memory, and the same range of the compute copies. It holds whole
// parameters of one optimizer group, compute dtype and placement, consecutive in the order in which backward completes
// them. It is closed at the target size, so that the reduction of the last layers overlaps with backward of earlier
// ones. With sharded storage of parameters (zero3) each unit is one bucket.
//
// Ranks that share the optimizer's state cut a bucket into `num_shards` equal shards, at any element, even within a
// parameter. The last shards are padded with zeros. Padding and the gaps that align parameters stay zero.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/device/dtype.h"
#include "train/config/choices.h"
#include "train/parameters/parameter_table.h"

namespace speedrun {

struct BucketRules {
    int num_shards = 1, index = 0;            // ranks that share the optimizer state, and this rank's index
    int matrix_shards = 0, matrix_index = 0;  // as above, for optimizers of whole matrices; 0: equal
    std::vector<int> group_of;                // optimizer group; index: parameter; empty: one group
    // Index: parameter. Parameters placed alike on the mesh have equal values; empty: all are.
    std::vector<int> placement_of;
    // index: group; its optimizer needs whole matrices; empty: none does
    std::vector<bool> whole_matrix;
    std::vector<int64_t> heads_per_matrix;  // index: group; Parameter::row_blocks; empty: whole matrices
    std::vector<bool> bf16_weights;         // index: group; bf16 masters; empty: none
    std::vector<bool> frozen;               // index: group; StepSettings::frozen(); empty: none
    // Index: parameter. For a table with a row exchange of its gradient: the most rows that a rank's tokens touch
    // between two exchanges. Such a table has its own placement. 0: the whole gradient is reduced. Empty: 0 for all.
    std::vector<int64_t> max_rows;
    int64_t target = 0;                     // elements of a full bucket; 0: one parameter per bucket
    std::optional<Reshard> stored_sharded;  // set: each rank stores only its shards of parameters
};

// Elements of a parameter in a shard of a bucket.
struct Piece {
    const Parameter* parameter;
    Range in_parameter;
    int64_t in_shard;  // offset
};

// A matrix of a parameter's stack, or this rank's part of one or of several that are exchanged together, at offset
// `first` of a bucket.
struct Matrix {
    const Parameter* parameter;
    int64_t number;  // index in the parameter, in order of rows; of the first if several
    int64_t first;
    int64_t rows, cols;
    int64_t count = 1;  // equal blocks of the whole rows

    int64_t numel() const { return rows * cols; }
    const TensorCut& cut() const { return parameter->cut; }
    bool columns_cut() const { return !cut().all() && cut().dimension == 1; }
    // Size of all parts together.
    int64_t whole_rows() const { return columns_cut() ? rows : rows * cut().parts; }
    int64_t whole_cols() const { return columns_cut() ? cols * cut().parts : cols; }
    int64_t whole_numel() const { return numel() * cut().parts; }
    // Rows of each of the `count` matrices.
    int64_t own_rows() const { return whole_rows() / count; }
};

struct Bucket {
    int id = 0;
    int group = 0;
    bool full_precision = false;    // computed in f32
    bool frozen = false;            // never updated: its gradient is written and not read
    DType master = DType::f32;      // dtype of masters; bf16: also read by compute
    int64_t offset = 0;             // offset in the gradient memory, elements
    int64_t count = 0;              // elements without the padding at the end
    int num_shards = 1, index = 0;  // ranks that share its optimizer state, and this rank's index
    int64_t shard_size = 0;         // elements per shard
    // BucketRules::max_rows of the bucket's only table; 0: no rows are exchanged
    int64_t max_rows = 0;
    std::vector<const Parameter*> parameters;  // ascending

    const Parameter& first() const { return *parameters.front(); }
    std::string name() const;  // "blocks.0.attn.qkv.weight", "blocks.0.attn.qkv.weight + 5 more"
};

class BucketLayout {
  public:
    // The table must outlive the layout.
    BucketLayout(const ParameterTable& table, const BucketRules& rules);

    const BucketRules& rules() const { return rules_; }
    int num_units() const { return table_.num_units(); }
    int64_t num_scales() const { return static_cast<int64_t>(table_.scales().size()); }
    const std::vector<Bucket>& all() const { return buckets_; }  // ascending by first parameter
    const Bucket& operator[](int id) const { return buckets_[static_cast<size_t>(id)]; }
    int size() const { return static_cast<int>(buckets_.size()); }
    int64_t elements() const { return elements_; }  // size of the gradient memory
    int64_t padded(const Bucket& bucket) const { return bucket.shard_size * bucket.num_shards; }
    // Elements of a bucket in a shard, without padding.
    static Range shard(const Bucket& bucket, int64_t index);
    // Elements of this rank's shard that are not padding.
    int64_t valid(const Bucket& bucket) const;
    // Returns the pieces in this rank's shard, ascending.
    std::vector<Piece> shard_pieces(const Bucket& bucket) const;
    const Bucket& bucket_of(const Parameter& p) const { return (*this)[bucket_of_[p.id]]; }
    // Offset of a parameter in its bucket, elements. Parameters are contiguous.
    int64_t in_bucket(const Parameter& p) const { return in_bucket_[p.id]; }
    // Returns the matrices of a bucket, ascending. Throws an internal error if it holds other parameters, or parts that
    // are cut differently.
    std::vector<Matrix> matrices(const Bucket& bucket) const;
    int64_t heads_per_matrix(int group) const;
    // True if the group's optimizer needs whole matrices.
    bool whole_matrix(int group) const;
    bool bf16_weights(int group) const;
    // Buckets in the order in which backward completes them: last declared first.
    std::vector<int> backward_order() const;
    std::vector<int> forward_order() const;  // reverse of backward_order()

  private:
    int group_of(const Parameter& p) const;
    int placement_of(const Parameter& p) const;
    std::vector<std::vector<const Parameter*>> fill() const;
    void add(const std::vector<const Parameter*>& members);

    const ParameterTable& table_;
    const BucketRules rules_;
    std::vector<Bucket> buckets_;
    std::vector<int64_t> in_bucket_;  // index: parameter
    std::vector<int> bucket_of_;
    int64_t elements_ = 0;
};

}  // namespace speedrun
