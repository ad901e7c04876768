// Extensions of optimizer groups: called once after each update of a shard, with state of their own.
#include "train/optim/group_extension.h"

#include "tests/train/optimizer_harness.h"
#include "train/optim/state.h"

namespace speedrun::testing::group_extension_test {

// Adds the master to a sum after each update, and replaces the master by the sum after the last one.
class SumExtension final : public GroupExtension {
  public:
    static constexpr const char* kKey = "sum_of_weights";
    void check(const CheckedGroup&) const override {}
    std::vector<StateKind> state_kinds() const override { return {{"sum_of_weights"}}; }
    void after_update(const OptimizerShard& shard, const StepContext& context) const override {
        sum_flat(shard.state[0], {{{.source = shard.state[0]}, {.source = shard.master}}}, context);
        if (context.last) context.ops.cast({.out = shard.master, .in = shard.state[0]}, context.stream);
    }
};

TEST(GroupExtensionTest, FollowsEachUpdateOnce) {
    for (const char* optimizer : {"adamw", "muon"}) {
        OptimizerFixture fixture = load_optimizer_fixture("muon");
        fixture.group.type = choice_of<OptimizerKind>(optimizer);
        OptimizerHarness plain = muon_harness(fixture, DType::f32);
        fixture.group.extensions.set(SumExtension{});
        OptimizerHarness extended = muon_harness(fixture, DType::f32);
        int64_t elements = 0;
        for (const auto& [name, entry] : fixture.parameters) {
            elements += static_cast<int64_t>(entry.start.size());
            std::vector<float> sum(entry.start.size());
            for (int step = 0; step < 3; ++step) {
                plain.step(name, entry.gradients[step], step, 1);
                extended.step(name, entry.gradients[step], step, 1, 1, step == 2);
                const Values weights = plain.value(name);
                for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<float>(weights[i]);
                if (step < 2) {
                    EXPECT_EQ(extended.value(name), weights) << optimizer << ", step " << step;
                }
            }
            EXPECT_EQ(extended.value(name), Values(sum.begin(), sum.end())) << optimizer << ", " << name;
            EXPECT_EQ(state_tensors(fixture.group, extended.parameter(name)).back().kind.name,
                      std::string("sum_of_weights"));
            for (OptimizerHarness* h : {&plain, &extended}) {
                h->reset();
                h->set(name, entry.start);
            }
            plain.step(name, entry.gradients[0], 0, 1);
            extended.step(name, entry.gradients[0], 0, 1, 1, true);
            EXPECT_EQ(extended.value(name), plain.value(name)) << optimizer << ": a reset clears the sum";
        }
        EXPECT_EQ(extended.optimizer_bytes() - plain.optimizer_bytes(), elements * size_of(DType::f32));
    }
}

// Lengths on both sides of the width of a row of sum_flat().
TEST(GroupExtensionTest, FlatSumsOfAnyLength) {
    Runtime runtime({.device = DeviceKind::cpu, .precision = DType::bf16, .threads = 1});
    for (const int64_t count : {1, 1023, 1024, 1025, 3000}) {
        std::vector<float> x(static_cast<size_t>(count)), y(x.size()), out(x.size());
        for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) / 7, y[i] = 1 - x[i] * x[i];
        float scale = 3;
        const auto tensor = [&](std::vector<float>& v) { return Tensor(v.data(), DType::f32, {count}); };
        sum_flat(tensor(out),
                 {{{.source = tensor(x), .coefficient = Tensor(&scale, DType::f32, {1}), .factor = 0.5f},
                   {.source = tensor(y), .factor = -2}}},
                 {.grad_scale = {}, .ops = runtime.ops(), .stream = runtime.compute()});
        runtime.synchronize();
        for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(out[i], 1.5f * x[i] + -2.0f * y[i]) << i;
    }
}

}  // namespace speedrun::testing::group_extension_test
