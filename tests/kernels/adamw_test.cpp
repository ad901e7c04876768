// Covers: kernels/ops/optimizer.cpp
#include <limits>

#include "tests/kernels/adamw_numbers.h"
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::adamw_test {

SPEEDRUN_OP_TEST(AdamwTest);

void expect_state(const Outputs& out, const AdamwState& expected, DType dtype, DType moments = DType::f32) {
    expect_close(out[1], expected.master, few_operations(DType::f32), "master");
    expect_close(out[2], expected.first_moment, few_operations(moments), "first_moment");
    expect_close(out[3], expected.second_moment, few_operations(moments), "second_moment");
    expect_same_bits(out[0], rounded(out[1], dtype), "parameter is the rounded master");
}

TEST_P(AdamwTest, ThreeSteps) {
    sweep(std::tuple{Ints{1, 7, 33, 130, 20011}}, [&](int64_t count) {
        const AdamwState start(count);
        const bool shared = dtype() == DType::f32 && count % 2 == 1;  // parameter is the master
        const float scales[] = {1.0f, 0.125f, 3.0f};
        const Outputs out = run([&](Harness& h) -> Outputs {
            op::AdamwStep a = place(h, adamw_numbers(), start, Matrix(1, count), 0);
            if (!shared) a.parameter = h.output(dtype(), {count});
            Outputs last;
            for (int n = 1; n <= 3; ++n) {
                a.grad = h.input(random_matrix(1, count, 10 + n, DType::f32), DType::f32, {count});
                a.grad_scale = h.input(Matrix(1, 1, scales[n - 1]), DType::f32, {1});
                a.rates = rates_in(h, adamw_numbers(n));
                last = step(h, a);
            }
            return last;
        });
        AdamwState expected = start;
        for (int n = 1; n <= 3; ++n)
            expected.step(random_matrix(1, count, 10 + n, DType::f32), scales[n - 1], adamw_numbers(n));
        expect_state(out, expected, dtype());
    });
}

// Weights and gradients of either sign: half of the weights decay. Every fifth has no momentum and no
// gradient.
TEST_P(AdamwTest, CautiousDecay) {
    sweep(std::tuple{Ints{1, 33, 20011}}, [&](int64_t count) {
        AdamwState start(count);
        Matrix grad = random_matrix(1, count, 10, DType::f32);
        for (int64_t i = 0; i < count; i += 5) start.first_moment[i] = grad[i] = 0;
        AdamwNumbers cautious = adamw_numbers();
        cautious.decays_unmoved = count != 33;
        cautious.cautious = true;
        cautious.weight_decay = 30.0f;  // so large that one wrong decay exceeds rounding errors
        const Outputs out = run([&](Harness& h) {
            op::AdamwStep a = place(h, cautious, start, grad, 1.0);
            a.parameter = h.output(dtype(), {count});
            return step(h, a);
        });
        AdamwState expected = start;
        expected.step(grad, 1.0, cautious);
        expect_state(out, expected, dtype());
    });
}

// The first step moves by the learning rate against the gradient's sign, from 1 and from -1. Only the first
// moves towards 0 and decays. A weight that does not move decays unless decays_unmoved is false.
TEST_P(AdamwTest, CautiousDecayByHand) {
    for (const bool unmoved : {true, false}) {
        AdamwState state(3);
        state.master = Matrix(1, 3, 1.0);
        state.first_moment = state.second_moment = Matrix(1, 3);
        Matrix grad(1, 3, 1.0);
        state.master[1] = -1.0;
        grad[2] = 0.0;
        AdamwNumbers a = adamw_numbers();
        a.cautious = true;
        a.decays_unmoved = unmoved;
        a.weight_decay = 10.0f;
        const Outputs out = run([&](Harness& h) { return step(h, place(h, a, state, grad, 1.0)); });
        EXPECT_NEAR(out[1][0], 1 - 0.01 - 0.1, 1e-6);
        EXPECT_NEAR(out[1][1], -1 - 0.01, 1e-6);
        EXPECT_NEAR(out[1][2], unmoved ? 1 - 0.1 : 1, 1e-6);
    }
}

// Compares each step with the reference from the state stored by the one before. The master uses the f32
// moments. Stored moments are the nearest bf16, or its neighbor where f32 and float64 are on two sides of a
// midpoint.
TEST_P(AdamwTest, RoundsBf16MomentsAtStore) {
    sweep(std::tuple{Ints{1, 7, 33, 130, 20011}}, [&](int64_t count) {
        AdamwState state(count, DType::f32, DType::bf16);
        for (int n = 1; n <= 3; ++n) {
            const Matrix grad = random_matrix(1, count, 10 + n, DType::f32);
            const Outputs out = run([&](Harness& h) {
                op::AdamwStep a = place(h, adamw_numbers(n), state, grad, 0.5, DType::bf16);
                a.parameter = h.output(dtype(), {count});
                return step(h, a);
            });
            state.step(grad, 0.5, adamw_numbers(n));
            expect_state(out, state, dtype(), DType::bf16);
            state.master = out[1];
            state.first_moment = out[2];
            state.second_moment = out[3];
        }
    });
}

// With beta1 = beta2 = 0 the moments are the gradient and its square, and only the store rounds. Halves round
// to even, and the next step does not see the rounding error.
TEST_P(AdamwTest, RoundsBf16MomentsToNearestEven) {
    const int64_t count = 200;
    Matrix grad = random_matrix(1, count, 1, DType::f32);
    grad[0] = 1.0 + 1.0 / 256;   // midpoint of 1 and 1 + 1/128: rounds to 1
    grad[1] = 1.0 + 3.0 / 256;   // midpoint of 1 + 1/128 and 1 + 2/128: rounds up
    grad[2] = -1.0 - 1.0 / 256;  // rounds to -1
    Matrix squares(1, count);
    for (int64_t i = 0; i < count; ++i) {
        const auto g = static_cast<float>(grad[i]);
        squares[i] = g * g;
    }
    AdamwState state(count);
    state.first_moment = state.second_moment = Matrix(1, count, 5.0);
    AdamwNumbers a = adamw_numbers();
    a.beta1 = a.beta2 = 0.0f;
    const Outputs out = run([&](Harness& h) { return step(h, place(h, a, state, grad, 1.0, DType::bf16)); });
    expect_same_bits(out[2], rounded(grad, DType::bf16), "first_moment");
    expect_same_bits(out[3], rounded(squares, DType::bf16), "second_moment");
    EXPECT_EQ(out[2][0], 1.0);
    EXPECT_EQ(out[2][1], 1.0 + 2.0 / 128);
    EXPECT_EQ(out[2][2], -1.0);
}

TEST_P(AdamwTest, NonFiniteScaleSkipsStep) {
    const float infinity = std::numeric_limits<float>::infinity();
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
        const AdamwState start(33);
        const Matrix parameter = rounded(start.master, dtype());
        const Outputs out = run([&](Harness& h) {
            op::AdamwStep a = place(h, adamw_numbers(), start, Matrix(1, 33, std::nan("")), bad);
            a.parameter = h.inout(parameter, dtype(), {33});
            return step(h, a);
        });
        expect_same_bits(out[0], parameter, "parameter");
        expect_same_bits(out[1], start.master, "master");
        expect_same_bits(out[2], start.first_moment, "first_moment");
        expect_same_bits(out[3], start.second_moment, "second_moment");
    }
}

}  // namespace speedrun::testing::adamw_test
