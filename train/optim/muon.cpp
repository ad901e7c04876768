#include "train/optim/muon.h"

#include <algorithm>
#include <cmath>

#include "train/optim/lr_schedule.h"

namespace speedrun {

namespace {

// Matrices that are orthogonalised in one go are at most so large together: it bounds the workspace.
constexpr int64_t kBatchElements = 32 << 20;

int64_t lines_of(int64_t rows, int64_t cols) {  // second moments of a matrix
    return std::max(rows, cols);
}

Tensor slice(const Tensor& flat, int64_t begin, int64_t count) {
    char* const data = static_cast<char*>(flat.data);
    return {data ? data + begin * size_of(flat.dtype) : nullptr, flat.dtype, {count}};
}

int64_t batch_of(int64_t count, int64_t numel) {
    return std::clamp<int64_t>(kBatchElements / numel, 1, std::max<int64_t>(1, count));
}

}  // namespace

Muon::Muon(const OptimizerGroupConfig& group, const std::vector<const Bucket*>& members,
           ParameterStore& parameters, GradientStore& gradients, Reducer& reducer, Runtime& runtime)
    : group_(group),
      parameters_(parameters),
      gradients_(gradients),
      reducer_(reducer),
      runtime_(runtime),
      exchanges_(members.front()->num_shards > 1) {
    place(MatrixOwners(parameters.layout(), members), members);
}

// Slots of the banks go to the matrices in the order of backward; what is stored follows the buckets.
void Muon::place(const MatrixOwners& owners, const std::vector<const Bucket*>& members) {
    const BucketLayout& layout = parameters_.layout();
    const int index = members.front()->index;
    const int64_t line_bytes = size_banks(owners, index);
    int64_t momentum = 0, stored = 0;
    for (const Bucket* bucket : members) {
        Member& member = members_[bucket->id];
        member.momentum = momentum;
        member.stored = stored;
        momentum += layout.valid(*bucket) * size_of(DType::f32);
        stored += bucket->shard_size;
    }
    for (const OwnedMatrix& owned : owners.all()) add_matrix(owned, layout[owned.bucket]);
    for (auto& [id, member] : members_)
        member.from_owners = {member.to_owners.receives, member.to_owners.sends};
    allocate(momentum, exchanges_ ? stored : 0);
    if (group_.normuon) {
        second_moment_ =
            Buffer(runtime_.device(), "normuon second moment", MemoryCategory::optimizer_state, line_bytes);
    }
}

// Where each shape's bank lies; the bytes of the second moments.
int64_t Muon::size_banks(const MatrixOwners& owners, int index) {
    std::map<std::pair<int64_t, int64_t>, int64_t> counts;
    for (const OwnedMatrix& owned : owners.all())
        if (owned.owner == index) ++counts[{owned.matrix.rows, owned.matrix.cols}];
    int64_t line_bytes = 0;
    for (const auto& [shape, count] : counts) {
        const auto [rows, cols] = shape;
        banks_[shape] = {.rows = rows, .cols = cols, .first = owned_elements_, .second_moment = line_bytes};
        owned_elements_ += (count * rows * cols + 31) / 32 * 32;  // 64 bytes of bf16
        line_bytes += count * lines_of(rows, cols) * size_of(DType::f32);
    }
    return line_bytes;
}

// What this rank stores of a matrix, and its place in a bank if it is the owner.
void Muon::add_matrix(const OwnedMatrix& owned, const Bucket& bucket) {
    const Matrix& m = owned.matrix;
    Member& member = members_.at(bucket.id);
    const bool owner = owned.owner == bucket.index;
    const int64_t in_banks = owner ? take_slot(member, m) : 0;
    const auto own = MatrixOwners::stored(bucket, m, bucket.index);
    const int64_t in_shard = own.begin - bucket.index * bucket.shard_size;
    const int64_t in_update = exchanges_ ? member.stored + in_shard : in_banks;
    if (own.count > 0) add_run(member, {in_shard, in_update, own.count, m.rows, m.cols});
    if (!exchanges_) return;
    if (own.count > 0) member.to_owners.sends.push_back({owned.owner, in_update, own.count});
    for (int rank = 0; owner && rank < bucket.num_shards; ++rank) {
        const auto theirs = MatrixOwners::stored(bucket, m, rank);
        if (theirs.count > 0)
            member.to_owners.receives.push_back({rank, in_banks + theirs.begin - m.first, theirs.count});
    }
}

// The next slot of its shape's bank: where it begins in the banks' memory.
int64_t Muon::take_slot(Member& member, const Matrix& m) {
    Bank& bank = banks_.at({m.rows, m.cols});
    const int64_t slot = bank.count++;
    Owned* const last = member.owned.empty() ? nullptr : &member.owned.back();
    if (last && last->parameter == m.parameter && last->number + last->count == m.number) {
        ++last->count;
    } else {
        member.owned.push_back({m.parameter, m.number, slot, 1, &bank});
    }
    return bank.first + slot * bank.numel();
}

void Muon::add_run(Member& member, const Run& run) {
    if (!member.runs.empty()) {
        Run& last = member.runs.back();
        if (last.rows == run.rows && last.cols == run.cols && last.in_shard + last.count == run.in_shard &&
            last.in_update + last.count == run.in_update) {
            last.count += run.count;
            return;
        }
    }
    member.runs.push_back(run);
}

void Muon::allocate(int64_t momentum, int64_t stored) {
    Device& device = runtime_.device();
    const int64_t real = size_of(runtime_.real());
    int64_t workspace = 0;
    for (const auto& [shape, bank] : banks_) {
        const int64_t batch = batch_of(bank.count, bank.numel());
        workspace = std::max(workspace, op::PolarExpress::workspace_size(batch, bank.rows, bank.cols));
    }
    momentum_ = Buffer(device, "muon momentum", MemoryCategory::optimizer_state, momentum);
    updates_ = Buffer(device, "muon updates", MemoryCategory::workspace, stored * real);
    matrices_ = Buffer(device, "muon matrices", MemoryCategory::workspace, owned_elements_ * real);
    workspace_ = Buffer(device, "polar express", MemoryCategory::workspace, workspace * real);
}

Tensor Muon::momentum_of(const Bucket& bucket) const {
    return momentum_.tensor(DType::f32, {parameters_.layout().valid(bucket)},
                            members_.at(bucket.id).momentum);
}

Tensor Muon::all_of(const Buffer& buffer) const {
    return buffer.tensor(runtime_.real(), {buffer.bytes() / size_of(runtime_.real())});
}

Tensor Muon::update_slice(const Run& run) const {
    const Buffer& buffer = exchanges_ ? updates_ : matrices_;
    return buffer.tensor(runtime_.real(), {run.count}, run.in_update * size_of(runtime_.real()));
}

Tensor Muon::second_moment_of(const Bank& bank, int64_t first, int64_t count) const {
    const int64_t lines = lines_of(bank.rows, bank.cols);
    return second_moment_.tensor(DType::f32, {count, lines},
                                 bank.second_moment + first * lines * size_of(DType::f32));
}

void Muon::begin(const Bucket& bucket, const StepContext& context) {
    const Member& member = members_.at(bucket.id);
    const auto mu = static_cast<float>(muon_momentum_at(group_, context.step));
    for (const Run& run : member.runs) {
        runtime_.ops().muon_momentum({.update = update_slice(run),
                                      .momentum = slice(momentum_of(bucket), run.in_shard, run.count),
                                      .grad = slice(gradients_.shard(bucket), run.in_shard, run.count),
                                      .grad_scale = context.grad_scale,
                                      .mu = mu,
                                      .nesterov = group_.nesterov},
                                     *context.stream);
    }
    if (exchanges_)
        reducer_.exchange(bucket, all_of(matrices_), all_of(updates_), member.to_owners, *context.stream);
}

void Muon::compute_updates(const StepContext& context) {
    for (const auto& [shape, bank] : banks_) {
        const int64_t batch = batch_of(bank.count, bank.numel());
        for (int64_t first = 0; first < bank.count; first += batch) {
            const int64_t count = std::min(batch, bank.count - first);
            const Tensor matrices =
                matrices_.tensor(runtime_.real(), {count, bank.rows, bank.cols},
                                 (bank.first + first * bank.numel()) * size_of(runtime_.real()));
            const int64_t workspace = op::PolarExpress::workspace_size(count, bank.rows, bank.cols);
            runtime_.ops().polar_express(
                {.x = matrices, .workspace = workspace_.tensor(runtime_.real(), {workspace})},
                *context.stream);
            if (!group_.normuon) continue;
            runtime_.ops().normuon_scale({.update = matrices,
                                          .second_moment = second_moment_of(bank, first, count),
                                          .grad_scale = context.grad_scale,
                                          .beta2 = static_cast<float>(group_.beta2)},
                                         *context.stream);
        }
    }
}

void Muon::finish(const Bucket& bucket, const StepContext& context) {
    const Member& member = members_.at(bucket.id);
    if (exchanges_)
        reducer_.exchange(bucket, all_of(updates_), all_of(matrices_), member.from_owners, *context.stream);
    for (const Run& run : member.runs) {
        const double shape_scale =
            std::sqrt(std::max(1.0, static_cast<double>(run.rows) / static_cast<double>(run.cols)));
        const double lr = group_.lr * context.lr_factor;
        // Decay is lr·wd, without the shape's factor; muon_apply multiplies its decay by its learning rate.
        runtime_.ops().muon_apply(
            {.parameter = slice(parameters_.compute_shard(bucket), run.in_shard, run.count),
             .master = slice(parameters_.master_shard(bucket), run.in_shard, run.count),
             .update = update_slice(run),
             .grad_scale = context.grad_scale,
             .learning_rate = static_cast<float>(lr * shape_scale),
             .weight_decay = static_cast<float>(group_.weight_decay / shape_scale),
             .cautious = group_.cautious},
            *context.stream);
    }
}

std::vector<StateKind> Muon::state_kinds(const OptimizerGroupConfig& group, int64_t rows, int64_t cols) {
    std::vector<StateKind> kinds = {{"muon_momentum"}};
    if (group.normuon) kinds.push_back({"normuon_v", rows * cols, lines_of(rows, cols)});
    return kinds;
}

std::vector<StateShard> Muon::state(const Bucket& bucket) const {
    std::vector<StateShard> shards = {{state_kinds(group_, 0, 0)[0], momentum_of(bucket)}};
    if (!group_.normuon) return shards;
    for (const Owned& owned : members_.at(bucket.id).owned) {
        const StateKind kind = state_kinds(group_, owned.bank->rows, owned.bank->cols)[1];
        const Tensor lines = second_moment_of(*owned.bank, owned.slot, owned.count);
        shards.push_back(
            {kind, lines.reshaped({lines.numel()}), owned.parameter, owned.number * kind.values});
    }
    return shards;
}

void Muon::reset(Stream& stream) {
    for (const Buffer* state : {&momentum_, &second_moment_}) {
        const int64_t count = state->bytes() / size_of(DType::f32);
        if (count > 0) runtime_.ops().fill({.x = state->tensor(DType::f32, {count}), .value = 0.0f}, stream);
    }
}

}  // namespace speedrun
