#include "train/optim/groups.h"

#include <fnmatch.h>

namespace speedrun {

namespace {

// Checks heads_per_matrix: the group has matrices of queries or keys, and the value divides their number of heads.
void check_heads(const ParameterTable& table, const OptimizersConfig& config,
                 const std::vector<int>& group_of) {
    for (size_t g = 0; g < config.groups.size(); ++g) {
        const int64_t heads = config.groups[g].heads_per_matrix();
        if (heads == 0) continue;
        bool any = false;
        for (const Parameter& p : table.all()) {
            if (group_of[p.id] != static_cast<int>(g) || p.head_rows.stacks == 0) continue;
            any = true;
            if (p.head_rows.heads % heads != 0)
                throw_usage("optimizers.groups[{}].heads_per_matrix {} does not divide the {} heads of {}", g,
                            heads, p.head_rows.heads, p.name);
        }
        if (!any)
            throw_usage(
                "optimizers.groups[{}].heads_per_matrix is {}, but its params match no matrix of queries and keys: "
                "set it to 0",
                g, heads);
    }
}

}  // namespace

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
        const OptimizerGroupConfig& group = config.groups[static_cast<size_t>(group_of[p.id])];
        if (needs_whole_matrices(group) && !p.is_matrix()) {
            throw_usage("optimizers.groups[{}]: {} trains matrices only, but its params match the vector {}",
                        group_of[p.id], word_of(group.type), p.name);
        }
        if (group.weights_dtype() == DType::bf16 && p.full_precision) {
            throw_usage(
                "optimizers.groups[{}]: weights_dtype is bf16, but its params match the vector {}, which is "
                "computed with in f32: give vectors a group of their own before it",
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
    check_heads(table, config, group_of);
    return group_of;
}

}  // namespace speedrun
