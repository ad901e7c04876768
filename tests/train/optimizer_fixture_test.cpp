// Ten steps of every optimizer against PyTorch (fixtures/generate.py). Elementwise optimizers update a shard without
// a model. Muon runs in the group update that gathers its matrices.
// Covers: train/optim/optimizers.cpp
#include <cmath>
#include <limits>
#include <list>

#include "kernels/runtime/runtime.h"
#include "tests/train/optimizer_harness.h"
#include "train/optim/optimizers.h"

namespace speedrun::testing::optimizer_fixture_test {

// ---- elementwise optimizers: all names accepted in configs, on a shard of 96 elements

std::vector<std::string> elementwise_optimizers() {
    std::vector<std::string> words;
    for (const Word<OptimizerKind>& word : kWords<OptimizerKind>) {
        OptimizerGroupConfig group;
        group.type = word.value;
        if (!needs_whole_matrices(group)) words.emplace_back(word.text);
    }
    return words;
}

// Parameters, gradients and optimizer state in separate buffers.
class Shard {
  public:
    Shard(const OptimizerGroupConfig& group, const Values& start)
        : optimizer_(std::get<0>(make_optimizer(group))), count_(static_cast<int64_t>(start.size())) {
        for (const StateKind& kind : optimizer_->state_kinds()) {
            EXPECT_TRUE(kind.per_element()) << kind.name;
            state_.push_back(allocate(count_));
            runtime_.ops().fill({.x = state_.back(), .value = 0.0f}, runtime_.compute());
        }
        write(master_, start);
    }
    ~Shard() { runtime_.drain(); }
    Shard(const Shard&) = delete;
    Shard& operator=(const Shard&) = delete;

    void step(const Values& gradient, int64_t step, double lr_factor, double grad_scale = 1) {
        write(gradient_, gradient);
        write(scale_, {grad_scale});
        StepContext context{.step = step,
                            .lr_factor = lr_factor,
                            .grad_scale = scale_,
                            .ops = runtime_.ops(),
                            .stream = runtime_.compute()};
        const std::vector<float> numbers = optimizer_->numbers(context);
        if (!numbers_.present()) numbers_ = allocate(static_cast<int64_t>(numbers.size()));
        write(numbers_, Values(numbers.begin(), numbers.end()));
        context.numbers = numbers_;
        optimizer_->step({.compute = compute_, .master = master_, .gradient = gradient_, .state = state_},
                         context);
        EXPECT_EQ(values_of(compute_), values());
    }
    Values values() { return values_of(master_); }

  private:
    Tensor allocate(int64_t count) {
        memory_.emplace_back(runtime_.device(), "test", MemoryCategory::workspace,
                             count * size_of(DType::f32));
        return memory_.back().tensor(DType::f32, {count});
    }
    void write(const Tensor& tensor, const Values& values) {
        const std::vector<float> host(values.begin(), values.end());
        ASSERT_EQ(tensor.numel(), static_cast<int64_t>(host.size()));
        runtime_.device().copy(tensor.data, host.data(), tensor.bytes(), runtime_.compute());
        runtime_.synchronize();
    }
    Values values_of(const Tensor& tensor) {
        std::vector<float> host(static_cast<size_t>(tensor.numel()));
        runtime_.device().copy(host.data(), tensor.data, tensor.bytes(), runtime_.compute());
        runtime_.synchronize();
        return Values(host.begin(), host.end());
    }

    Runtime runtime_{{.device = DeviceKind::cpu, .precision = DType::f32, .threads = 1}};
    const std::unique_ptr<const ElementwiseOptimizer> optimizer_;
    const int64_t count_;
    std::list<Buffer> memory_;
    std::vector<Tensor> state_;
    Tensor master_ = allocate(count_), compute_ = allocate(count_), gradient_ = allocate(count_),
           scale_ = allocate(1);
    Tensor numbers_ = {};
};

class ElementwiseFixtureTest : public ::testing::TestWithParam<std::string> {
  protected:
    const OptimizerFixture fixture_ = load_optimizer_fixture(GetParam());
    const OptimizerFixture::Entry& entry_ = fixture_.parameters.at("");
};
INSTANTIATE_TEST_SUITE_P(Optimizers, ElementwiseFixtureTest, ::testing::ValuesIn(elementwise_optimizers()),
                         [](const auto& info) { return info.param; });

// A step moves an element by at most a few lr. Its relative error is about 1e-6: a quotient, a root, and 1 − β^t =
// 0.05 with an absolute error of 6e-8. Elements are of size 1 and rounded to 6e-8 ten times. 2e-6 bounds the sum of
// both.
TEST_P(ElementwiseFixtureTest, TenStepsAgreeWithPyTorch) {
    Shard shard(fixture_.group, entry_.start);
    ASSERT_EQ(entry_.gradients.size(), 10u);
    for (int step = 0; step < 10; ++step) {
        shard.step(entry_.gradients[step], step, fixture_.lr_factors[step]);
        EXPECT_LT(largest_of(difference_of(shard.values(), entry_.after.at(step + 1))), 2e-6)
            << "step " << step;
    }
}

// Clipping scales the gradients. Scaling by a power of two is exact.
TEST_P(ElementwiseFixtureTest, GradientsAreScaled) {
    Shard plain(fixture_.group, entry_.start), scaled(fixture_.group, entry_.start);
    for (int step = 0; step < 3; ++step) {
        plain.step(entry_.gradients[step], step, 1);
        scaled.step(times(entry_.gradients[step], 8), step, 1, 0.125);
    }
    EXPECT_EQ(scaled.values(), plain.values());
}

TEST_P(ElementwiseFixtureTest, NonFiniteScaleSkipsStep) {
    Shard plain(fixture_.group, entry_.start), disturbed(fixture_.group, entry_.start);
    plain.step(entry_.gradients[0], 0, 1);
    disturbed.step(entry_.gradients[0], 0, 1);
    disturbed.step(Values(entry_.start.size(), std::nan("")), 1, 1, std::nan(""));
    EXPECT_EQ(disturbed.values(), plain.values());
    plain.step(entry_.gradients[1], 1, 1);
    disturbed.step(entry_.gradients[1], 1, 1);
    EXPECT_EQ(disturbed.values(), plain.values()) << "the state was touched";
}

// ---- Muon: three stacked square matrices, a tall and a wide matrix

class MuonFixtureTest : public ::testing::Test {
  protected:
    OptimizerHarness harness(DType precision) const { return muon_harness(fixture_, precision); }
    // ‖error‖ relative to ‖total update so far‖.
    void expect_agreement(DType precision, double tolerance) const {
        OptimizerHarness h = harness(precision);
        for (int step = 0; step < 10; ++step) {
            for (const auto& [name, entry] : fixture_.parameters) {
                h.step(name, entry.gradients.at(step), step, fixture_.lr_factors[step]);
                if (!entry.after.count(step + 1)) continue;
                const Values& expected = entry.after.at(step + 1);
                const double moved = norm_of(difference_of(expected, entry.start));
                EXPECT_LT(norm_of(difference_of(h.value(name), expected)), tolerance * moved)
                    << name << " after " << step + 1;
            }
        }
    }

    const OptimizerFixture fixture_ = load_optimizer_fixture("muon");
};

// The polar factor amplifies the smallest singular values of the square matrices by up to a thousand. It amplifies
// rounding errors too (6e-8 relative to the largest value): 6e-5 for single directions, less in the norm.
TEST_F(MuonFixtureTest, TenStepsAgreeInF32) {
    expect_agreement(DType::f32, 5e-5);
}

// In bf16 one update errs by up to 14 %, the polynomials' error bound (see tests/kernels/muon_test.cpp). Directions
// of the errors vary, so less than half of it remains in the total update of ten steps.
TEST_F(MuonFixtureTest, TenStepsAgreeInBf16) {
    expect_agreement(DType::bf16, 0.07);
}

TEST_F(MuonFixtureTest, ScalesGradientsAndSkipsNanScale) {
    OptimizerHarness plain = harness(DType::f32), other = harness(DType::f32);
    for (const auto& [name, entry] : fixture_.parameters) {
        plain.step(name, entry.gradients[0], 0, 1);
        other.step(name, times(entry.gradients[0], 8), 0, 1, 0.125);
        EXPECT_EQ(other.value(name), plain.value(name)) << name;
        other.step(name, Values(entry.start.size(), std::nan("")), 1, 1,
                   std::numeric_limits<double>::infinity());
        EXPECT_EQ(other.value(name), plain.value(name)) << name;
        plain.step(name, entry.gradients[1], 1, 1);
        other.step(name, entry.gradients[1], 1, 1);
        EXPECT_EQ(other.value(name), plain.value(name)) << name << ": the momentum was touched";
    }
}

}  // namespace speedrun::testing::optimizer_fixture_test
