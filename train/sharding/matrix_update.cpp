#include "train/sharding/matrix_update.h"

#include <algorithm>

#include "train/optim/state.h"

namespace speedrun {

MatrixUpdate::MatrixUpdate(std::unique_ptr<const MatrixOptimizer> optimizer,
                           const std::vector<const Bucket*>& members, const UpdateStores& stores)
    : optimizer_(std::move(optimizer)),
      stores_(stores),
      element_state_(optimizer_->state_kinds(0, 0), members, stores.parameters.layout(),
                     stores.runtime.device()) {
    place(MatrixOwners(stores.parameters.layout(), members), members);
}

// Assigns bank slots to matrices in the order of backward. Stored slices follow the order of buckets.
void MatrixUpdate::place(const MatrixOwners& owners, const std::vector<const Bucket*>& members) {
    const BucketLayout& layout = stores_.parameters.layout();
    int64_t stored = 0;
    for (const Bucket* bucket : members) {
        const Member& member =
            members_.insert({bucket->id, {.ranks = MatrixRanks(*bucket), .stored = stored}}).first->second;
        if (member.exchanges()) stored += bucket->shard_size;
    }
    size_banks(owners);
    for (const OwnedMatrix& owned : owners.all()) add_matrix(owned, layout[owned.bucket]);
    for (auto& [id, member] : members_) {
        member.from_owners = {member.to_owners.receives, member.to_owners.sends};
        for (Run& run : member.runs)
            for (const Tensor& state : element_state_.of(layout[id]))
                run.state.push_back(elements(state, run.in_shard));
    }
    allocate(stored);
}

std::vector<StateKind> MatrixUpdate::matrix_kinds(const MatrixOptimizer::Shape& shape) const {
    std::vector<StateKind> kinds = optimizer_->state_kinds(shape.rows, shape.cols);
    std::erase_if(kinds, [](const StateKind& kind) { return kind.per_element(); });
    return kinds;
}

// Sizes each shape's bank and the state of its matrices.
void MatrixUpdate::size_banks(const MatrixOwners& owners) {
    std::map<std::pair<int64_t, int64_t>, int64_t> counts;
    for (const OwnedMatrix& owned : owners.all())
        if (owned.owner == members_.at(owned.bucket).ranks.index)
            counts[{owned.matrix.own_rows(), owned.matrix.whole_cols()}] += owned.matrix.count;
    for (const auto& [shape, count] : counts) {
        const auto [rows, cols] = shape;
        Bank& bank = banks_[shape];
        bank.rows = rows;
        bank.cols = cols;
        bank.first = owned_elements_;
        owned_elements_ += (count * rows * cols + 31) / 32 * 32;  // 64 bytes of bf16
        for (const StateKind& kind : matrix_kinds({rows, cols})) {
            bank.kinds.push_back(kind);
            bank.state.push_back(matrix_state_numbers_);
            matrix_state_numbers_ += count * kind.values;
        }
    }
}

// Adds this rank's slice of a matrix, and a slot in a bank if this rank is the owner.
void MatrixUpdate::add_matrix(const OwnedMatrix& owned, const Bucket& bucket) {
    const Matrix& m = owned.matrix;
    Member& member = members_.at(bucket.id);
    const bool owner = owned.owner == member.ranks.index;
    const int64_t in_banks = owner ? take_slot(member, m) : 0;
    const Range own = MatrixOwners::stored(bucket, m, member.ranks.index);
    const int64_t in_shard = m.first + own.begin - bucket.index * bucket.shard_size;
    const int64_t in_update = member.exchanges() ? member.stored + in_shard : in_banks;
    if (own.count > 0)
        add_run(member, {{in_shard, own.count}, in_update, index_of({m.own_rows(), m.whole_cols()})});
    if (!member.exchanges()) return;
    if (own.count > 0) member.to_owners.sends.push_back({owned.owner, in_update, own.count});
    if (!owner) return;
    const int64_t landing = receive_offset(member, m, in_banks);
    for (int rank = 0; rank < member.ranks.size(); ++rank) {
        const Range theirs = MatrixOwners::stored(bucket, m, rank);
        const int64_t part = landing + member.ranks.part_of(rank) * m.numel();
        if (theirs.count > 0) member.to_owners.receives.push_back({rank, part + theirs.begin, theirs.count});
    }
}

// Returns the offset at which the parts of a matrix are received, consecutively: its slot, or staging memory if the
// parts are columns of the matrix.
int64_t MatrixUpdate::receive_offset(Member& member, const Matrix& m, int64_t in_banks) {
    if (!m.columns_cut()) return in_banks;
    const int64_t in_staging =
        member.columns.empty() ? 0 : member.columns.back().in_staging + member.columns.back().numel();
    member.columns.push_back({in_staging, in_banks, m.cut().parts, m.rows, m.cols});
    staged_elements_ = std::max(staged_elements_, in_staging + m.whole_numel());
    return in_staging;
}

// Reserves the next slots of the shape's bank. Returns their offset in the banks' memory.
int64_t MatrixUpdate::take_slot(Member& member, const Matrix& m) {
    Bank& bank = banks_.at({m.own_rows(), m.whole_cols()});
    const int64_t slot = bank.count;
    bank.count += m.count;
    Owned* const last = member.owned.empty() ? nullptr : &member.owned.back();
    if (last && last->bank == &bank && last->parameter == m.parameter &&
        last->number + last->count == m.number) {
        last->count += m.count;
    } else {
        member.owned.push_back({m.parameter, m.number, slot, m.count, &bank});
    }
    return bank.first + slot * bank.numel();
}

int64_t MatrixUpdate::index_of(const MatrixOptimizer::Shape& shape) {
    const auto known = std::find_if(shapes_.begin(), shapes_.end(), [&](const MatrixOptimizer::Shape& other) {
        return other.rows == shape.rows && other.cols == shape.cols;
    });
    const int64_t index = known - shapes_.begin();
    if (known == shapes_.end()) shapes_.push_back(shape);
    return index;
}

void MatrixUpdate::add_run(Member& member, const Run& run) {
    if (!member.runs.empty()) {
        Run& last = member.runs.back();
        if (last.shape == run.shape && last.in_shard.end() == run.in_shard.begin &&
            last.in_update + last.in_shard.count == run.in_update) {
            last.in_shard.count += run.in_shard.count;
            return;
        }
    }
    member.runs.push_back(run);
}

void MatrixUpdate::allocate(int64_t stored) {
    Device& device = stores_.runtime.device();
    const int64_t dtype_bytes = size_of(stores_.runtime.compute_dtype());
    int64_t workspace = 0;
    for (const std::vector<Part>& batch : batches()) workspace = std::max(workspace, workspace_of(batch));
    updates_ = Buffer(device, "updates of matrices", MemoryCategory::workspace, stored * dtype_bytes);
    matrices_ = Buffer(device, "whole matrices", MemoryCategory::workspace, owned_elements_ * dtype_bytes);
    if (staged_elements_ > 0)
        staging_ =
            Buffer(device, "parts of matrices", MemoryCategory::workspace, staged_elements_ * dtype_bytes);
    workspace_ = Buffer(device, "transform of matrices", MemoryCategory::workspace, workspace * dtype_bytes);
    if (matrix_state_numbers_ > 0) {
        matrix_state_ = Buffer(device, "state of whole matrices", MemoryCategory::optimizer_state,
                               matrix_state_numbers_ * size_of(DType::f32));
    }
}

std::vector<std::vector<MatrixUpdate::Part>> MatrixUpdate::batches() const {
    std::vector<std::vector<Part>> batches;
    int64_t left = 0;  // elements until the last batch is full
    for (const auto& [shape, bank] : banks_) {
        for (int64_t first = 0; first < bank.count;) {
            if (left < bank.numel()) {
                batches.emplace_back();
                left = std::max(stores_.max_batched, bank.numel());
            }
            const int64_t count = std::min(left / bank.numel(), bank.count - first);
            batches.back().push_back({&bank, first, count});
            left -= count * bank.numel();
            first += count;
        }
    }
    return batches;
}

int64_t MatrixUpdate::workspace_of(const std::vector<Part>& batch) const {
    int64_t elements = 0;
    for (const Part& part : batch)
        elements += optimizer_->workspace(part.count, part.bank->rows, part.bank->cols);
    return elements;
}

std::vector<MatrixOptimizer::Slice> MatrixUpdate::slices_of(Buckets buckets) const {
    std::vector<MatrixOptimizer::Slice> slices;
    for (const Bucket* bucket : buckets) {
        const Member& member = members_.at(bucket->id);
        const Tensor updates = all_of(member.exchanges() ? updates_ : matrices_);
        for (const Run& run : member.runs)
            slices.push_back(
                {.update = elements(updates, {run.in_update, run.in_shard.count}),
                 .shard = {.compute = elements(stores_.parameters.compute_shard(*bucket), run.in_shard),
                           .master = elements(stores_.parameters.master_shard(*bucket), run.in_shard),
                           .gradient = elements(stores_.gradients.shard(*bucket), run.in_shard),
                           .state = run.state},
                 .shape = run.shape});
    }
    return slices;
}

Tensor MatrixUpdate::all_of(const Buffer& buffer) const {
    const DType compute_dtype = stores_.runtime.compute_dtype();
    return buffer.tensor(compute_dtype, {buffer.bytes() / size_of(compute_dtype)});
}

Tensor MatrixUpdate::state_of(const Bank& bank, size_t kind, int64_t first, int64_t count) const {
    const int64_t values = bank.kinds[kind].values;
    return matrix_state_.tensor(DType::f32, {count, values},
                                (bank.state[kind] + first * values) * size_of(DType::f32));
}

std::vector<float> MatrixUpdate::numbers(const StepContext& context) const {
    return optimizer_->numbers(context, shapes_);
}

void MatrixUpdate::begin(Buckets buckets, const StepContext& context) {
    if (const auto slices = slices_of(buckets); !slices.empty()) optimizer_->propose(slices, context);
    for (const Bucket* bucket : buckets) {
        const Member& member = members_.at(bucket->id);
        if (!member.exchanges()) continue;
        stores_.reducer.exchange(*bucket, all_of(landing(member)), all_of(updates_), member.to_owners,
                                 context.stream);
        copy_columns(member, CopyDirection::to_banks, context.stream);
    }
}

void MatrixUpdate::copy_columns(const Member& member, CopyDirection direction, Stream& stream) const {
    for (const Columns& matrix : member.columns) {
        const Tensor whole = elements(all_of(matrices_), {matrix.in_banks, matrix.numel()})
                                 .reshaped({matrix.rows, matrix.parts * matrix.cols}),
                     parts = elements(all_of(staging_), {matrix.in_staging, matrix.numel()})
                                 .reshaped({matrix.parts * matrix.rows, matrix.cols});
        for (int64_t p = 0; p < matrix.parts; ++p) {
            const Tensor columns = whole.column_slice(p * matrix.cols, matrix.cols),
                         part = parts.row_slice(p * matrix.rows, matrix.rows);
            const bool to_banks = direction == CopyDirection::to_banks;
            stores_.runtime.ops().weighted_sum_forward({.y = to_banks ? columns : part,
                                                        .terms = {{{.source = to_banks ? part : columns}}},
                                                        .sequence_length = matrix.rows},
                                                       stream);
        }
    }
}

void MatrixUpdate::compute_updates(const StepContext& context) {
    const DType compute_dtype = stores_.runtime.compute_dtype();
    for (const std::vector<Part>& parts : batches()) {
        std::vector<std::vector<Tensor>> states;
        std::vector<MatrixBatch> matrices;
        for (const auto& [bank, first, count] : parts) {
            std::vector<Tensor>& state = states.emplace_back();
            for (size_t kind = 0; kind < bank->kinds.size(); ++kind)
                state.push_back(state_of(*bank, kind, first, count));
            matrices.push_back(
                {.updates = matrices_.tensor(compute_dtype, {count, bank->rows, bank->cols},
                                             (bank->first + first * bank->numel()) * size_of(compute_dtype)),
                 .state = {}});
        }
        for (size_t i = 0; i < matrices.size(); ++i) matrices[i].state = states[i];
        optimizer_->transform(matrices, workspace_.tensor(compute_dtype, {workspace_of(parts)}), context);
    }
}

void MatrixUpdate::finish(Buckets buckets, const StepContext& context) {
    for (const Bucket* bucket : buckets) {
        const Member& member = members_.at(bucket->id);
        if (!member.exchanges()) continue;
        copy_columns(member, CopyDirection::to_staging, context.stream);
        stores_.reducer.exchange(*bucket, all_of(updates_), all_of(landing(member)), member.from_owners,
                                 context.stream);
    }
    if (const auto slices = slices_of(buckets); !slices.empty()) optimizer_->apply(slices, context);
}

std::vector<StateShard> MatrixUpdate::state(const Bucket& bucket) const {
    std::vector<StateShard> shards = element_state_.shards(bucket);
    for (const Owned& owned : members_.at(bucket.id).owned) {
        std::vector<StateTensor> tensors = state_tensors(*optimizer_, *owned.parameter);
        std::erase_if(tensors, [](const StateTensor& tensor) { return tensor.kind.per_element(); });
        for (size_t k = 0; k < tensors.size(); ++k) {
            const Tensor values = state_of(*owned.bank, k, owned.slot, owned.count);
            shards.push_back({owned.bank->kinds[k], values.reshaped({values.numel()}), owned.parameter,
                              tensors[k].offsets[static_cast<size_t>(owned.number)], tensors[k].shape});
        }
    }
    return shards;
}

void MatrixUpdate::reset(Stream& stream) {
    Ops& ops = stores_.runtime.ops();
    element_state_.reset(ops, stream);
    fill_with_zeros(matrix_state_, ops, stream);
}

}  // namespace speedrun
