#include "train/optim/optimizers.h"

#include <algorithm>
#include <iterator>

#include "train/fields/field_texts.h"

namespace speedrun {

namespace {

// Calls f(config) for the config of the group's type.
template <class Group, class F>
auto on_chosen(Group& group, F&& f) {
    switch (group.type) {
#define SPEEDRUN_CASE(name, Type) \
    case OptimizerKind::name:     \
        return f(group.name);
        SPEEDRUN_EACH_OPTIMIZER(SPEEDRUN_CASE)
#undef SPEEDRUN_CASE
    }
    throw_internal("no such optimizer");
}

bool has(const std::vector<FieldText>& fields, const std::string& name) {
    return std::any_of(fields.begin(), fields.end(), [&](const FieldText& f) { return f.name == name; });
}

// The optimizer of a frozen group.
class NoOptimizer final : public ElementwiseOptimizer {
  public:
    std::vector<StateKind> state_kinds() const override { return {}; }
    std::vector<float> numbers(const StepContext&) const override { return {}; }
    void step(const OptimizerShard&, const StepContext&) const override {}
};

// Keys that a group of any type may set, for configs of earlier versions. Every other key is refused where its
// optimizer is not used.
constexpr std::string_view kAlwaysAccepted[] = {"beta1",    "beta2",          "epsilon",
                                                "momentum", "momentum_start", "momentum_warmup_steps",
                                                "nesterov", "polar_epsilon",  "normuon"};

}  // namespace

DType OptimizerGroupConfig::weights_dtype() const {
    return on_chosen(*this, [](const auto& config) {
        if constexpr (requires { config.weights_dtype; }) return config.weights_dtype;
        return DType::f32;
    });
}

int64_t OptimizerGroupConfig::heads_per_matrix() const {
    return on_chosen(*this, [](const auto& config) {
        if constexpr (requires { config.heads_per_matrix; }) return config.heads_per_matrix;
        return int64_t{0};
    });
}

void OptimizerGroupConfig::fields(FieldVisitor& v) {
    v.choice("type", type, "optimizer of the group");
    v.field("params", params,
            "name patterns (*, ?) of its parameters; a parameter belongs to the first group that matches");
    v.field(
        "lr", lr,
        "learning rate at the peak of the schedule; 0 freezes the group: its parameters do not change, have no optimizer "
        "state, and do not count in the gradient norm",
        {0, 1e3});
    v.field("weight_decay", weight_decay,
            "decoupled weight decay; a step shrinks weights by this times the factor of weight_decay_by",
            {0, 1e3});
    v.choice(
        "weight_decay_by", weight_decay_by,
        "factor of weight_decay; lr: the learning rate; lr_squared: its square, for muon times the factor "
        "max(1, rows/cols)^0.5 of the matrix");
    // Several optimizers may have one key. The last visit decides which value is written.
#define SPEEDRUN_OTHER(name, Type) \
    if (type != OptimizerKind::name) name.fields(v);
    SPEEDRUN_EACH_OPTIMIZER(SPEEDRUN_OTHER)
#undef SPEEDRUN_OTHER
    on_chosen(*this, [&](auto& config) { config.fields(v); });
    v.field("every", every,
            "steps of the run per update of the group, on the sum of their gradients; the gradient norm "
            "omits the group in other steps",
            {1, 64});
    extensions.fields(v);
}

void OptimizerGroupConfig::validate(const std::string& name, int64_t steps) const {
    if (params.empty()) throw_usage("{}.params is empty", name);
    check_unused(name);
    CheckedGroup group{.name = name, .run_steps = steps, .every = every, .weights_dtype = weights_dtype()};
    on_chosen(*this, [&](const auto& config) { config.check(group); });
    for (const auto& [key, extension] : extensions.all()) {
        group.name = fmt::format("{}.{}", name, key);
        if (frozen())
            throw_usage("{} is set, but {}.lr is 0, which freezes the group: remove one of them", group.name,
                        name);
        extension->check(group);
    }
}

void OptimizerGroupConfig::check_unused(const std::string& name) const {
    OptimizerGroupConfig group = *this;
    const auto own = on_chosen(
        group, [](auto& config) { return field_texts([&](FieldVisitor& v) { config.fields(v); }); });
    const auto check = [&](auto& config, const char* owner) {
        std::remove_reference_t<decltype(config)> plain;
        const auto values = field_texts([&](FieldVisitor& v) { config.fields(v); });
        const auto defaults = field_texts([&](FieldVisitor& v) { plain.fields(v); });
        for (size_t i = 0; i < values.size(); ++i) {
            const auto& [key, value] = values[i];
            if (value == defaults[i].value || has(own, key) ||
                std::find(std::begin(kAlwaysAccepted), std::end(kAlwaysAccepted), key) !=
                    std::end(kAlwaysAccepted))
                continue;
            throw_usage("{}.{} is {}, but type is {}: set it to {}, or type={}", name, key, value,
                        word_of(type), defaults[i].value, owner);
        }
    };
#define SPEEDRUN_CHECK(name, Type) check(group.name, #name);
    SPEEDRUN_EACH_OPTIMIZER(SPEEDRUN_CHECK)
#undef SPEEDRUN_CHECK
}

void OptimizersConfig::fields(FieldVisitor& v) {
    v.field("clip", clip, "largest global gradient norm; 0: no clipping", {0, 1e9});
    v.choice("clip_norm", clip_norm,
             "p of the p-norm that is clipped and logged as grad_norm; inf: the largest magnitude");
    v.list(
        "groups", "optimizers and their parameters; together they cover every parameter", groups.size(),
        [this](size_t n) { groups.resize(n); },
        [this](size_t i, FieldVisitor& inner) { groups[i].fields(inner); });
}

void OptimizersConfig::validate(int64_t steps) const {
    if (groups.empty()) throw_usage("optimizers.groups is empty: no parameter would be trained");
    for (size_t i = 0; i < groups.size(); ++i)
        groups[i].validate(fmt::format("optimizers.groups[{}]", i), steps);
}

void OptimizersConfig::check_precision(DType compute_dtype) const {
    for (size_t i = 0; i < groups.size(); ++i) {
        const DType stored = groups[i].weights_dtype();
        if (stored == DType::f32 || compute_dtype == stored) continue;
        throw_usage(
            "optimizers.groups[{}].weights_dtype is {}, but the run computes in {}, which would keep a copy of "
            "{}: set precision=bf16, which runs on every device, or weights_dtype=f32",
            i, word_of(stored), word_of(compute_dtype), word_of(compute_dtype));
    }
}

AnyOptimizer make_optimizer(const OptimizerGroupConfig& group) {
    if (group.frozen()) return std::make_unique<const NoOptimizer>();
    switch (group.type) {
#define SPEEDRUN_CASE(name, Type) \
    case OptimizerKind::name:     \
        return std::make_unique<const Type>(group, group.name);
        SPEEDRUN_EACH_OPTIMIZER(SPEEDRUN_CASE)
#undef SPEEDRUN_CASE
    }
    throw_internal("no such optimizer");
}

bool needs_whole_matrices(const OptimizerGroupConfig& group) {
    return std::holds_alternative<std::unique_ptr<const MatrixOptimizer>>(make_optimizer(group));
}

}  // namespace speedrun
