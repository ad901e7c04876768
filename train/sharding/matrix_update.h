// Update of a group with an optimizer of whole matrices (Muon).
//
// The optimizer's first function is elementwise and runs on stored slices; the second needs whole matrices. After a
// bucket's gradient is reduced, its slices are sent to the matrices' owners (MatrixOwners) in the compute dtype. When
// all have arrived, each owner transforms its matrices, batched by shape. Then the slices of the updates are sent back.
// A single rank owns everything and sends nothing.
//
// A column part of a matrix is strided in the whole matrix. The owner receives parts contiguously, in few slices, and
// copies them into the columns; and back.
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
    bool is_single_phase() const override { return false; }
    std::vector<float> numbers(const StepContext& context) const override;
    bool replays() const override { return optimizer_->replays(); }
    void begin(Buckets buckets, const StepContext& context) override;
    void compute_updates(const StepContext& context) override;
    void finish(Buckets buckets, const StepContext& context) override;
    void reset(Stream& stream) override;
    std::vector<StateShard> state(const Bucket& bucket) const override;

  private:
    // Matrices of one shape that this rank owns, contiguous.
    struct Bank {
        int64_t rows = 0, cols = 0;
        int64_t count = 0;
        int64_t first = 0;             // offset of its elements in the banks' memory
        std::vector<StateKind> kinds;  // state kinds of its matrices
        std::vector<int64_t> state;    // offsets in the matrices' state, in elements; index: kind
        int64_t numel() const { return rows * cols; }
    };
    // This rank's slice of consecutive matrices of one shape.
    struct Run {
        Range in_shard;
        int64_t in_update;               // offset
        int64_t shape;                   // index in shapes_
        std::vector<Tensor> state = {};  // state of its elements; index: kind
    };
    // A matrix with split columns that this rank owns: offsets of its parts [parts, rows, cols] and of the whole matrix
    // [rows, parts cols].
    struct Columns {
        int64_t in_staging, in_banks;
        int64_t parts, rows, cols;
        int64_t numel() const { return parts * rows * cols; }
    };
    // Consecutive matrices of one parameter that this rank owns.
    struct Owned {
        const Parameter* parameter;
        int64_t number, slot, count;  // index of the first in the stack and in the bank; number of matrices
        const Bank* bank;
    };
    struct Member {
        MatrixRanks ranks;
        int64_t stored = 0;  // offset of its shard in updates_, elements
        std::vector<Run> runs = {};
        std::vector<Owned> owned = {};
        std::vector<Columns> columns = {};          // all owned matrices of the bucket, if columns are split
        Exchange to_owners = {}, from_owners = {};  // slices of updates_ and landing()

        bool exchanges() const { return ranks.size() > 1; }
    };
    enum class CopyDirection : uint8_t { to_banks, to_staging };

    void place(const MatrixOwners& owners, const std::vector<const Bucket*>& members);
    void size_banks(const MatrixOwners& owners);
    // Returns the per-matrix state kinds of a matrix of this shape.
    std::vector<StateKind> matrix_kinds(const MatrixOptimizer::Shape& shape) const;
    void add_matrix(const OwnedMatrix& owned, const Bucket& bucket);
    int64_t take_slot(Member& member, const Matrix& m);
    int64_t receive_offset(Member& member, const Matrix& m, int64_t in_banks);
    static void add_run(Member& member, const Run& run);
    void allocate(int64_t stored);
    int64_t index_of(const MatrixOptimizer::Shape& shape);  // in shapes_; adds it if it is new
    // Returns the runs of these buckets.
    std::vector<MatrixOptimizer::Slice> slices_of(Buckets buckets) const;
    // Matrices of a bank, from `first`.
    struct Part {
        const Bank* bank;
        int64_t first, count;
    };
    // Returns all matrices, cut into lists that are transformed together.
    std::vector<std::vector<Part>> batches() const;
    int64_t workspace_of(const std::vector<Part>& batch) const;
    // Buffer that receives the parts of owned matrices, and from which updates are sent back.
    const Buffer& landing(const Member& member) const {
        return member.columns.empty() ? matrices_ : staging_;
    }
    void copy_columns(const Member& member, CopyDirection direction, Stream& stream) const;
    Tensor all_of(const Buffer& buffer) const;  // flat, in the compute dtype
    // Returns one kind of state of `count` matrices of a bank, from `first`: [count, values].
    Tensor state_of(const Bank& bank, size_t kind, int64_t first, int64_t count) const;

    const std::unique_ptr<const MatrixOptimizer> optimizer_;
    const UpdateStores stores_;
    StateMemory element_state_;
    std::map<std::pair<int64_t, int64_t>, Bank> banks_;  // key: rows and columns
    std::map<int, Member> members_;                      // key: bucket id
    std::vector<MatrixOptimizer::Shape> shapes_;         // shapes of all runs
    int64_t owned_elements_ = 0, matrix_state_numbers_ = 0, staged_elements_ = 0;
    Buffer matrix_state_;          // per-matrix state; empty if there is none
    Buffer updates_;               // updates of stored slices; empty without exchange
    Buffer matrices_, workspace_;  // banks; scratch of their transform
    Buffer staging_;               // one bucket at a time; empty without split columns
};

}  // namespace speedrun
