// BucketLayout: how parameters lie in memory, cut into the buckets that are reduced, stepped and gathered as
// one.
//
// A bucket is a contiguous piece of the gradient memory, and the same piece of the compute copies. It holds
// whole parameters of one optimizer group, one compute type and one placement, neighbours in the order in which backward
// completes them, and is closed when it has the target size, so that the last layers are on the wire while
// earlier ones still compute. Where parameters are stored sharded (zero3) a unit's parameters are one
// bucket, which is gathered and reduced whole.
//
// Ranks that share the optimizer's state cut a bucket into `num_shards` equal shards, anywhere: a cut may go
// through a parameter. What the last shards lack is padding, which is zero and stays zero, as do the gaps
// that align parameters.
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
    int num_shards = 1, index = 0;  // ranks that share the optimizer state, and which of them this one is
    int matrix_shards = 0, matrix_index = 0;  // the same for optimizers of whole matrices; 0: as above
    std::vector<int> group_of;                // optimizer group by parameter id; empty: all in one
    // By parameter id: what is placed on the mesh alike has the same number; empty: all of it.
    std::vector<int> placement_of;
    std::vector<bool> whole_matrix;         // by group: its optimizer needs whole matrices; empty: none does
    std::vector<int64_t> heads_per_matrix;  // by group: Parameter::row_blocks; empty: all of a matrix
    std::vector<bool> bf16_weights;         // by group: its masters are bf16; empty: none are
    // By parameter id: of a table whose gradient travels as rows, how many a rank's tokens touch at most until they do; such a
    // table has a placement of its own. 0: the gradient travels whole. Empty: all do.
    std::vector<int64_t> most_rows;
    int64_t target = 0;                     // elements of a full bucket; 0: each parameter is one
    std::optional<Reshard> stored_sharded;  // parameters: each rank stores its shards alone and gathers
};

// `count` elements of a parameter from `in_parameter` on, at `in_bucket` of a bucket (or of a shard of one).
struct Piece {
    const Parameter* parameter;
    int64_t in_parameter, in_bucket, count;
};

// One of the matrices that are a parameter's rows, or this rank's part of it or of several, which travel as one, at `first`
// of a bucket.
struct Matrix {
    const Parameter* parameter;
    int64_t number;  // of the parameter's, in order of rows; of several the first
    int64_t first;
    int64_t rows, cols;
    int64_t count = 1;  // equal blocks of the whole rows

    int64_t numel() const { return rows * cols; }
    const TensorCut& cut() const { return parameter->cut; }
    bool columns_cut() const { return !cut().all() && cut().dimension == 1; }
    // The sizes of all parts together.
    int64_t whole_rows() const { return columns_cut() ? rows : rows * cut().parts; }
    int64_t whole_cols() const { return columns_cut() ? cols * cut().parts : cols; }
    int64_t whole_numel() const { return numel() * cut().parts; }
    // Rows of each of the `count` matrices.
    int64_t own_rows() const { return whole_rows() / count; }
};

struct Bucket {
    int id = 0;
    int group = 0;
    bool full_precision = false;    // computed with in f32
    DType master = DType::f32;      // the optimizer keeps its weights in it; bf16: compute reads these
    int64_t offset = 0;             // elements, in the gradient memory
    int64_t count = 0;              // elements, without the padding at the end
    int num_shards = 1, index = 0;  // ranks that share its optimizer state, and which of them this one is
    int64_t shard_size = 0;         // elements of each shard
    int64_t most_rows = 0;          // BucketRules::most_rows of the one table that it then is
    std::vector<Piece> pieces;      // whole parameters, ascending

    int64_t first_parameter() const { return pieces.front().parameter->id; }
    std::string name() const;  // "blocks.0.attn.qkv.weight", "blocks.0.attn.qkv.weight + 5 more"
};

class BucketLayout {
  public:
    // The table must outlive the layout.
    BucketLayout(const ParameterTable& table, const BucketRules& rules);

    const BucketRules& rules() const { return rules_; }
    int num_units() const { return table_.num_units(); }
    int64_t num_scales() const { return static_cast<int64_t>(table_.scales().size()); }
    const std::vector<Bucket>& all() const { return buckets_; }  // ascending by their first parameter
    const Bucket& operator[](int id) const { return buckets_[static_cast<size_t>(id)]; }
    int size() const { return static_cast<int>(buckets_.size()); }
    int64_t elements() const { return elements_; }  // of the gradient memory
    int64_t padded(const Bucket& bucket) const { return bucket.shard_size * bucket.num_shards; }
    // Elements of this rank's shard that are not padding.
    int64_t valid(const Bucket& bucket) const;
    // What lies in this rank's shard; in_bucket counts from the shard's begin.
    std::vector<Piece> shard_pieces(const Bucket& bucket) const;
    const Bucket& bucket_of(const Parameter& p) const { return (*this)[bucket_of_[p.id]]; }
    // Where a parameter begins in its bucket, in elements; it is contiguous.
    int64_t in_bucket(const Parameter& p) const { return in_bucket_[p.id]; }
    // The matrices of a bucket, ascending. Throws an internal error if it holds anything else, or parts that are cut
    // differently.
    std::vector<Matrix> matrices(const Bucket& bucket) const;
    int64_t heads_per_matrix(int group) const;
    // Does the optimizer of this group need whole matrices?
    bool whole_matrix(int group) const;
    bool bf16_weights(int group) const;
    // Buckets in the order in which backward completes them: from the last declared to the first.
    std::vector<int> backward_order() const;
    std::vector<int> forward_order() const;  // the other way round

  private:
    int group_of(const Parameter& p) const;
    int placement_of(const Parameter& p) const;
    std::vector<std::vector<const Parameter*>> fill() const;
    void add(const std::vector<const Parameter*>& members);

    const ParameterTable& table_;
    const BucketRules rules_;
    std::vector<Bucket> buckets_;
    std::vector<int64_t> in_bucket_;  // by parameter id
    std::vector<int> bucket_of_;
    int64_t elements_ = 0;
};

}  // namespace speedrun
