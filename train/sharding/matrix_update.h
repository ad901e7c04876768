// The update of a group whose optimizer works on whole matrices (Muon).
//
// Its first function is elementwise and works on what this rank stores; the second needs whole matrices. Each
// bucket's slices therefore go to the matrices' owners (MatrixOwners), in the compute type, as soon as its
// gradient is reduced; when all have come, an owner transforms its matrices, those of one shape together; and
// the slices of the updates go back. One rank owns everything it stores, and sends nothing.
//
// Parts of a matrix that is cut along its columns have their rows apart in the whole one. An owner receives them one after
// the other, each contiguous, so that what travels is few slices, and copies them into the columns; and back.
#pragma once

#include <map>
#include <vector>

#include "train/sharding/group_update.h"
#include "train/sharding/matrix_owners.h"
#include "train/sharding/state_memory.h"

namespace speedrun {

class MatrixUpdate final : public GroupUpdate {
  public:
    MatrixUpdate(std::unique_ptr<const MatrixOptimizer> optimizer, const std::vector<const Bucket*>& members,
                 const UpdateStores& stores);
    bool at_once() const override { return false; }
    void begin(const Bucket& bucket, const StepContext& context) override;
    void compute_updates(const StepContext& context) override;
    void finish(const Bucket& bucket, const StepContext& context) override;
    void reset(Stream& stream) override;
    std::vector<StateShard> state(const Bucket& bucket) const override;

  private:
    // Matrices of one shape that this rank owns, one after the other.
    struct Bank {
        int64_t rows = 0, cols = 0;
        int64_t count = 0;
        int64_t first = 0;             // of its elements in the banks' memory
        std::vector<StateKind> kinds;  // of its matrices
        std::vector<int64_t> state;    // where they begin in the matrices' state, in numbers, by kind
        int64_t numel() const { return rows * cols; }
    };
    // What this rank stores of neighbouring matrices of one shape.
    struct Run {
        int64_t in_shard, in_update, count;
        MatrixOptimizer::Shape matrix;
        std::vector<Tensor> state = {};  // of its elements, by kind
    };
    // A matrix cut along its columns that this rank owns: where its parts [parts, rows, cols] and where the whole matrix
    // [rows, parts cols] begin.
    struct Columns {
        int64_t in_staging, in_banks;
        int64_t parts, rows, cols;
        int64_t numel() const { return parts * rows * cols; }
    };
    // Matrices of one parameter that this rank owns, side by side in their bank.
    struct Owned {
        const Parameter* parameter;
        int64_t number, slot, count;  // of the first matrix, in the stack and in the bank; of matrices
        const Bank* bank;
    };
    struct Member {
        MatrixRanks ranks;
        int64_t stored = 0;  // of its shard, in the updates: elements
        std::vector<Run> runs = {};
        std::vector<Owned> owned = {};
        std::vector<Columns> columns = {};  // all that it owns of the bucket, if that is cut along columns
        Exchange to_owners = {}, from_owners = {};  // between the stored slices' updates and where parts land

        bool exchanges() const { return ranks.size() > 1; }
    };
    enum class Way : uint8_t { to_banks, to_staging };

    void place(const MatrixOwners& owners, const std::vector<const Bucket*>& members);
    void size_banks(const MatrixOwners& owners);
    // The kinds of state that a matrix of this shape has as a whole.
    std::vector<StateKind> matrix_kinds(const MatrixOptimizer::Shape& shape) const;
    void add_matrix(const OwnedMatrix& owned, const Bucket& bucket);
    int64_t take_slot(Member& member, const Matrix& m);
    int64_t land(Member& member, const Matrix& m, int64_t in_banks);
    static void add_run(Member& member, const Run& run);
    void allocate(int64_t stored);
    OptimizerShard shard_of(const Bucket& bucket, const Run& run) const;
    Tensor update_slice(const Member& member, const Run& run) const;  // flat
    // Where the parts of what this rank owns of a bucket arrive, and from where they go back.
    const Buffer& landing(const Member& member) const {
        return member.columns.empty() ? matrices_ : staging_;
    }
    void copy_columns(const Member& member, Way way, Stream& stream) const;
    int64_t batch_of(const Bank& bank) const;   // matrices that are transformed together
    Tensor all_of(const Buffer& buffer) const;  // flat, in the compute type
    // One kind of state of `count` matrices of a bank, from `first` on: [count, values].
    Tensor state_of(const Bank& bank, size_t kind, int64_t first, int64_t count) const;

    const std::unique_ptr<const MatrixOptimizer> optimizer_;
    const UpdateStores stores_;
    StateMemory element_state_;
    std::map<std::pair<int64_t, int64_t>, Bank> banks_;  // by rows and columns
    std::map<int, Member> members_;                      // by bucket id
    int64_t owned_elements_ = 0, matrix_state_numbers_ = 0, staged_elements_ = 0;
    Buffer matrix_state_;          // of the kinds that a matrix has; empty if there are none
    Buffer updates_;               // of what is stored here; empty where nothing is exchanged
    Buffer matrices_, workspace_;  // the banks; of their transform
    Buffer staging_;               // of one bucket at a time; empty where nothing is cut along columns
};

}  // namespace speedrun
