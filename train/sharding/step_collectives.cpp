#include "train/sharding/step_collectives.h"

#include <algorithm>
#include <map>

#include "kernels/device/error.h"
#include "train/optim/groups.h"
#include "train/optim/optimizers.h"
#include "train/sharding/lifetimes.h"
#include "train/sharding/matrix_owners.h"
#include "train/sharding/row_owners.h"

namespace speedrun {

namespace {

constexpr AxisSet kDataAxes{Axis::replicate, Axis::shard, Axis::context};  // axes that cut tokens
// axes that cut state; context is folded into shard
constexpr AxisSet kShardAxes{Axis::shard, Axis::context};
// elements of an f32 bucket: latency times bandwidth
constexpr int64_t kElementsPerRank = (512 << 10) / 4;

Placement at(const AxisPlacements& placements, Axis axis) {
    return placements[static_cast<size_t>(axis)];
}
Placement& at(AxisPlacements& placements, Axis axis) {
    return placements[static_cast<size_t>(axis)];
}

// Returns the number of ranks over which the data axes cut.
int cut_of(const AxisPlacements& placements, const Mesh& mesh) {
    int cut = 1;
    for (const Axis axis : {Axis::replicate, Axis::shard, Axis::context}) {
        if (at(placements, axis).kind == Placement::Kind::shard) cut *= mesh.size(axis);
    }
    return cut;
}

// Returns the axes of `among` on which the change needs this collective.
AxisSet axes_of(Collective kind, AxisSet among, const AxisPlacements& from, const AxisPlacements& to,
                const Mesh& mesh) {
    AxisSet axes;
    for (const Axis axis : kAxes) {
        if (among.contains(axis) && mesh.size(axis) > 1 &&
            collective_between(at(from, axis), at(to, axis)) == kind)
            axes.add(axis);
    }
    return axes;
}

// Returns place_parameter() with axes of size 1 as Replicate.
ParameterPlacement placement_of(const Parameter& parameter, const Ranks& ranks) {
    ParameterPlacement place = place_parameter(ranks.sharing(), parameter);
    for (AxisPlacements* at :
         {&place.stored, &place.computed, &place.gradient, &place.accumulated, &place.state})
        for (const Axis axis : kAxes)
            if (ranks.mesh().size(axis) == 1) (*at)[static_cast<size_t>(axis)] = Placement::replicate();
    return place;
}

// Returns the common placement of the bucket's parameters (BucketRules::placement_of). Under ddp, the state of whole
// matrices is sharded nevertheless.
ParameterPlacement place(const Bucket& bucket, const Ranks& ranks) {
    ParameterPlacement placement = placement_of(bucket.first(), ranks);
    for (const Parameter* p : bucket.parameters) {
        if (placement_of(*p, ranks) == placement) continue;
        throw_internal("collectives of a step: {} and {} are in one bucket, but differ in placement",
                       bucket.first().name, p->name);
    }
    if (ranks.sharing().strategy == Strategy::ddp && bucket.num_shards > 1)
        for (const Axis axis : kAxes)
            if (kDataAxes.contains(axis)) at(placement.state, axis) = Placement::shard(0);
    return placement;
}

// Returns the axes with several ranks on which the bucket's state has this kind of placement.
AxisSet state_axes(const Bucket& bucket, const Ranks& ranks, Placement::Kind kind) {
    const AxisPlacements state = place(bucket, ranks).state;
    AxisSet axes;
    for (const Axis axis : kAxes)
        if (ranks.mesh().size(axis) > 1 && at(state, axis).kind == kind) axes.add(axis);
    return axes;
}

// Index: parameter. Parameters placed alike have equal values.
std::vector<int> placements_of(const ParameterTable& table, const Ranks& ranks) {
    std::vector<ParameterPlacement> known;
    std::vector<int> numbers;
    for (const Parameter& p : table.all()) {
        const ParameterPlacement placement = placement_of(p, ranks);
        const auto found = std::find(known.begin(), known.end(), placement);
        numbers.push_back(static_cast<int>(found - known.begin()));
        if (found == known.end()) known.push_back(placement);
    }
    return numbers;
}

// Appends the collectives of one row, change by change.
class BucketCollectivesBuilder {
  public:
    BucketCollectivesBuilder(BucketCollectives& row, const Ranks& ranks, PaddedValues values)
        : row_(row), ranks_(ranks), values_(values) {}

    void change(const AxisPlacements& from, const AxisPlacements& to, DType dtype, When when) {
        for (const StepCollective& collective :
             collectives_between(from, to, values_, ranks_.mesh(), dtype, when))
            row_.collectives.push_back(collective);
    }

  private:
    BucketCollectives& row_;
    const Ranks& ranks_;
    const PaddedValues values_;
};

// Replaces reductions of the whole gradient by an exchange of the rows that tokens touch: to the owners, or to all
// ranks. Reductions of shards over their copies remain.
void send_rows(BucketCollectives& row, const Bucket& bucket, int64_t elements) {
    for (StepCollective& c : row.collectives) {
        const bool whole = c.payload_bytes == elements * size_of(c.dtype) && !c.axes.contains(Axis::tensor);
        const bool sums = c.kind == Collective::reduce_scatter || (c.kind == Collective::all_reduce && whole);
        if (!sums) continue;
        const RowOwners owners(bucket, c.kind == Collective::all_reduce, c.group_size);
        const int64_t row_bytes = owners.columns() * size_of(c.dtype);
        c.kind = Collective::all_to_all;
        c.rows = true;
        c.payload_bytes = bucket.max_rows * row_bytes;
        c.padding_bytes = 0;
        c.sent_bytes = owners.max_sent() * static_cast<double>(row_bytes);
    }
}

BucketCollectives row_of_bucket(const BucketLayout& layout, const Bucket& bucket, const Ranks& ranks,
                                DType compute) {
    const ParameterPlacement placement = place(bucket, ranks);
    const DType dtype = bucket.full_precision ? DType::f32 : compute;
    const DType reduce = ranks.sharing().reduce_dtype;
    const std::optional<Reshard>& stored_sharded = layout.rules().stored_sharded;
    BucketCollectives row{.name = bucket.name(), .bucket = bucket.id, .collectives = {}};
    const int64_t elements = layout.padded(bucket);
    BucketCollectivesBuilder add(row, ranks, {.elements = elements, .padding = elements - bucket.count});
    if (stored_sharded) {
        const auto reads = reads_of(bucket, UnitPasses(layout.num_units()), *stored_sharded);
        const When when = *stored_sharded == Reshard::no ? When::after_step : When::before_forward;
        add.change(placement.stored, placement.computed, dtype, when);
        if (reads.size() > 1) add.change(placement.stored, placement.computed, dtype, When::before_backward);
    }
    if (bucket.frozen && !stored_sharded)
        add.change(placement.state, placement.computed, dtype, When::at_start);
    if (bucket.frozen) return row;
    add.change(placement.gradient, placement.accumulated, reduce, When::every_microbatch);
    add.change(placement.accumulated, placement.state, reduce, When::last_microbatch);
    if (!stored_sharded) add.change(placement.state, placement.computed, dtype, When::after_step);
    if (bucket.max_rows > 0) send_rows(row, bucket, elements);
    return row;
}

// Adds the exchanges of matrix slices: to the owners, and back.
void add_exchanges(BucketCollectives& row, const Bucket& bucket, const MatrixOwners& owners,
                   const Ranks& ranks, DType compute) {
    const MatrixRanks among(bucket);
    AxisSet axes = ranks.sharing().strategy == Strategy::ddp ? kDataAxes : kShardAxes;
    if (among.parts > 1) axes.add(Axis::tensor);
    axes = ranks.mesh().larger_than_one(axes);
    if (ranks.mesh().size(axes) != among.size())
        throw_internal("exchange of {}: {} ranks share its matrices, {} has {}", bucket.name(), among.size(),
                       axes.describe(), ranks.mesh().size(axes));
    const StepCollective exchange{.kind = Collective::all_to_all,
                                  .axes = axes,
                                  .group_size = among.size(),
                                  .dtype = compute,
                                  .payload_bytes = bucket.count * among.parts * size_of(compute),
                                  .padding_bytes = 0,
                                  .sent_bytes = owners.sent_bytes(bucket, size_of(compute)),
                                  .when = When::in_step};
    const auto after = std::find_if(row.collectives.begin(), row.collectives.end(),
                                    [](const StepCollective& c) { return c.when == When::after_step; });
    row.collectives.insert(after, 2, exchange);
}

// Throws a usage error if an optimizer of whole matrices has a matrix with padded parts.
void expect_even_parts(const Parameter& p, const OptimizerGroupConfig& group) {
    const int64_t rows = p.whole_shape().front();
    if (!needs_whole_matrices(group) || p.whole_numel() == p.numel() * p.cut.parts) return;
    throw_usage(
        "parallel.tensor is {}, but {} has {} rows, not a multiple of it, and {} needs whole matrices: "
        "give it to a group of another type in optimizers.groups",
        p.cut.parts, p.name, rows, word_of(group.type));
}

}  // namespace

const char* name_of(When when) {
    constexpr std::array<const char*, 7> kNames{"before forward",  "before backward", "every microbatch",
                                                "last microbatch", "in the step",     "after the step",
                                                "at the start"};
    return kNames[static_cast<size_t>(when)];
}

std::string StepCollective::describe() const {
    return fmt::format("{} over {} ({} ranks), {}, {}{:.2f} MiB, {}", name_of(kind), axes.describe(),
                       group_size, name_of(dtype), rows ? "rows of a rank, at most " : "",
                       static_cast<double>(payload_bytes) / (1 << 20), name_of(when));
}

std::vector<StepCollective> collectives_between(const AxisPlacements& from, const AxisPlacements& to,
                                                PaddedValues values, const Mesh& mesh, DType dtype,
                                                When when) {
    std::vector<StepCollective> planned;
    AxisSet covered;
    const auto add = [&](Collective kind, AxisSet among, int cut) {
        const AxisSet axes = axes_of(kind, among, from, to, mesh);
        if (axes.empty()) return;
        if (values.elements % cut != 0)
            throw_internal("collectives of a step: {} elements over {} ranks", values.elements, cut);
        const int64_t payload = values.elements / cut * size_of(dtype);
        const int ranks = mesh.size(axes);
        planned.push_back({kind, axes, ranks, dtype, payload, cut == 1 ? values.padding * size_of(dtype) : 0,
                           wire_bytes(kind, ranks, payload), when});
        for (const Axis axis : kAxes)
            if (axes.contains(axis)) covered.add(axis);
    };
    add(Collective::all_reduce, {Axis::tensor}, cut_of(from, mesh));
    add(Collective::reduce_scatter, kDataAxes, 1);
    add(Collective::all_reduce, kDataAxes, cut_of(to, mesh));
    add(Collective::all_gather, kDataAxes, 1);
    for (const Axis axis : kAxes) {
        const auto needed = collective_between(at(from, axis), at(to, axis));
        if (needed && mesh.size(axis) > 1 && !covered.contains(axis)) {
            throw_internal("collectives of a step: no {} of parameters over {} ({} to {})", name_of(*needed),
                           name_of(axis), at(from, axis).describe(), at(to, axis).describe());
        }
    }
    return planned;
}

std::string BucketCollectives::describe() const {
    std::string text = name;
    for (const StepCollective& collective : collectives) text += "; " + collective.describe();
    return text;
}

std::vector<BucketCollectives> step_collectives(const BucketLayout& layout, const Ranks& ranks,
                                                DType compute) {
    std::vector<BucketCollectives> rows;
    std::map<int, MatrixOwners> owners;  // key: group
    for (const int id : layout.backward_order()) {
        const Bucket& bucket = layout[id];
        rows.push_back(row_of_bucket(layout, bucket, ranks, compute));
        if (!layout.whole_matrix(bucket.group) || MatrixRanks(bucket).size() == 1) continue;
        if (!owners.count(bucket.group)) owners[bucket.group] = MatrixOwners(layout, bucket.group);
        add_exchanges(rows.back(), bucket, owners[bucket.group], ranks, compute);
    }
    const std::string scales = layout.num_scales() > 0 ? ", scales" : "";
    rows.push_back({.name = "loss, stop, norms" + scales, .bucket = -1, .collectives = {}});
    const auto sum = [&](AxisSet axes, int64_t values) {
        if (axes.empty() || values == 0) return;
        const int group_size = ranks.mesh().size(axes);
        const int64_t bytes = values * size_of(DType::f32);
        rows.back().collectives.push_back(
            {.kind = Collective::all_reduce,
             .axes = axes,
             .group_size = group_size,
             .dtype = DType::f32,
             .payload_bytes = bytes,
             .padding_bytes = 0,
             .sent_bytes = wire_bytes(Collective::all_reduce, group_size, bytes),
             .when = When::last_microbatch});
    };
    sum(ranks.mesh().larger_than_one(loss_axes()), 2);
    sum(norm_axes(layout, ranks), layout.size());
    sum(ranks.mesh().larger_than_one(loss_axes()), layout.num_scales());  // amaxes
    return rows;
}

Copies copies_of(const Bucket& bucket, const Ranks& ranks) {
    const Group group =
        ranks.mesh().group(ranks.rank(), state_axes(bucket, ranks, Placement::Kind::replicate));
    return {.count = group.size(), .index = group.index};
}

AxisSet loss_axes() {
    return {Axis::replicate, Axis::shard, Axis::context, Axis::tensor};
}

AxisSet norm_axes(const BucketLayout& layout, const Ranks& ranks) {
    AxisSet axes;
    for (const Bucket& bucket : layout.all()) {
        const AxisSet cut = state_axes(bucket, ranks, Placement::Kind::shard);
        for (const Axis axis : kAxes)
            if (cut.contains(axis)) axes.add(axis);
    }
    return axes;
}

bool adds_norm_term(const Bucket& bucket, AxisSet norm_axes, const Ranks& ranks) {
    const AxisSet alike = state_axes(bucket, ranks, Placement::Kind::replicate);
    const MeshCoordinates own = ranks.mesh().coordinates(ranks.rank());
    for (const Axis axis : kAxes)
        if (norm_axes.contains(axis) && alike.contains(axis) && own[static_cast<size_t>(axis)] > 0)
            return false;
    return true;
}

namespace {

// A parameter that is unused in some stages, and its source (copy_of), have buckets of their own, cut alike: one may be
// updated without the other, and shards are copied to shards. So does a table with exchanged rows.
void set_apart(const ParameterTable& table, std::vector<int>& placement_of) {
    int next = 1 + *std::max_element(placement_of.begin(), placement_of.end());
    for (const Parameter& p : table.all()) {
        if (p.row_ids > 0) placement_of[static_cast<size_t>(p.id)] = next++;
        if (p.copy_of < 0) continue;
        for (const int id : {p.id, p.copy_of}) placement_of[static_cast<size_t>(id)] = next++;
    }
}

// Returns the most rows that a rank's tokens touch between two exchanges.
int64_t max_rows_of(const Parameter& p, const Ranks& ranks, const OptimizerGroupConfig& group,
                    const RankTokens& tokens) {
    if (p.row_ids == 0 || group.frozen()) return 0;
    if (needs_whole_matrices(group))
        throw_usage(
            "{}: its rows are exchanged (model.tables, exchange), but {} needs whole matrices: use whole, or give it to a group of "
            "another type in optimizers.groups",
            p.name, word_of(group.type));
    const bool each_microbatch =
        ranks.sharing().accumulate.value() == Accumulate::reduce_scatter && ranks.mesh().size(kShardAxes) > 1;
    const int64_t ids = p.row_ids * (each_microbatch ? tokens.microbatch : tokens.step * group.every);
    return ids == 0 ? p.shape[0] : std::min(ids, p.shape[0]);
}

}  // namespace

BucketRules bucket_rules(const Ranks& ranks, const ParameterTable& table, const OptimizersConfig& config,
                         const RankTokens& tokens) {
    const Sharing& sharing = ranks.sharing();
    BucketRules rules;
    rules.group_of = assign_groups(table, config);
    for (const Parameter& p : table.all()) {
        const OptimizerGroupConfig& group =
            config.groups[static_cast<size_t>(rules.group_of[static_cast<size_t>(p.id)])];
        expect_even_parts(p, group);
        rules.max_rows.push_back(max_rows_of(p, ranks, group, tokens));
    }
    rules.placement_of = placements_of(table, ranks);
    set_apart(table, rules.placement_of);
    for (const OptimizerGroupConfig& group : config.groups) {
        rules.whole_matrix.push_back(needs_whole_matrices(group));
        rules.heads_per_matrix.push_back(group.heads_per_matrix());
        rules.bf16_weights.push_back(group.weights_dtype() == DType::bf16);
        rules.frozen.push_back(group.frozen());
    }
    rules.target = bucket_target(sharing, ranks.mesh().world_size(), table.numel());
    const auto group_of = [&](AxisSet axes) { return ranks.mesh().group(ranks.rank(), axes); };
    const Group all = group_of(kDataAxes), shard = group_of(kShardAxes);
    if (sharing.strategy == Strategy::ddp) {
        rules.matrix_shards = all.size();
        rules.matrix_index = all.index;
        return rules;
    }
    rules.num_shards = shard.size();
    rules.index = shard.index;
    if (sharing.strategy == Strategy::zero3 && rules.num_shards > 1)
        rules.stored_sharded = sharing.reshard_after_forward.value();
    return rules;
}

// A ring of n ranks pays n latencies per collective. Latency therefore dominates in buckets below n x latency x
// bandwidth (20 us x 25 GB/s, 0.5 MiB). A step also needs several buckets to overlap.
int64_t bucket_target(const Sharing& sharing, int num_ranks, int64_t elements) {
    if (num_ranks == 1) return 0;
    if (sharing.bucket_bytes > 0) return std::max<int64_t>(1, sharing.bucket_bytes / size_of(DType::f32));
    constexpr int64_t kMinBuckets = 16;
    return std::min(num_ranks * kElementsPerRank, elements / kMinBuckets);
}

int ranks_that_fit(const Sharing& sharing, int num_ranks, int64_t elements) {
    const int64_t target = bucket_target(sharing, num_ranks, elements);
    // At twice the target, latency costs as much as the bytes.
    int fitting = num_ranks;
    for (int ranks = num_ranks; ranks > 1 && fitting * kElementsPerRank > 2 * target; --ranks)
        if (num_ranks % ranks == 0) fitting = ranks;
    return fitting;
}

std::array<double, kNumCollectives> step_wire_bytes(const std::vector<BucketCollectives>& rows,
                                                    int num_microbatches) {
    std::array<double, kNumCollectives> bytes{};
    for (const BucketCollectives& row : rows) {
        for (const StepCollective& c : row.collectives)
            bytes[static_cast<size_t>(c.kind)] += c.sent_bytes * times_per_step(c.when, num_microbatches);
    }
    return bytes;
}

}  // namespace speedrun
