// The list of optimizers, and the groups of a config, each of which has one of them.
#pragma once

#include <memory>
#include <numeric>
#include <string>
#include <variant>
#include <vector>

#include "train/optim/adamw.h"
#include "train/optim/group_extension.h"
#include "train/optim/muon.h"
#include "train/optim/optimizer.h"

// X(word of a config, class). Everything that treats all optimizers is derived from this list.
#define SPEEDRUN_EACH_OPTIMIZER(X) \
    X(adamw, Adamw)                \
    X(muon, Muon)

namespace speedrun {

#define SPEEDRUN_NAME(name, Type) name,
enum class OptimizerKind : uint8_t { SPEEDRUN_EACH_OPTIMIZER(SPEEDRUN_NAME) };
#undef SPEEDRUN_NAME

#define SPEEDRUN_WORD(name, Type) {#name, OptimizerKind::name},
template <>
inline constexpr Word<OptimizerKind> kWords<OptimizerKind>[] = {SPEEDRUN_EACH_OPTIMIZER(SPEEDRUN_WORD)};
#undef SPEEDRUN_WORD

template <>
inline constexpr Word<VectorNorm> kWords<VectorNorm>[] = {
    {"1", VectorNorm::one}, {"2", VectorNorm::two}, {"3", VectorNorm::three}, {"inf", VectorNorm::infinity}};

// Parameters and the optimizer that trains them. All configs are members, so that --set type=WORD keeps the other keys;
// only the config of `type` has an effect.
struct OptimizerGroupConfig : StepSettings {
    OptimizerKind type = OptimizerKind::adamw;
    std::vector<std::string> params;
#define SPEEDRUN_MEMBER(name, Type) Type::Config name = {};
    SPEEDRUN_EACH_OPTIMIZER(SPEEDRUN_MEMBER)
#undef SPEEDRUN_MEMBER
    GroupExtensions extensions;

    DType weights_dtype() const;       // f32 for an optimizer without the option
    int64_t heads_per_matrix() const;  // 0: all heads, or an optimizer without the option
    void fields(FieldVisitor& v);
    // Throws a usage error, with keys and values, for a combination that cannot run. name: "optimizers.groups[0]"; steps: of
    // the run.
    void validate(const std::string& name, int64_t steps) const;

  private:
    void check_unused(const std::string& name) const;
};

struct OptimizersConfig {
    double clip = 0;
    VectorNorm clip_norm = VectorNorm::two;
    std::vector<OptimizerGroupConfig> groups;
    void fields(FieldVisitor& v);
    void validate(int64_t steps) const;  // throws a usage error
    // Throws a usage error for a weights_dtype that a run with this compute type cannot store.
    void check_precision(DType compute_dtype) const;
};

// Returns the smallest number of steps that is a multiple of every group's period.
inline int64_t common_period(const OptimizersConfig& optimizers) {
    int64_t period = 1;
    for (const OptimizerGroupConfig& group : optimizers.groups) period = std::lcm(period, group.every);
    return period;
}

using AnyOptimizer =
    std::variant<std::unique_ptr<const ElementwiseOptimizer>, std::unique_ptr<const MatrixOptimizer>>;

// Returns the optimizer of a group; of a frozen group one without state or effect.
AnyOptimizer make_optimizer(const OptimizerGroupConfig& group);

// True if the optimizer of the group is a MatrixOptimizer.
bool needs_whole_matrices(const OptimizerGroupConfig& group);

}  // namespace speedrun
