// Which rank orthogonalises which matrix, where ranks share an optimizer that needs whole ones (Muon): all
// matrices of a group, the longest first, each to the rank with the least to do so far (longest processing
// time first: Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17, 1969: at most
// 4/3 of the best). Owners hold no more than others of what is stored: masters, momentum and gradients are
// cut by elements, and slices of the matrices travel to their owners and back.
//
// A matrix of which ranks of the tensor axis have parts is orthogonalised whole, by one rank of all that have some of it; so
// are matrices of some heads each, all of one stack by one rank, as some of these heads may be on two ranks.
// One that is not cut over that axis is a matrix of each tensor coordinate, whose ranks repeat the work.
#pragma once

#include <vector>

#include "train/comm/communicator.h"
#include "train/sharding/bucket_layout.h"

namespace speedrun {

// The ranks among which a bucket's matrices travel: those that share its state and, where its matrices are cut over the
// tensor axis, those of that axis, which varies fastest.
struct MatrixRanks {
    explicit MatrixRanks(const Bucket& bucket);

    int shards, parts;
    int index;  // of this rank
    int size() const { return shards * parts; }
    int shard_of(int rank) const { return rank / parts; }
    int part_of(int rank) const { return rank % parts; }
};

struct OwnedMatrix {
    Matrix matrix;
    int bucket = 0;
    int owner = 0;  // index among the bucket's MatrixRanks
};

class MatrixOwners {
  public:
    MatrixOwners() = default;
    // Assigns the matrices of these buckets, which hold nothing else.
    MatrixOwners(const BucketLayout& layout, std::vector<const Bucket*> buckets);
    // Assigns those of a group whose optimizer needs whole matrices.
    MatrixOwners(const BucketLayout& layout, int group);

    // In the order of backward: buckets from the last to the first, ascending in each.
    const std::vector<OwnedMatrix>& all() const { return all_; }
    // Multiplications and additions of one orthogonalisation, by rank: by index among the MatrixRanks of cut matrices,
    // if there are any.
    const std::vector<double>& loads() const { return loads_; }
    // The largest load, as a multiple of the least that it could be: the mean, or the largest matrix.
    double imbalance() const;

    // Elements of a matrix that one of the MatrixRanks stores: their begin in its bucket, how many, and their begin
    // where the parts of the matrix lie one after the other.
    struct Span {
        int64_t begin, count, in_parts;
    };
    static Span stored(const Bucket& bucket, const Matrix& matrix, int rank);
    // Bytes that a rank sends, mean over the ranks, to bring a bucket's matrices to their owners, of elements
    // of so many bytes; as many go back.
    double sent_bytes(const Bucket& bucket, int64_t element_bytes) const;

  private:
    void assign(const BucketLayout& layout);

    std::vector<OwnedMatrix> all_;
    std::vector<double> loads_;
    double largest_ = 0;
};

// Work of orthogonalising one matrix by Polar Express: five iterations of products on its smaller side.
double orthogonalisation_flops(int64_t rows, int64_t cols);

}  // namespace speedrun
