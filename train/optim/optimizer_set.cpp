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

std::unique_ptr<Optimizer> make_optimizer(const OptimizerGroupConfig& group,
                                          const std::vector<const Parameter*>& members,
                                          ParameterStore& parameters, GradientStore& gradients,
                                          Runtime& runtime) {
    if (group.type == "muon") return std::make_unique<Muon>(group, members, parameters, gradients, runtime);
    return std::make_unique<Adamw>(group, members, parameters, gradients, runtime);
}

OptimizerSet::OptimizerSet(const OptimizersConfig& config, const ParameterTable& table,
                           ParameterStore& parameters, GradientStore& gradients, Runtime& runtime)
    : config_(config),
      table_(table),
      gradients_(gradients),
      runtime_(runtime),
      group_of_(assign_groups(table, config)) {
    for (size_t g = 0; g < config.groups.size(); ++g) {
        std::vector<const Parameter*> members;
        for (const Parameter& p : table.all()) {
            if (group_of_[p.id] == static_cast<int>(g)) members.push_back(&p);
        }
        optimizers_.push_back(make_optimizer(config.groups[g], members, parameters, gradients, runtime));
    }
    num_statistics_ = kSquares + table.size();
    statistics_ = Buffer(runtime.device(), "step statistics", MemoryCategory::workspace,
                         num_statistics_ * size_of(DType::f32));
    for (int i = 0; i < table.size(); ++i) raw_.push_back(runtime.device().create_event());
    for (int i = 0; i < table.num_units(); ++i) stepped_.push_back(runtime.device().create_event());
}

void OptimizerSet::gradient_ready(const Parameter& p) {
    runtime_.compute().record(*raw_[p.id]);
}

void OptimizerSet::take_norm(const Parameter& p) {
    runtime_.optimizer().wait(*raw_[p.id]);
    runtime_.ops().sum_of_squares(statistic(kSquares + p.id), gradients_.flat(p), runtime_.optimizer());
}

void OptimizerSet::step(int64_t step, double lr_factor) {
    Stream& stream = runtime_.optimizer();
    const Tensor squares = statistics_.tensor(DType::f32, {table_.size()}, kSquares * size_of(DType::f32));
    runtime_.ops().clip_coefficient(statistic(kCoefficient), statistic(kGradNorm), squares,
                                    static_cast<float>(config_.clip), stream);
    const StepContext context{
        .step = step, .lr_factor = lr_factor, .grad_scale = statistic(kCoefficient), .stream = &stream};
    for (int id = table_.size(); id-- > 0;) {
        const Parameter& p = table_[id];
        optimizers_[group_of_[id]]->step(p, context);
        // Units are contiguous in the table: the first parameter of a unit is the last one to be stepped.
        if (id == 0 || table_[id - 1].unit != p.unit) stream.record(*stepped_[p.unit]);
    }
}

void OptimizerSet::await_unit(int unit) {
    runtime_.compute().wait(*stepped_[unit]);
}

void OptimizerSet::reset() {
    for (auto& optimizer : optimizers_) optimizer->reset(runtime_.compute());
}

}  // namespace speedrun
