// Muon: momentum, then the orthogonal polar factor of each matrix as the update (Jordan et al. 2024; polar
// factor by Polar Express, Amsel et al. 2025). Stacked parameters (q, k, v) are orthogonalised matrix by
// matrix. With `normuon` the lines of the factor are then scaled by their second moments (Li et al. 2025;
// equations in kernels/ops/optimizer.h), which keeps its norm. The step is lr · √max(1, rows/cols), with
// decoupled weight decay.
//
// Momentum is elementwise and works on what this rank stores; the polar factor needs whole matrices. So each
// bucket's slices go to the matrices' owners (MatrixOwners), in the compute type, as soon as its gradient is
// reduced; when all have come, an owner orthogonalises its matrices, those of one shape together; and the
// slices of the factors go back. One rank owns everything it stores, and sends nothing.
#pragma once

#include <map>
#include <vector>

#include "train/sharding/matrix_owners.h"
#include "train/sharding/optimizer.h"
#include "train/sharding/reducer.h"

namespace speedrun {

class Muon final : public Optimizer {
  public:
    Muon(const OptimizerGroupConfig& group, const std::vector<const Bucket*>& members,
         ParameterStore& parameters, GradientStore& gradients, Reducer& reducer, Runtime& runtime);
    bool at_once() const override { return false; }
    void begin(const Bucket& bucket, const StepContext& context) override;
    void compute_updates(const StepContext& context) override;
    void finish(const Bucket& bucket, const StepContext& context) override;
    void reset(Stream& stream) override;
    std::vector<StateShard> state(const Bucket& bucket) const override;
    static std::vector<StateKind> state_kinds(const OptimizerGroupConfig& group, int64_t rows, int64_t cols);

  private:
    // Matrices of one shape that this rank owns, one after the other.
    struct Bank {
        int64_t rows = 0, cols = 0;
        int64_t count = 0;
        int64_t first = 0;          // of its elements in the banks' memory
        int64_t second_moment = 0;  // bytes, in that memory
        int64_t numel() const { return rows * cols; }
    };
    // What this rank stores of neighbouring matrices of one shape.
    struct Run {
        int64_t in_shard, in_update, count;
        int64_t rows, cols;
    };
    // Matrices of one parameter that this rank owns, side by side in their bank.
    struct Owned {
        const Parameter* parameter;
        int64_t number, slot, count;  // of the first matrix, in the stack and in the bank; of matrices
        const Bank* bank;
    };
    struct Member {
        int64_t momentum = 0;  // bytes, in that memory
        int64_t stored = 0;    // of its shard, in the updates: elements
        std::vector<Run> runs;
        std::vector<Owned> owned;
        Exchange to_owners, from_owners;  // between the stored slices' updates and the banks
    };

    void place(const MatrixOwners& owners, const std::vector<const Bucket*>& members);
    int64_t size_banks(const MatrixOwners& owners, int index);
    void add_matrix(const OwnedMatrix& owned, const Bucket& bucket);
    int64_t take_slot(Member& member, const Matrix& m);
    static void add_run(Member& member, const Run& run);
    void allocate(int64_t momentum, int64_t stored);
    Tensor momentum_of(const Bucket& bucket) const;  // flat, this rank's shard
    Tensor update_slice(const Run& run) const;       // flat
    Tensor all_of(const Buffer& buffer) const;       // flat, in the compute type
    Tensor second_moment_of(const Bank& bank, int64_t first, int64_t count) const;  // (count, lines)

    const OptimizerGroupConfig group_;
    ParameterStore& parameters_;
    GradientStore& gradients_;
    Reducer& reducer_;
    Runtime& runtime_;
    const bool exchanges_;
    std::map<std::pair<int64_t, int64_t>, Bank> banks_;  // by rows and columns
    std::map<int, Member> members_;                      // by bucket id
    int64_t owned_elements_ = 0;
    Buffer momentum_, second_moment_;  // the latter with normuon only
    Buffer updates_;                   // of what is stored here; empty where nothing is exchanged
    Buffer matrices_, workspace_;      // the banks; of polar_express
};

}  // namespace speedrun
