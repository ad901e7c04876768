#include "train/optim/row_muon.h"

#include <algorithm>
#include <cmath>

#include "train/optim/muon.h"
#include "train/optim/schedule.h"

namespace speedrun {

namespace {

void* at(const Tensor& values, int64_t element) {
    return values.data ? static_cast<char*>(values.data) + element * size_of(values.dtype) : nullptr;
}

}  // namespace

// Hands out tensors one after the other; with no buffer it only counts bytes.
class Slices {
  public:
    explicit Slices(const Buffer& buffer) : buffer_(buffer) {}
    Tensor take(DType dtype, std::initializer_list<int64_t> dims) {
        const int64_t offset = bytes_;
        bytes_ += (Tensor(nullptr, dtype, dims).bytes() + 63) / 64 * 64;
        return bytes_ <= buffer_.bytes() ? buffer_.tensor(dtype, dims, offset) : Tensor();
    }
    int64_t bytes() const { return bytes_; }

  private:
    const Buffer& buffer_;
    int64_t bytes_ = 0;
};

RowMuon::RowMuon(const OptimizerGroupConfig& group, const std::vector<const Region*>& members,
                 ParameterStore& parameters, GradientStore& gradients, Reducer& reducer, Runtime& runtime)
    : group_(group),
      parameters_(parameters),
      gradients_(gradients),
      reducer_(reducer),
      runtime_(runtime),
      ranks_(parameters.layout().rules().parts),
      index_(parameters.layout().rules().index) {
    const RegionLayout& layout = parameters.layout();
    int64_t momentum = 0, largest = 0;
    for (const Region* region : members) {
        momentum_offset_[region->id] = momentum;
        momentum += layout.valid(*region) * size_of(DType::f32);
        largest = std::max(largest, region->part);
    }
    for (const MatrixFamily& shape : layout.matrix_families())
        if (shape.group == members.front()->group) families_[{shape.rows, shape.cols}].shape = shape;
    std::map<std::pair<int64_t, int64_t>, int64_t> numbered;
    for (const Region* region : members) {
        int64_t& number = numbered[{region->rows, region->cols}];
        first_number_[region->id] = number;
        number += region->count / (region->rows * region->cols);
    }
    Device& device = runtime.device();
    momentum_ = Buffer(device, "muon momentum", MemoryCategory::optimizer_state, momentum);
    update_ = Buffer(device, "muon update", MemoryCategory::workspace, largest * size_of(runtime.real()));
    const auto place = [&] {  // in what there is of the buffers; returns what they need
        Slices matrices(exchange_), lines(second_moments_);
        for (auto& [key, family] : families_) place_family(family, matrices, lines);
        return std::pair(matrices.bytes(), lines.bytes());
    };
    const auto [bytes, line_bytes] = place();
    exchange_ = Buffer(device, "muon matrices", MemoryCategory::workspace, bytes);
    if (group_.normuon) {
        second_moments_ =
            Buffer(device, "normuon second moment", MemoryCategory::optimizer_state, line_bytes);
    }
    place();
}

void RowMuon::place_family(Family& family, Slices& matrices, Slices& lines) const {
    const MatrixFamily& shape = family.shape;
    const DType real = runtime_.real();
    const int64_t blocks = shape.block * ranks_;
    family.outgoing = matrices.take(real, {blocks});
    family.incoming = matrices.take(real, {blocks});
    family.matrix = blocks == shape.rows * shape.cols
                        ? Tensor(family.incoming.data, real, {1, shape.rows, shape.cols})
                        : matrices.take(real, {1, shape.rows, shape.cols});
    family.workspace = matrices.take(real, {Ops::polar_express_workspace(1, shape.rows, shape.cols)});
    if (group_.normuon)
        family.second_moment =
            lines.take(DType::f32, {shape.banks(ranks_), std::max(shape.rows, shape.cols)});
}

void RowMuon::copy(void* to, const void* from, int64_t elements, Stream& stream) {
    if (runtime_.device().dry() || elements == 0) return;
    runtime_.device().copy(to, from, elements * size_of(runtime_.real()), stream);
}

void RowMuon::step(const Region& region, const StepContext& context) {
    Family& family = families_.at({region.rows, region.cols});
    const RegionLayout& layout = parameters_.layout();
    const int64_t count = layout.valid(region), matrix = region.rows * region.cols;
    const Tensor update = update_.tensor(runtime_.real(), {count});
    if (family.done != first_number_.at(region.id))
        throw_internal("{}: stepped out of order, matrix {} of its shape", region.name(), family.done);
    if (count > 0) {
        const MuonMomentumOptions options{
            .momentum = static_cast<float>(muon_momentum_at(group_, context.step)),
            .nesterov = group_.nesterov};
        runtime_.ops().muon_momentum(update,
                                     momentum_.tensor(DType::f32, {count}, momentum_offset_.at(region.id)),
                                     gradients_.part(region), context.grad_scale, options, *context.stream);
    }
    for (int64_t first = 0; first < region.count; first += matrix) {
        const auto [begin, elements] = layout.rows_in_part(region, first, index_);
        const int64_t in_part = elements > 0 ? begin - index_ * region.part : 0;
        const auto owner = static_cast<int64_t>(family.bank.size());
        copy(at(family.outgoing, owner * family.shape.block), at(update, in_part), elements, *context.stream);
        family.bank.push_back({&region, first, in_part, elements, context.grad_scale});
        ++family.done;
        const bool last = family.done == family.shape.count;
        if (static_cast<int>(family.bank.size()) == ranks_ || last) finish_bank(family, context);
        if (last) family.done = 0;
    }
}

Tensor RowMuon::momentum_of(const Region& region) const {
    return momentum_.tensor(DType::f32, {parameters_.layout().valid(region)}, momentum_offset_.at(region.id));
}

std::vector<StatePart> RowMuon::state(const Region& region) const {
    const std::vector<StateKind> kinds = Muon::state_kinds(group_, region.rows, region.cols);
    std::vector<StatePart> parts = {{kinds[0], momentum_of(region)}};
    if (!group_.normuon) return parts;
    const Piece& piece = region.pieces.front();  // the only one
    const Family& family = families_.at({region.rows, region.cols});
    const int64_t matrix = region.rows * region.cols;
    for (int64_t m = 0; m < region.count / matrix; ++m) {
        const int64_t number = first_number_.at(region.id) + m;
        if (number % ranks_ != index_) continue;
        const Tensor lines = family.second_moment.row_slice(number / ranks_, 1);
        parts.push_back(
            {kinds[1], lines.reshaped({lines.numel()}), (piece.in_parameter / matrix + m) * kinds[1].values});
    }
    return parts;
}

void RowMuon::assemble(const Family& family, const Member& own, bool into_matrix, Stream& stream) {
    if (family.matrix.data == family.incoming.data) return;  // the blocks are the matrix
    for (int rank = 0; rank < ranks_; ++rank) {
        const auto [begin, elements] = parameters_.layout().rows_in_part(*own.region, own.first, rank);
        void* const block = at(family.incoming, rank * family.shape.block);
        void* const rows = at(family.matrix, begin - own.first);
        into_matrix ? copy(rows, block, elements, stream) : copy(block, rows, elements, stream);
    }
}

void RowMuon::finish_bank(Family& family, const StepContext& context) {
    Ops& ops = runtime_.ops();
    Stream& stream = *context.stream;
    reducer_.exchange(family.incoming, family.outgoing, stream);
    if (index_ < static_cast<int>(family.bank.size())) {
        const Member& own = family.bank[static_cast<size_t>(index_)];
        assemble(family, own, true, stream);
        ops.polar_express(family.matrix, family.workspace, stream);
        if (group_.normuon) {
            const int64_t bank = (family.done - 1) / ranks_;
            ops.normuon_scale(family.matrix, family.second_moment.row_slice(bank, 1), own.grad_scale,
                              {.beta2 = static_cast<float>(group_.beta2)}, stream);
        }
        assemble(family, own, false, stream);
    }
    reducer_.exchange(family.outgoing, family.incoming, stream);
    const double shape_scale = std::sqrt(
        std::max(1.0, static_cast<double>(family.shape.rows) / static_cast<double>(family.shape.cols)));
    const double lr = group_.lr * context.lr_factor;
    const MuonApplyOptions options{.learning_rate = static_cast<float>(lr * shape_scale),
                                   .weight_decay = static_cast<float>(group_.weight_decay / shape_scale),
                                   .cautious = group_.cautious};
    for (size_t owner = 0; owner < family.bank.size(); ++owner) {
        const Member& member = family.bank[owner];
        if (member.elements == 0) continue;
        const auto slice = [&](const Tensor& t, int64_t begin) {
            return Tensor(at(t, begin), t.dtype, {member.elements});
        };
        ops.muon_apply(slice(parameters_.compute_part(*member.region), member.in_part),
                       slice(parameters_.master_part(*member.region), member.in_part),
                       slice(family.outgoing, static_cast<int64_t>(owner) * family.shape.block),
                       member.grad_scale, options, stream);
    }
    family.bank.clear();
}

void RowMuon::reset(Stream& stream) {
    for (const Buffer* state : {&momentum_, &second_moments_}) {
        const int64_t count = state->bytes() / size_of(DType::f32);
        if (count > 0) runtime_.ops().fill(state->tensor(DType::f32, {count}), 0.0f, stream);
    }
}

}  // namespace speedrun
