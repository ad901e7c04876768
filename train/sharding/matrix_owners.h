// Which rank orthogonalises which matrix, where ranks share an optimizer that needs whole ones (Muon): all
// matrices of a group, the longest first, each to the rank with the least to do so far (longest processing
// time first: Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17, 1969: at most
// 4/3 of the best). Owners hold no more than others of what is stored: masters, momentum and gradients are
// cut by elements, and slices of the matrices travel to their owners and back.
#pragma once

#include <vector>

#include "train/comm/communicator.h"
#include "train/sharding/bucket_layout.h"

namespace speedrun {

struct OwnedMatrix {
    Matrix matrix;
    int bucket = 0;
    int owner = 0;  // index among the ranks that share the group's state
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
    // Multiplications and additions of one orthogonalisation, by rank.
    const std::vector<double>& loads() const { return loads_; }
    // The largest load, as a multiple of the least that it could be: the mean, or the largest matrix.
    double imbalance() const;

    // Elements of a matrix that rank `index` stores: their begin in the bucket, and how many.
    struct Span {
        int64_t begin, count;
    };
    static Span stored(const Bucket& bucket, const Matrix& matrix, int index);
    // Bytes that a rank sends, mean over the ranks, to bring a bucket's matrices to their owners, of elements
    // of so many bytes; as many go back.
    double sent_bytes(const Bucket& bucket, int64_t element_bytes) const;

  private:
    void assign();

    std::vector<OwnedMatrix> all_;
    std::vector<double> loads_;
    double largest_ = 0;
};

// Work of orthogonalising one matrix by Polar Express: five iterations of products on its smaller side.
double orthogonalisation_flops(int64_t rows, int64_t cols);

}  // namespace speedrun
