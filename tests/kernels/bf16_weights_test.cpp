// AdamW and Muon steps on bf16 weights without an f32 master. The stored bits must be the f32 step from these
// weights, rounded once.
#include <limits>

#include "tests/kernels/adamw_numbers.h"
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {
namespace bf16_weights_test {

SPEEDRUN_OP_TEST(Bf16WeightsTest);

constexpr int64_t kCounts[] = {1, 7, 33, 130, 20011};

struct Weights {
    DType dtype;    // dtype of the master
    bool separate;  // the parameter has its own memory
};

struct AdamwState {
    Matrix weights, first_moment, second_moment;
};

// One step from this state: returns parameter, master, both moments.
Outputs adamw(Harness& h, const AdamwState& state, const Matrix& grad, op::AdamwStep a, Weights weights,
              DType moments, double scale = 0.5) {
    const int64_t count = state.weights.size();
    a.master = h.inout(state.weights, weights.dtype, {count});
    a.parameter = weights.separate ? h.inout(state.weights, DType::bf16, {count}) : a.master;
    a.first_moment = h.inout(state.first_moment, moments, {count});
    a.second_moment = h.inout(state.second_moment, moments, {count});
    a.grad = h.input(grad, DType::f32, {count});
    a.grad_scale = h.input(Matrix(1, 1, scale), DType::f32, {1});
    h.call(a);
    return {h.read(a.parameter), h.read(a.master), h.read(a.first_moment), h.read(a.second_moment)};
}

TEST_P(Bf16WeightsTest, AdamwStoresTheRoundedStep) {
    const DType moments = dtype();
    for (const int64_t count : kCounts) {
        AdamwState state{random_matrix(1, count, 1, DType::bf16), random_matrix(1, count, 2, moments, 0.1),
                         random_matrix(1, count, 3, moments, 0.1)};
        for (double& v : state.second_moment.values) v = std::abs(v);
        for (int step = 1; step <= 3; ++step) {
            SCOPED_TRACE(fmt::format("n={} step {}", count, step));
            op::AdamwStep a = adamw_numbers(step);
            a.cautious = step == 2;
            const Matrix grad = random_matrix(1, count, 10 + step, DType::f32);
            const auto with = [&](Weights weights) {
                return run([&](Harness& h) { return adamw(h, state, grad, a, weights, moments); });
            };
            const Outputs f32 = with({DType::f32, true}), bf16 = with({DType::bf16, false});
            expect_same_bits(bf16[1], rounded(f32[1], DType::bf16), "the f32 step, rounded");
            expect_same_bits(bf16[2], f32[2], "first_moment");
            expect_same_bits(bf16[3], f32[3], "second_moment");
            expect_same_bits(with({DType::bf16, true})[0], bf16[1], "a copy of its own");
            AdamwState expected = state;
            reference::adamw_step(expected.weights, expected.first_moment, expected.second_moment, grad, 0.5,
                                  a);
            expect_close(bf16[1], expected.weights, few_operations(DType::bf16), "weights");
            state = {bf16[1], bf16[2], bf16[3]};
        }
    }
}

// Without betas and epsilon a step is exactly the learning rate against the gradient's sign. Above 1 the bf16
// spacing is 1/128: halves round to even, and smaller steps are lost.
TEST_P(Bf16WeightsTest, AdamwByHand) {
    const auto step_by = [&](float rate, float decay) {
        AdamwState state{Matrix(1, 5), Matrix(1, 5), Matrix(1, 5)};
        Matrix grad(1, 5, -1.0);
        state.weights.values = {1.0, 1.0 + 1.0 / 128, -1.0, 1.0, 0.0};
        grad.values = {-1.0, -1.0, 1.0, 1.0, 1.0};
        op::AdamwStep a = adamw_numbers();
        a.beta1 = a.beta2 = a.epsilon = 0.0f;
        a.learning_rate = rate;
        a.weight_decay = decay;
        return run([&](Harness& h) {
            return adamw(h, state, grad, a, {DType::bf16, false}, DType::f32, 1.0);
        })[1];
    };
    using Numbers = std::vector<double>;
    EXPECT_EQ(step_by(1.0f / 256, 0).values, (Numbers{1, 1 + 2.0 / 128, -1, 1 - 1.0 / 256, -1.0 / 256}));
    EXPECT_EQ(step_by(1.5f / 256, 0).values,
              (Numbers{1 + 1.0 / 128, 1 + 2.0 / 128, -1 - 1.0 / 128, 1 - 2.0 / 256, -1.5 / 256}));
    EXPECT_EQ(step_by(1.0f / 1024, 0).values, (Numbers{1, 1 + 1.0 / 128, -1, 1, -1.0 / 1024}));
    // A decay as large as the step: both are applied before a single rounding.
    EXPECT_EQ(step_by(1.0f / 256, 1)[0], 1);
    EXPECT_EQ(step_by(1.0f / 256, 1)[3], 1 - 2.0 / 256);
}

TEST_P(Bf16WeightsTest, MuonStoresTheRoundedUpdate) {
    for (const int64_t count : kCounts) {
        for (const bool cautious : {false, true}) {
            SCOPED_TRACE(fmt::format("n={} cautious={}", count, cautious));
            const Matrix start = random_matrix(1, count, 1, DType::bf16);
            const Matrix update = random_matrix(1, count, 2, dtype());
            const auto with = [&](Weights weights) {
                return run([&](Harness& h) -> Outputs {
                    const Tensor master = h.inout(start, weights.dtype, {count});
                    const Tensor parameter = weights.separate ? h.output(DType::bf16, {count}) : master;
                    h.call(op::MuonApply{.parameter = parameter,
                                         .master = master,
                                         .update = h.input(update, dtype(), {count}),
                                         .grad_scale = h.input(Matrix(1, 1, 0.25), DType::f32, {1}),
                                         .learning_rate = 0.03f,
                                         .weight_decay = 1.2f,
                                         .cautious = cautious});
                    return {h.read(parameter), h.read(master)};
                });
            };
            const Outputs f32 = with({DType::f32, true}), bf16 = with({DType::bf16, false});
            expect_same_bits(bf16[1], rounded(f32[1], DType::bf16), "the f32 update, rounded");
            expect_same_bits(with({DType::bf16, true})[0], bf16[1], "a copy of its own");
            Matrix expected = start;
            reference::muon_apply(expected, update, 0.03f, 1.2f, cautious);
            expect_close(bf16[1], expected, few_operations(DType::bf16), "weights");
        }
    }
}

TEST_P(Bf16WeightsTest, NothingChangesIfTheScaleIsNotFinite) {
    const int64_t count = 33;
    const Matrix weights = random_matrix(1, count, 1, DType::bf16), grad(1, count, std::nan(""));
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        const Outputs out = run([&](Harness& h) -> Outputs {
            Outputs all = adamw(h, {weights, Matrix(1, count), Matrix(1, count)}, grad, adamw_numbers(),
                                {DType::bf16, false}, DType::f32, bad);
            const Tensor master = h.inout(weights, DType::bf16, {count});
            h.call(op::MuonApply{.parameter = master,
                                 .master = master,
                                 .update = h.input(grad, DType::f32, {count}),
                                 .grad_scale = h.input(Matrix(1, 1, bad), DType::f32, {1}),
                                 .learning_rate = 0.03f,
                                 .weight_decay = 0});
            all.push_back(h.read(master));
            return all;
        });
        expect_same_bits(out[1], weights, "after AdamW");
        expect_same_bits(out[4], weights, "after Muon");
    }
}

}  // namespace bf16_weights_test
}  // namespace speedrun::testing
