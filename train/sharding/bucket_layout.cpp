#include "train/sharding/bucket_layout.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

constexpr int64_t kAlignedElements = 16;  // 64 bytes of f32, 32 of bf16

int64_t aligned_elements(int64_t elements) {
    return (elements + kAlignedElements - 1) / kAlignedElements * kAlignedElements;
}

int64_t elements_of(const std::vector<const Parameter*>& members) {
    int64_t elements = 0;
    for (const Parameter* p : members) elements += aligned_elements(p->numel());
    return elements;
}

// All matrices of a bucket are cut alike, so that they are exchanged alike, and each part is one piece of one matrix.
void check_cut(const Parameter& p, const Parameter& first) {
    if (p.cut.parts != first.cut.parts || p.cut.dimension != first.cut.dimension)
        throw_internal("{} is one of {} parts along dimension {}, {} of {} along {}, in one bucket", p.name,
                       p.cut.parts, p.cut.dimension, first.name, first.cut.parts, first.cut.dimension);
}

}  // namespace

std::string Bucket::name() const {
    return parameters.size() == 1 ? first().name
                                  : fmt::format("{} + {} more", first().name, parameters.size() - 1);
}

BucketLayout::BucketLayout(const ParameterTable& table, const BucketRules& rules)
    : table_(table), rules_(rules), in_bucket_(table.all().size()), bucket_of_(table.all().size()) {
    for (const std::vector<const Parameter*>& members : fill()) add(members);
}

// Fills buckets from the last parameter to the first. The result ascends, as do the parameters of each bucket.
std::vector<std::vector<const Parameter*>> BucketLayout::fill() const {
    using Members = std::vector<const Parameter*>;
    // Key of a bucket: group, compute dtype, placement, unit (zero3).
    using Key = std::tuple<int, bool, int, int>;
    std::vector<Members> closed;
    std::map<Key, Members> open;
    for (auto p = table_.all().rbegin(); p != table_.all().rend(); ++p) {
        // f32 vectors are tiny: one bucket for all units.
        const bool by_unit = rules_.stored_sharded && !p->full_precision;
        if (!by_unit && p->numel() >= rules_.target) {
            closed.push_back({&*p});
            continue;
        }
        Members& members =
            open[{group_of(*p), p->full_precision, placement_of(*p), by_unit ? p->unit() : -1}];
        members.push_back(&*p);
        if (by_unit || elements_of(members) < rules_.target) continue;
        closed.push_back(std::move(members));
        members.clear();
    }
    for (auto& [key, members] : open)
        if (!members.empty()) closed.push_back(std::move(members));
    for (Members& members : closed) std::reverse(members.begin(), members.end());
    std::sort(closed.begin(), closed.end(),
              [](const Members& a, const Members& b) { return a.front()->id < b.front()->id; });
    return closed;
}

void BucketLayout::add(const std::vector<const Parameter*>& members) {
    Bucket bucket;
    bucket.id = size();
    bucket.parameters = members;
    bucket.group = group_of(*members.front());
    bucket.full_precision = members.front()->full_precision;
    if (bf16_weights(bucket.group)) bucket.master = DType::bf16;
    bucket.frozen = !rules_.frozen.empty() && rules_.frozen[static_cast<size_t>(bucket.group)];
    if (bucket.full_precision && bucket.master != DType::f32)
        throw_internal("{}: kept in bf16, computed with in f32", members.front()->name);
    bucket.offset = elements_;
    for (const Parameter* p : members)
        if (!rules_.max_rows.empty()) bucket.max_rows += rules_.max_rows[static_cast<size_t>(p->id)];
    if (bucket.max_rows > 0 && members.size() > 1)
        throw_internal("table {} has exchanged rows and shares its bucket", members.front()->name);
    const bool of_matrices = whole_matrix(bucket.group) && rules_.matrix_shards > 0;
    bucket.num_shards = of_matrices ? rules_.matrix_shards : rules_.num_shards;
    bucket.index = of_matrices ? rules_.matrix_index : rules_.index;
    for (const Parameter* p : members) {
        in_bucket_[p->id] = aligned_elements(bucket.count);
        bucket_of_[p->id] = bucket.id;
        bucket.count = in_bucket(*p) + p->numel();
    }
    bucket.shard_size = bucket.num_shards == 1
                            ? bucket.count
                            : aligned_elements((bucket.count + bucket.num_shards - 1) / bucket.num_shards);
    elements_ = aligned_elements(elements_ + padded(bucket));
    buckets_.push_back(std::move(bucket));
}

int BucketLayout::group_of(const Parameter& p) const {
    return rules_.group_of.empty() ? 0 : rules_.group_of[p.id];
}

int BucketLayout::placement_of(const Parameter& p) const {
    return rules_.placement_of.empty() ? 0 : rules_.placement_of[p.id];
}

bool BucketLayout::whole_matrix(int group) const {
    return !rules_.whole_matrix.empty() && rules_.whole_matrix[group];
}

int64_t BucketLayout::heads_per_matrix(int group) const {
    return rules_.heads_per_matrix.empty() ? 0 : rules_.heads_per_matrix[static_cast<size_t>(group)];
}

bool BucketLayout::bf16_weights(int group) const {
    return !rules_.bf16_weights.empty() && rules_.bf16_weights[group];
}

Range BucketLayout::shard(const Bucket& bucket, int64_t index) {
    return common({0, bucket.count}, {index * bucket.shard_size, bucket.shard_size});
}

int64_t BucketLayout::valid(const Bucket& bucket) const {
    return shard(bucket, bucket.index).count;
}

std::vector<Piece> BucketLayout::shard_pieces(const Bucket& bucket) const {
    const Range own = shard(bucket, bucket.index);
    std::vector<Piece> pieces;
    for (const Parameter* p : bucket.parameters) {
        const Range here = common(own, {in_bucket(*p), p->numel()});
        if (here.count > 0)
            pieces.push_back({p, {here.begin - in_bucket(*p), here.count}, here.begin - own.begin});
    }
    return pieces;
}

std::vector<Matrix> BucketLayout::matrices(const Bucket& bucket) const {
    std::vector<Matrix> all;
    for (const Parameter* p : bucket.parameters) {
        if (!p->is_matrix()) throw_internal("{} is no matrix", p->name);
        check_cut(*p, bucket.first());
        int64_t number = 0;
        for (const auto& [rows, matrices] : p->row_blocks(heads_per_matrix(bucket.group))) {
            const int64_t cols = p->shape[1];
            all.push_back({p, number, in_bucket(*p) + rows.begin * cols, rows.count, cols, matrices});
            number += matrices;
        }
    }
    return all;
}

std::vector<int> BucketLayout::forward_order() const {
    std::vector<int> order(static_cast<size_t>(size()));
    std::iota(order.begin(), order.end(), 0);
    return order;
}

std::vector<int> BucketLayout::backward_order() const {
    std::vector<int> order;
    for (int id = size() - 1; id >= 0; --id) order.push_back(id);
    return order;
}

}  // namespace speedrun
