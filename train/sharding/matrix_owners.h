// Assigns each matrix of a group to the rank that orthogonalises it, if ranks share an optimizer of whole matrices
// (Muon). Largest matrices first, each to the rank with the least work so far (longest processing time first: Graham,
// "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17, 1969: at most 4/3 of the optimum). Owners store
// no more than others: masters, momentum and gradients are cut by elements. Slices of matrices are sent to the owners
// and back.
//
// A matrix split over the tensor axis is orthogonalised whole, by one of the ranks that hold parts. The same holds for
// matrices of a few heads each: one rank owns a whole stack, because a matrix's heads may be on two ranks. A matrix
// that is not split over the tensor axis is replicated, and each tensor coordinate repeats the work.
#pragma once

#include <vector>

#include "train/comm/communicator.h"
#include "train/sharding/bucket_layout.h"

namespace speedrun {

// Ranks that exchange a bucket's matrices: the ranks that share its state and, if its matrices are split over the tensor
// axis, the ranks of that axis, which varies fastest.
struct MatrixRanks {
    explicit MatrixRanks(const Bucket& bucket);

    int shards, parts;
    int index;  // index of this rank
    int size() const { return shards * parts; }
    int shard_of(int rank) const { return rank / parts; }
    int part_of(int rank) const { return rank % parts; }
};

struct OwnedMatrix {
    Matrix matrix;
    int bucket = 0;
    int owner = 0;  // index in the bucket's MatrixRanks
};

class MatrixOwners {
  public:
    MatrixOwners() = default;
    // Assigns the matrices of these buckets, which must hold nothing else.
    MatrixOwners(const BucketLayout& layout, std::vector<const Bucket*> buckets);
    // Assigns the matrices of a group with an optimizer of whole matrices.
    MatrixOwners(const BucketLayout& layout, int group);

    // In the order of backward: last bucket first, ascending within a bucket.
    const std::vector<OwnedMatrix>& all() const { return all_; }
    // FLOPs of orthogonalisation per rank; index: among the MatrixRanks, of split matrices if there are any.
    const std::vector<double>& loads() const { return loads_; }
    // Returns the largest load divided by its lower bound, the mean or the largest matrix.
    double imbalance() const;

    // Returns the elements of a rank's part of a matrix that one of the MatrixRanks stores.
    static Range stored(const Bucket& bucket, const Matrix& matrix, int rank);
    // Returns the bytes that a rank sends, mean over ranks, to move a bucket's matrices to their owners. The way back
    // needs the same.
    double sent_bytes(const Bucket& bucket, int64_t element_bytes) const;

  private:
    void assign(const BucketLayout& layout);

    std::vector<OwnedMatrix> all_;
    std::vector<double> loads_;
    double largest_ = 0;
};

// FLOPs of orthogonalising one matrix by Polar Express: five iterations of matmuls on its smaller side.
double orthogonalisation_flops(int64_t rows, int64_t cols);

}  // namespace speedrun
