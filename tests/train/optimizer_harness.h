// One optimizer per parameter of a table, with gradients from the host.
#pragma once

#include <gtest/gtest.h>

#include "tests/train/model_harness.h"
#include "tests/train/small_model.h"
#include "train/model/build_model.h"
#include "train/sharding/group_update.h"

namespace speedrun::testing {

class OptimizerHarness {
  public:
    OptimizerHarness(const ModelConfig& model, int64_t sequence_length, const OptimizerGroupConfig& group,
                     const std::vector<std::string>& names, DType precision)
        : runtime_({.device = DeviceKind::cpu, .precision = precision, .threads = 1}),
          table_(parameters_of(model, sequence_length)),
          parameters_(table_, rules_of(group), runtime_),
          gradients_(table_, parameters_.layout(), runtime_),
          reducer_(Ranks{}, parameters_, gradients_, runtime_),
          scale_(runtime_.device(), "test scale", MemoryCategory::workspace, size_of(DType::f32)),
          numbers_(runtime_.device(), "test numbers", MemoryCategory::workspace,
                   kNumbers * size_of(DType::f32)) {
        for (const std::string& name : names)
            updates_[name] =
                make_group_update(group, {&bucket(name)}, {parameters_, gradients_, reducer_, runtime_});
        reset();
    }

    void set(const std::string& name, const Values& values) {
        write(parameters_.master(table_.find(name)), values);
        parameters_.cast_to_compute(table_.find(name), runtime_.compute());
        runtime_.synchronize();
    }
    void step(const std::string& name, const Values& gradient, int64_t step, double lr_factor,
              double grad_scale = 1, bool last = false) {
        write(gradients_.flat(table_.find(name)), gradient);
        write(scale_.tensor(DType::f32, {1}), {grad_scale});
        StepContext context{.step = step,
                            .lr_factor = lr_factor,
                            .last = last,
                            .grad_scale = scale_.tensor(DType::f32, {1}),
                            .ops = runtime_.ops(),
                            .stream = runtime_.optimizer()};
        GroupUpdate& update = *updates_.at(name);
        const std::vector<float> numbers = update.numbers(context);
        context.numbers = numbers_.tensor(DType::f32, {static_cast<int64_t>(numbers.size())});
        write(context.numbers, Values(numbers.begin(), numbers.end()));
        const Bucket* const buckets[] = {&bucket(name)};
        update.begin(buckets, context);
        update.compute_updates(context);
        update.finish(buckets, context);
        runtime_.synchronize();
    }
    void reset() {
        for (auto& [name, update] : updates_) update->reset(runtime_.compute());
        runtime_.synchronize();
    }
    const Parameter& parameter(const std::string& name) const { return table_.find(name); }
    int64_t optimizer_bytes() { return runtime_.device().memory().total(MemoryCategory::optimizer_state); }
    Values value(const std::string& name) {
        const Parameter& p = table_.find(name);
        std::vector<float> host(p.numel());
        runtime_.device().copy(host.data(), parameters_.master(p).data, p.numel() * size_of(DType::f32),
                               runtime_.compute());
        runtime_.synchronize();
        return Values(host.begin(), host.end());
    }

  private:
    static BucketRules rules_of(const OptimizerGroupConfig& group) {
        BucketRules rules;
        rules.heads_per_matrix = {group.heads_per_matrix()};
        return rules;
    }
    const Bucket& bucket(const std::string& name) const {  // each parameter is its own bucket
        const BucketLayout& layout = parameters_.layout();
        return layout.bucket_of(table_.find(name));
    }
    void write(const Tensor& tensor, const Values& values) {
        const std::vector<float> host(values.begin(), values.end());
        ASSERT_EQ(tensor.numel(), static_cast<int64_t>(host.size()));
        runtime_.device().copy(tensor.data, host.data(), tensor.bytes(), runtime_.compute());
        runtime_.synchronize();
    }

    static constexpr int64_t kNumbers = 16;  // at least those of a group

    Runtime runtime_;
    ParameterTable table_;
    ParameterStore parameters_;
    GradientStore gradients_;
    Reducer reducer_;
    std::map<std::string, std::unique_ptr<GroupUpdate>> updates_;  // one per parameter, stepped separately
    Buffer scale_, numbers_;
};

// Parameters of a Muon fixture at their initial values.
inline OptimizerHarness muon_harness(const OptimizerFixture& fixture, DType precision) {
    const ModelConfig model =
        model_of("modern", {.layers = 1, .width = fixture.model_dim, .heads = 4, .vocabulary = 257},
                 {fmt::format("model.layers.each.mlp.ratio={}", fixture.mlp_ratio)});
    std::vector<std::string> names;
    for (const auto& [name, entry] : fixture.parameters) names.push_back(name);
    OptimizerHarness h(model, 8, fixture.group, names, precision);
    for (const auto& [name, entry] : fixture.parameters) h.set(name, entry.start);
    return h;
}
inline Values times(Values values, double factor) {
    for (double& value : values) value *= factor;
    return values;
}

}  // namespace speedrun::testing
