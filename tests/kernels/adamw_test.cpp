// Covers: kernels/ops/optimizer.cpp
#include <limits>

#include "tests/kernels/adamw_numbers.h"
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {
namespace adamw_test {

SPEEDRUN_OP_TEST(AdamwTest);

struct State {
    Matrix master, first_moment, second_moment;

    explicit State(int64_t count)
        : master(random_matrix(1, count, 1, DType::f32)),
          first_moment(random_matrix(1, count, 2, DType::f32, 0.1)),
          second_moment(random_matrix(1, count, 3, DType::f32, 0.1)) {
        for (double& v : second_moment.values) v = std::abs(v);
    }
};

// The step on this state, with moments of this type; the caller may replace the parameter.
op::AdamwStep place(Harness& h, op::AdamwStep a, const State& state, const Matrix& grad, double scale,
                    DType parameter, DType moments = DType::f32) {
    const int64_t count = grad.cols;
    a.master = h.inout(state.master, DType::f32, {count});
    a.first_moment = h.inout(state.first_moment, moments, {count});
    a.second_moment = h.inout(state.second_moment, moments, {count});
    a.parameter = h.output(parameter, {count});
    a.grad = h.input(grad, DType::f32, {count});
    a.grad_scale = h.input(Matrix(1, 1, scale), DType::f32, {1});
    return a;
}

Outputs read(Harness& h, const op::AdamwStep& a) {
    return {h.read(a.parameter), h.read(a.master), h.read(a.first_moment), h.read(a.second_moment)};
}

TEST_P(AdamwTest, ThreeSteps) {
    for (int64_t count : {1, 7, 33, 130, 20011}) {
        SCOPED_TRACE(fmt::format("n={}", count));
        const State start(count);
        const bool shared = dtype() == DType::f32 && count % 2 == 1;  // parameter is the master
        const float scales[] = {1.0f, 0.125f, 3.0f};
        const Outputs out = run([&](Harness& h) -> Outputs {
            op::AdamwStep a = place(h, adamw_numbers(), start, Matrix(1, count), 0, dtype());
            if (shared) a.parameter = a.master;
            for (int step = 1; step <= 3; ++step) {
                a.grad = h.input(random_matrix(1, count, 10 + step, DType::f32), DType::f32, {count});
                a.grad_scale = h.input(Matrix(1, 1, scales[step - 1]), DType::f32, {1});
                a.step = step;
                h.call(a);
            }
            return read(h, a);
        });
        State expected = start;
        for (int step = 1; step <= 3; ++step) {
            reference::adamw_step(expected.master, expected.first_moment, expected.second_moment,
                                  random_matrix(1, count, 10 + step, DType::f32), scales[step - 1],
                                  adamw_numbers(step));
        }
        expect_close(out[1], expected.master, few_operations(DType::f32), "master");
        expect_close(out[2], expected.first_moment, few_operations(DType::f32), "first_moment");
        expect_close(out[3], expected.second_moment, few_operations(DType::f32), "second_moment");
        expect_same_bits(out[0], rounded(out[1], dtype()), "parameter is the rounded master");
    }
}

// Weights and gradients of either sign: half of the weights decay. Every fifth has no momentum and no
// gradient.
TEST_P(AdamwTest, CautiousDecay) {
    for (int64_t count : {1, 33, 20011}) {
        SCOPED_TRACE(fmt::format("n={}", count));
        State start(count);
        Matrix grad = random_matrix(1, count, 10, DType::f32);
        for (int64_t i = 0; i < count; i += 5) start.first_moment[i] = grad[i] = 0;
        op::AdamwStep cautious = adamw_numbers();
        cautious.decays_unmoved = count != 33;
        cautious.cautious = true;
        cautious.weight_decay = 30.0f;  // so large that one wrong decay exceeds rounding errors
        const Outputs out = run([&](Harness& h) -> Outputs {
            const op::AdamwStep a = place(h, cautious, start, grad, 1.0, dtype());
            h.call(a);
            return read(h, a);
        });
        State expected = start;
        reference::adamw_step(expected.master, expected.first_moment, expected.second_moment, grad, 1.0,
                              cautious);
        expect_close(out[1], expected.master, few_operations(DType::f32), "master");
        expect_same_bits(out[0], rounded(out[1], dtype()), "parameter is the rounded master");
    }
}

// The first step moves by the learning rate against the gradient's sign, from 1 and from -1. Only the first
// moves towards 0 and decays. A weight that does not move decays unless decays_unmoved is false.
TEST_P(AdamwTest, CautiousDecayByHand) {
    for (const bool unmoved : {true, false}) {
        const Outputs out = run([&](Harness& h) -> Outputs {
            op::AdamwStep a = adamw_numbers();
            a.cautious = true;
            a.decays_unmoved = unmoved;
            a.weight_decay = 10.0f;
            Matrix master(1, 3, 1.0), grad(1, 3, 1.0);
            master[1] = -1.0;
            grad[2] = 0.0;
            a.master = a.parameter = h.inout(master, DType::f32, {3});
            a.first_moment = h.inout(Matrix(1, 3), DType::f32, {3});
            a.second_moment = h.inout(Matrix(1, 3), DType::f32, {3});
            a.grad = h.input(grad, DType::f32, {3});
            a.grad_scale = h.input(Matrix(1, 1, 1.0), DType::f32, {1});
            h.call(a);
            return {h.read(a.master)};
        });
        EXPECT_NEAR(out[0][0], 1 - 0.01 - 0.1, 1e-6);
        EXPECT_NEAR(out[0][1], -1 - 0.01, 1e-6);
        EXPECT_NEAR(out[0][2], unmoved ? 1 - 0.1 : 1, 1e-6);
    }
}

// Compares each step with the reference from the state stored by the one before. The master uses the f32
// moments. Stored moments are the nearest bf16, or its neighbor where f32 and float64 are on two sides of a
// midpoint.
TEST_P(AdamwTest, Bf16MomentsAreRoundedWhenTheyAreStored) {
    for (int64_t count : {1, 7, 33, 130, 20011}) {
        SCOPED_TRACE(fmt::format("n={}", count));
        State state(count);
        state.first_moment = rounded(state.first_moment, DType::bf16);
        state.second_moment = rounded(state.second_moment, DType::bf16);
        for (int step = 1; step <= 3; ++step) {
            const Matrix grad = random_matrix(1, count, 10 + step, DType::f32);
            const Outputs out = run([&](Harness& h) -> Outputs {
                const op::AdamwStep a = place(h, adamw_numbers(step), state, grad, 0.5, dtype(), DType::bf16);
                h.call(a);
                return read(h, a);
            });
            State expected = state;
            reference::adamw_step(expected.master, expected.first_moment, expected.second_moment, grad, 0.5,
                                  adamw_numbers(step));
            expect_close(out[1], expected.master, few_operations(DType::f32), "master");
            expect_close(out[2], expected.first_moment, few_operations(DType::bf16), "first_moment");
            expect_close(out[3], expected.second_moment, few_operations(DType::bf16), "second_moment");
            expect_same_bits(out[0], rounded(out[1], dtype()), "parameter is the rounded master");
            state.master = out[1];
            state.first_moment = out[2];
            state.second_moment = out[3];
        }
    }
}

// With beta1 = beta2 = 0 the moments are the gradient and its square, and only the store rounds. Halves round
// to even, and the next step does not see the rounding error.
TEST_P(AdamwTest, Bf16MomentsAreTheNearest) {
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
    const Outputs out = run([&](Harness& h) -> Outputs {
        op::AdamwStep a = adamw_numbers();
        a.beta1 = a.beta2 = 0.0f;
        a.master = a.parameter = h.inout(random_matrix(1, count, 2, DType::f32), DType::f32, {count});
        a.first_moment = h.inout(Matrix(1, count, 5.0), DType::bf16, {count});
        a.second_moment = h.inout(Matrix(1, count, 5.0), DType::bf16, {count});
        a.grad = h.input(grad, DType::f32, {count});
        a.grad_scale = h.input(Matrix(1, 1, 1.0), DType::f32, {1});
        h.call(a);
        return {h.read(a.first_moment), h.read(a.second_moment)};
    });
    expect_same_bits(out[0], rounded(grad, DType::bf16), "first_moment");
    expect_same_bits(out[1], rounded(squares, DType::bf16), "second_moment");
    EXPECT_EQ(out[0][0], 1.0);
    EXPECT_EQ(out[0][1], 1.0 + 2.0 / 128);
    EXPECT_EQ(out[0][2], -1.0);
}

TEST_P(AdamwTest, NothingChangesIfTheScaleIsNotFinite) {
    const float infinity = std::numeric_limits<float>::infinity();
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
        const State start(33);
        const Matrix parameter = rounded(start.master, dtype());
        const Outputs out = run([&](Harness& h) -> Outputs {
            op::AdamwStep a = place(h, adamw_numbers(), start, Matrix(1, 33, std::nan("")), bad, dtype());
            a.parameter = h.inout(parameter, dtype(), {33});
            h.call(a);
            return read(h, a);
        });
        expect_same_bits(out[0], parameter, "parameter");
        expect_same_bits(out[1], start.master, "master");
        expect_same_bits(out[2], start.first_moment, "first_moment");
        expect_same_bits(out[3], start.second_moment, "second_moment");
    }
}

}  // namespace adamw_test
}  // namespace speedrun::testing
