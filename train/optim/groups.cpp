#include "train/optim/groups.h"

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
        if (config.groups[group_of[p.id]].type == OptimizerKind::muon && !p.is_matrix()) {
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

BucketRules bucket_rules(const Ranks& ranks, const ParameterTable& table, const OptimizersConfig& config) {
    BucketRules rules = bucket_rules(ranks);
    rules.group_of = assign_groups(table, config);
    for (const OptimizerGroupConfig& group : config.groups)
        rules.whole_matrix.push_back(needs_whole_matrices(group));
    rules.target = bucket_target(ranks.plan(), ranks.mesh().world_size(), table.numel());
    return rules;
}

std::vector<StateKind> state_kinds(const OptimizerGroupConfig& group, int64_t rows, int64_t cols) {
    switch (group.type) {
        case OptimizerKind::adamw:
            return Adamw::state_kinds();
        case OptimizerKind::muon:
            return Muon::state_kinds(group, rows, cols);
    }
    throw_internal("no such optimizer");
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerGroupConfig& group,
                                          const std::vector<const Bucket*>& members,
                                          ParameterStore& parameters, GradientStore& gradients,
                                          Reducer& reducer, Runtime& runtime) {
    switch (group.type) {
        case OptimizerKind::adamw:
            return std::make_unique<Adamw>(group, members, parameters, gradients, runtime);
        case OptimizerKind::muon:
            return std::make_unique<Muon>(group, members, parameters, gradients, reducer, runtime);
    }
    throw_internal("no such optimizer");
}

std::vector<std::unique_ptr<Optimizer>> make_optimizers(const OptimizersConfig& config, StepOrder order,
                                                        ParameterStore& parameters, GradientStore& gradients,
                                                        Reducer& reducer, Runtime& runtime) {
    const BucketLayout& layout = parameters.layout();
    std::vector<std::vector<const Bucket*>> members(config.groups.size());
    for (const int id : order == StepOrder::reverse ? layout.backward_order() : layout.forward_order())
        members[static_cast<size_t>(layout[id].group)].push_back(&layout[id]);
    std::vector<std::unique_ptr<Optimizer>> optimizers;
    for (size_t g = 0; g < members.size(); ++g)
        optimizers.push_back(
            make_optimizer(config.groups[g], members[g], parameters, gradients, reducer, runtime));
    return optimizers;
}

}  // namespace speedrun
