// AdamW and Muon steps on bf16 weights without an f32 master. The stored bits must be the f32 step from these
// weights, rounded once.
#include <limits>

#include "tests/kernels/adamw_numbers.h"
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::bf16_weights_test {

SPEEDRUN_OP_TEST(Bf16WeightsTest);

constexpr int64_t kCounts[] = {1, 7, 33, 130, 20011};

struct Weights {
    DType dtype;    // dtype of the master
    bool separate;  // the parameter has its own memory
};

// One step from this state: returns parameter, master, both moments.
Outputs adamw(Harness& h, const AdamwState& state, const Matrix& grad, const AdamwNumbers& numbers,
              Weights weights, DType moments, double scale = 0.5) {
    op::AdamwStep a = place(h, numbers, state, grad, scale, moments, weights.dtype);
    if (weights.separate) a.parameter = h.inout(state.master, DType::bf16, {grad.cols});
    return step(h, a);
}

TEST_P(Bf16WeightsTest, AdamwStoresRoundedStep) {
    const DType moments = dtype();
    for (const int64_t count : kCounts) {
        AdamwState state(count, DType::bf16, moments);
        for (int n = 1; n <= 3; ++n) {
            SCOPED_TRACE(fmt::format("n={} step {}", count, n));
            AdamwNumbers a = adamw_numbers(n);
            a.cautious = n == 2;
            const Matrix grad = random_matrix(1, count, 10 + n, DType::f32);
            const auto with = [&](Weights weights) {
                return run([&](Harness& h) { return adamw(h, state, grad, a, weights, moments); });
            };
            const Outputs f32 = with({DType::f32, true}), bf16 = with({DType::bf16, false});
            expect_same_bits(bf16[1], rounded(f32[1], DType::bf16), "the f32 step, rounded");
            expect_same_bits(bf16[2], f32[2], "first_moment");
            expect_same_bits(bf16[3], f32[3], "second_moment");
            expect_same_bits(with({DType::bf16, true})[0], bf16[1], "a copy of its own");
            state.step(grad, 0.5, a);
            expect_close(bf16[1], state.master, few_operations(DType::bf16), "weights");
            state.master = bf16[1];
            state.first_moment = bf16[2];
            state.second_moment = bf16[3];
        }
    }
}

// Without betas and epsilon a step is exactly the learning rate against the gradient's sign. Above 1 the bf16
// spacing is 1/128: halves round to even, and smaller steps are lost.
TEST_P(Bf16WeightsTest, AdamwByHand) {
    const auto step_by = [&](float rate, float decay) {
        AdamwState state(5);
        state.first_moment = state.second_moment = Matrix(1, 5);
        Matrix grad(1, 5, -1.0);
        state.master.values = {1.0, 1.0 + 1.0 / 128, -1.0, 1.0, 0.0};
        grad.values = {-1.0, -1.0, 1.0, 1.0, 1.0};
        AdamwNumbers a = adamw_numbers();
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

TEST_P(Bf16WeightsTest, MuonStoresRoundedUpdate) {
    for (const int64_t count : kCounts) {
        for (const bool cautious : {false, true}) {
            SCOPED_TRACE(fmt::format("n={} cautious={}", count, cautious));
            const Matrix start = random_matrix(1, count, 1, DType::bf16);
            const Matrix update = random_matrix(1, count, 2, dtype());
            const auto with = [&](Weights weights) {
                return run([&](Harness& h) -> Outputs {
                    const Tensor master = h.inout(start, weights.dtype, {count});
                    const Tensor parameter = weights.separate ? h.output(DType::bf16, {count}) : master;
                    h.call(op::MuonApply{
                        .pieces = {{.parameter = parameter,
                                    .master = master,
                                    .update = h.input(update, dtype(), {count}),
                                    .rates = numbers_in(
                                        h, muon_rates({.learning_rate = 0.03f, .weight_decay = 1.2f}))}},
                        .grad_scale = h.input(Matrix(1, 1, 0.25), DType::f32, {1}),
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

TEST_P(Bf16WeightsTest, NonFiniteScaleSkipsStep) {
    const int64_t count = 33;
    const AdamwState state(count, DType::bf16);
    const Matrix &weights = state.master, grad(1, count, std::nan(""));
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        const Outputs out = run([&](Harness& h) -> Outputs {
            Outputs all = adamw(h, state, grad, adamw_numbers(), {DType::bf16, false}, DType::f32, bad);
            const Tensor master = h.inout(weights, DType::bf16, {count});
            h.call(op::MuonApply{
                .pieces = {{.parameter = master,
                            .master = master,
                            .update = h.input(grad, DType::f32, {count}),
                            .rates = numbers_in(h, muon_rates({.learning_rate = 0.03f, .weight_decay = 0}))}},
                .grad_scale = h.input(Matrix(1, 1, bad), DType::f32, {1})});
            all.push_back(h.read(master));
            return all;
        });
        expect_same_bits(out[1], weights, "after AdamW");
        expect_same_bits(out[4], weights, "after Muon");
    }
}

}  // namespace speedrun::testing::bf16_weights_test
