#include "train/optim/optimizer_set.h"

#include <fnmatch.h>

#include "train/optim/adamw.h"
#include "train/optim/muon.h"

namespace speedrun {

std::vector<int> assign_groups(const ParameterTable& table, const OptimizersConfig& config) {
    std::vector<int> group_of(table.size(), -1);
    std::vector<int> members(config.groups.size(), 0);
    std::string orphans;
    for (const Parameter& p : table.all()) {
        for (size_t g = 0; g < config.groups.size() && group_of[p.id] < 0; ++g) {
            for (const std::string& pattern : config.groups[g].params) {
                if (fnmatch(pattern.c_str(), p.name.c_str(), 0) == 0) group_of[p.id] = static_cast<int>(g);
            }
        }
        if (group_of[p.id] < 0) {
            orphans += (orphans.empty() ? "" : ", ") + p.name;
            continue;
        }
        ++members[group_of[p.id]];
        if (config.groups[group_of[p.id]].type == "muon" && !p.is_matrix()) {
            throw_usage(
                "optimizers.groups[{}]: muon trains matrices only, but its params match the vector {}",
                group_of[p.id], p.name);
        }
    }
    if (!orphans.empty()) {
        throw_usage("optimizers.groups: no group takes {}; add their names or patterns to a group's params",
                    orphans);
    }
    for (size_t g = 0; g < members.size(); ++g) {
        if (members[g] == 0)
            throw_usage("optimizers.groups[{}]: its params match no parameter that an earlier group left", g);
    }
    return group_of;
}

RegionRules region_rules(const Ranks& ranks, const ParameterTable& table, const OptimizersConfig& config) {
    RegionRules rules = region_rules(ranks);
    rules.group_of = assign_groups(table, config);
    for (const OptimizerGroupConfig& group : config.groups)
        rules.whole_matrix.push_back(needs_whole_matrices(group));
    return rules;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerGroupConfig& group,
                                          const std::vector<const Region*>& members,
                                          ParameterStore& parameters, GradientStore& gradients,
                                          Runtime& runtime) {
    if (group.type == "muon") return std::make_unique<Muon>(group, members, parameters, gradients, runtime);
    return std::make_unique<Adamw>(group, members, parameters, gradients, runtime);
}

std::vector<StateKind> state_kinds(const OptimizerGroupConfig& group, int64_t rows, int64_t cols) {
    return group.type == "muon" ? Muon::state_kinds(group, rows, cols) : Adamw::state_kinds();
}

OptimizerSet::OptimizerSet(const OptimizersConfig& config, const ParameterTable& table, const Ranks& ranks,
                           ParameterStore& parameters, GradientStore& gradients, Runtime& runtime)
    : config_(config),
      table_(table),
      ranks_(ranks),
      parameters_(parameters),
      gradients_(gradients),
      runtime_(runtime),
      layout_(parameters.layout()),
      reducer_(ranks, parameters, gradients),
      order_(layout_.backward_order()),
      completes_(table.all().size()),
      regions_of_unit_(static_cast<size_t>(table.num_units())) {
    if (ranks.size() >
        1) {  // before anything is sent: who disagrees would wait for ever, or sum apples and pears
        std::vector<std::string> lines;
        for (const ScheduleRow& row : region_schedule(layout_, ranks)) lines.push_back(row.describe());
        expect_same_on_all_ranks(*ranks.world, "schedule", lines);
    }
    for (size_t g = 0; g < config.groups.size(); ++g) {
        std::vector<const Region*> members;
        for (const Region& region : layout_.all()) {
            if (region.group == static_cast<int>(g)) members.push_back(&region);
        }
        optimizers_.push_back(make_optimizer(config.groups[g], members, parameters, gradients, runtime));
    }
    // Behind the squares that the host reads: this rank's own, and a norm and a scale of each region.
    local_squares_ = kSquares + layout_.size();
    region_scales_ = local_squares_ + layout_.size();
    num_statistics_ = region_scales_ + 2 * layout_.size();
    statistics_ = Buffer(runtime.device(), "step statistics", MemoryCategory::workspace,
                         num_statistics_ * size_of(DType::f32));
    Device& device = runtime.device();
    for (const Region& region : layout_.all()) {
        pending_.push_back(static_cast<int>(region.pieces.size()));
        unreleased_.push_back(pending_.back());
        for (auto* events : {&raw_, &released_, &reduced_, &stepped_, &gathered_, &copied_})
            events->push_back(device.create_event());
        for (const Piece& piece : region.pieces) {
            std::vector<int>& regions = regions_of_unit_[piece.parameter->unit];
            if (regions.empty() || regions.back() != region.id) regions.push_back(region.id);
        }
    }
    read_ = device.create_event();
}

void OptimizerSet::gradient_ready(const Parameter& p) {
    std::vector<int>& completed = completes_[p.id];
    completed.clear();
    for (const int id : layout_.regions_of(p)) {
        if (--pending_[id] > 0) continue;
        pending_[id] = static_cast<int>(layout_[id].pieces.size());
        runtime_.compute().record(*raw_[id]);
        completed.push_back(id);
    }
}

void OptimizerSet::value_released(const Parameter& p) {
    for (const int id : layout_.regions_of(p)) {
        if (--unreleased_[id] > 0) continue;
        unreleased_[id] = static_cast<int>(layout_[id].pieces.size());
        runtime_.compute().record(*released_[id]);
    }
}

void OptimizerSet::reduce(const Parameter& p) {
    for (const int id : completes_[p.id]) {
        if (ranks_.plan.launch == Launch::after_backward) {
            waiting_.push_back(id);
        } else {
            launch(layout_[id]);
        }
    }
}

void OptimizerSet::launch(const Region& region) {
    Stream& stream = runtime_.reduce();
    stream.wait(*raw_[region.id]);
    stream.wait(*read_);  // the host has read what the step before wrote to the statistics
    reducer_.reduce(region, stream);
    const Tensor square = statistic(local_squares_ + region.id);
    if (layout_.valid(region) > 0) {
        runtime_.ops().sum_of_squares(square, gradients_.part(region), stream);
    } else {
        runtime_.ops().fill(square, 0.0f, stream);
    }
    stream.record(*reduced_[region.id]);
}

void OptimizerSet::step(int64_t step, double lr_factor, bool stop, Event& backward_done, Event& reduce_done) {
    Ops& ops = runtime_.ops();
    Stream &compute = runtime_.compute(), &reduce = runtime_.reduce(), &optimizer = runtime_.optimizer(),
           &gather = runtime_.gather();
    compute.wait(*read_);
    ops.cast(statistic(kLossTotal), statistic(kLossSum), compute);
    ops.fill(statistic(kStop), stop ? 1.0f : 0.0f, compute);
    compute.record(backward_done);
    reduce.wait(backward_done);
    for (const int id : waiting_) launch(layout_[id]);
    waiting_.clear();

    const int64_t count = layout_.size();
    ops.cast(statistic(kSquares, count), statistic(local_squares_, count), reduce);
    reducer_.sum_over_all(statistic(kLossTotal, 2), reduce);
    reducer_.sum_over_parts(statistic(kSquares, count), reduce);
    ops.clip_coefficient(statistic(kCoefficient), statistic(kGradNorm), statistic(kSquares, count),
                         static_cast<float>(config_.clip), reduce);
    reduce.record(reduce_done);

    // One rank has every gradient at hand, so it can refuse the whole step if one of them is not finite;
    // several would have to wait for the last reduction, and refuse region by region.
    const bool by_norm_of_all = config_.clip > 0 || ranks_.size() == 1;
    if (by_norm_of_all) optimizer.wait(reduce_done);
    for (const int id : order_) {
        const Region& region = layout_[id];
        StepContext context{.step = step,
                            .lr_factor = lr_factor,
                            .grad_scale = statistic(kCoefficient),
                            .stream = &optimizer};
        if (!by_norm_of_all) {
            optimizer.wait(*reduced_[id]);
            optimizer.wait(*released_[id]);
            context.grad_scale = statistic(region_scales_ + 2 * id);
            ops.clip_coefficient(context.grad_scale, statistic(region_scales_ + 2 * id + 1),
                                 statistic(local_squares_ + id), 0.0f, optimizer);
        }
        optimizer.wait(*copied_[id]);  // a checkpoint has read what the step changes
        optimizers_[region.group]->step(region, context);
        optimizer.record(*stepped_[id]);
        if (!reducer_.sharded()) continue;
        gather.wait(*stepped_[id]);
        reducer_.gather(region, gather);
        gather.record(*gathered_[id]);
    }
}

void OptimizerSet::read_statistics(float* host, const Event& reduce_done, Event& done) {
    Stream& optimizer = runtime_.optimizer();
    optimizer.wait(reduce_done);
    if (!runtime_.device().dry()) {
        // Not the first: the next backward writes it, on compute.
        const Tensor read = statistic(kLossTotal, kSquares + layout_.size() - kLossTotal);
        runtime_.device().copy(host + kLossTotal, read.data, read.bytes(), optimizer);
    }
    optimizer.record(*read_);
    optimizer.record(done);
}

void OptimizerSet::await_unit(int unit) {
    const auto& events = reducer_.sharded() ? gathered_ : stepped_;
    for (const int id : regions_of_unit_[unit]) runtime_.compute().wait(*events[id]);
}

void OptimizerSet::reset() {
    for (auto& optimizer : optimizers_) optimizer->reset(runtime_.compute());
}

std::vector<StatePart> OptimizerSet::state(const Region& region) const {
    std::vector<StatePart> parts = {{{"master"}, parameters_.master_part(region)}};
    for (const StatePart& part : optimizers_[region.group]->state(region)) parts.push_back(part);
    return parts;
}

void OptimizerSet::copy_state(const std::function<void(const Region&, Stream&)>& copy) {
    Stream& stream = runtime_.copy();
    for (const int id : order_) {
        stream.wait(*stepped_[id]);
        copy(layout_[id], stream);
        stream.record(*copied_[id]);
    }
}

void OptimizerSet::gather_all() {
    runtime_.synchronize();
    for (const Region& region : layout_.all()) reducer_.gather(region, runtime_.gather());
    runtime_.synchronize();
}

void OptimizerSet::read_master(const Parameter& p, void* host) {
    Stream& stream = runtime_.gather();
    const auto copy = [&](void* to, const void* from, int64_t elements) {
        runtime_.device().copy(to, from, elements * size_of(DType::f32), stream);
    };
    const bool read_in_f32 = p.full_precision || runtime_.real() == DType::f32;  // by compute, all of it
    if (!reducer_.sharded() || read_in_f32) {
        copy(host, reducer_.sharded() ? parameters_.compute_flat(p).data : parameters_.master(p).data,
             p.numel());
        return stream.synchronize();
    }
    for (const int id : layout_.regions_of(p)) {
        const Region& region = layout_[id];
        const Buffer whole(runtime_.device(), "gathered master", MemoryCategory::workspace,
                           layout_.padded(region) * size_of(DType::f32));
        reducer_.gather_master(region, whole.tensor(DType::f32, {layout_.padded(region)}), stream);
        for (const Piece& piece : region.pieces) {
            if (piece.parameter != &p) continue;
            copy(static_cast<float*>(host) + piece.in_parameter,
                 static_cast<const float*>(whole.data()) + piece.in_region, piece.count);
        }
        stream.synchronize();
    }
}

}  // namespace speedrun
