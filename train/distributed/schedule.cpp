#include "train/distributed/schedule.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "kernels/device/error.h"
#include "train/distributed/even_split.h"

namespace speedrun {

namespace {

constexpr AxisSet kDataAxes{Axis::replicate, Axis::shard, Axis::context};

// Rows of dimension 0 and elements of each, after the tensor axis has taken its part.
struct LocalShape {
    int64_t rows = 1;
    int64_t row_numel = 1;
};

LocalShape after_tensor(std::vector<int64_t> shape, Placement on_tensor, const Mesh& mesh) {
    if (on_tensor.kind == Placement::Kind::shard) {
        const auto dim = static_cast<size_t>(on_tensor.dim);
        if (dim >= shape.size())
            throw_internal("placement: Shard({}) of a tensor of {} dimensions", dim, shape.size());
        shape[dim] = EvenSplit{shape[dim], mesh.size(Axis::tensor)}.per_part();
    }
    LocalShape local;
    if (!shape.empty()) local.rows = shape[0];
    for (size_t d = 1; d < shape.size(); ++d) local.row_numel *= shape[d];
    return local;
}

Placement at(const AxisPlacements& placements, Axis axis) {
    return placements[static_cast<size_t>(axis)];
}

// The ranks over which the data axes cut dimension 0.
int cut_of(const AxisPlacements& placements, const Mesh& mesh) {
    int cut = 1;
    for (const Axis axis : {Axis::replicate, Axis::shard, Axis::context}) {
        if (at(placements, axis).kind == Placement::Kind::shard) cut *= mesh.size(axis);
    }
    return cut;
}

// The axes of `among` on which the change needs this collective.
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

std::vector<PlannedCollective> concatenate(std::initializer_list<std::vector<PlannedCollective>> lists) {
    std::vector<PlannedCollective> all;
    for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
    return all;
}

int times_per_step(When when, int num_microbatches) {
    return when <= When::every_microbatch ? num_microbatches : 1;
}

}  // namespace

const char* name_of(When when) {
    constexpr std::array<const char*, 6> kNames{"before forward",  "before backward", "every microbatch",
                                                "last microbatch", "in the step",     "after the step"};
    return kNames[static_cast<size_t>(when)];
}

std::string PlannedCollective::describe() const {
    return fmt::format("{} over {} ({} ranks), {}, {:.2f} MiB, {}", name_of(kind), axes.describe(),
                       group_size, name_of(dtype), static_cast<double>(payload_bytes) / (1 << 20),
                       name_of(when));
}

std::vector<PlannedCollective> collectives_between(const AxisPlacements& from, const AxisPlacements& to,
                                                   const std::vector<int64_t>& shape, const Mesh& mesh,
                                                   DType dtype, When when) {
    const LocalShape local = after_tensor(shape, at(to, Axis::tensor), mesh);
    const auto bytes = [&](int64_t rows) { return rows * local.row_numel * size_of(dtype); };
    std::vector<PlannedCollective> planned;
    const auto add = [&](Collective kind, AxisSet among, int64_t payload_rows, int64_t padding_rows) {
        const AxisSet axes = axes_of(kind, among, from, to, mesh);
        if (!axes.empty())
            planned.push_back(
                {kind, axes, mesh.size(axes), dtype, bytes(payload_rows), bytes(padding_rows), when});
    };
    const EvenSplit before{local.rows, cut_of(from, mesh)}, after{local.rows, cut_of(to, mesh)};
    add(Collective::all_reduce, {Axis::tensor}, before.per_part(), 0);
    add(Collective::reduce_scatter, kDataAxes, after.padded(), after.padding());
    add(Collective::all_reduce, kDataAxes, after.per_part(), 0);
    add(Collective::all_gather, kDataAxes, before.padded(), before.padding());

    AxisSet covered;
    for (const PlannedCollective& c : planned) {
        for (const Axis axis : kAxes) {
            if (c.axes.contains(axis)) covered.add(axis);
        }
    }
    for (const Axis axis : kAxes) {
        const auto needed = collective_between(at(from, axis), at(to, axis));
        if (needed && mesh.size(axis) > 1 && !covered.contains(axis)) {
            throw_internal("schedule: no {} of parameters over {} ({} to {})", name_of(*needed),
                           name_of(axis), at(from, axis).describe(), at(to, axis).describe());
        }
    }
    return planned;
}

std::vector<PlannedCollective> parameter_collectives(const Parameter& parameter, const ParallelPlan& plan,
                                                     const Mesh& mesh, int last_unit) {
    const ParameterPlacement place = place_parameter(plan, parameter.tensor_parallel_dim);
    const DType gather_dtype = parameter.full_precision ? DType::f32 : plan.compute_dtype;
    const auto change = [&](const AxisPlacements& from, const AxisPlacements& to, DType dtype, When when) {
        return collectives_between(from, to, parameter.shape, mesh, dtype, when);
    };
    const Reshard reshard = plan.reshard_after_forward.value();
    const bool freed =
        reshard == Reshard::yes || (reshard == Reshard::except_last && parameter.unit != last_unit);
    return concatenate({
        change(place.stored, place.computed, gather_dtype, When::before_forward),
        freed ? change(place.stored, place.computed, gather_dtype, When::before_backward)
              : std::vector<PlannedCollective>{},
        change(place.gradient, place.accumulated, plan.reduce_dtype, When::every_microbatch),
        change(place.accumulated, place.state, plan.reduce_dtype, When::last_microbatch),
        change(place.state, place.stored, gather_dtype, When::after_step),
    });
}

std::string ScheduleRow::describe() const {
    std::string text = name;
    for (const PlannedCollective& collective : collectives) text += "; " + collective.describe();
    return text;
}

std::vector<ScheduleRow> build_schedule(const std::vector<Parameter>& parameters, const ParallelPlan& plan,
                                        const Mesh& mesh, const std::function<int(const Parameter&)>& kind) {
    int last_unit = 0;
    for (const Parameter& p : parameters) last_unit = std::max(last_unit, p.unit);

    std::vector<ScheduleRow> rows;
    using Key = std::tuple<int, int, bool,
                           int>;  // what must be equal to share a buffer: unit, kind, dtype, tensor placement
    std::map<Key, size_t> shared;  // row by key
    for (const Parameter& p : parameters) {
        const std::vector<PlannedCollective> collectives = parameter_collectives(p, plan, mesh, last_unit);
        const bool small = p.numel() * size_of(plan.reduce_dtype) < plan.coalesce_below_bytes;
        const Key key{p.unit, kind ? kind(p) : 0, p.full_precision, p.tensor_parallel_dim};
        const auto found = small ? shared.find(key) : shared.end();
        if (found == shared.end()) {
            if (small) shared[key] = rows.size();
            rows.push_back({p.name, {p.id}, collectives});
            continue;
        }
        ScheduleRow& row = rows[found->second];
        row.parameters.push_back(p.id);
        row.name = fmt::format("unit {}: {} small parameters", p.unit, row.parameters.size());
        for (size_t i = 0; i < collectives.size(); ++i) {
            row.collectives[i].payload_bytes += collectives[i].payload_bytes;
            row.collectives[i].padding_bytes += collectives[i].padding_bytes;
        }
    }
    return rows;
}

std::array<double, kNumCollectives> step_wire_bytes(const std::vector<ScheduleRow>& rows,
                                                    int num_microbatches) {
    std::array<double, kNumCollectives> bytes{};
    for (const ScheduleRow& row : rows) {
        for (const PlannedCollective& c : row.collectives)
            bytes[static_cast<size_t>(c.kind)] += c.wire_bytes() * times_per_step(c.when, num_microbatches);
    }
    return bytes;
}

}  // namespace speedrun
