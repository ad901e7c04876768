#include <limits>

#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {
namespace lion_test {

SPEEDRUN_OP_TEST(LionTest);

// Scalars of a step; the caller sets the tensors.
op::LionStep numbers() {
    return {.parameter = {},
            .master = {},
            .momentum = {},
            .grad = {},
            .grad_scale = {},
            .learning_rate = 0.01f,
            .beta1 = 0.65f,
            .beta2 = 0.9f,
            .weight_decay = 0.1f};
}

// Algorithm 2 of Chen et al. 2023 in float64, with the exact values of the float scalars.
void reference_step(Matrix& master, Matrix& momentum, const Matrix& grad, double grad_scale) {
    const op::LionStep a = numbers();
    const double beta1 = a.beta1, beta2 = a.beta2;
    for (int64_t i = 0; i < master.size(); ++i) {
        const double g = grad[i] * grad_scale, u = beta1 * momentum[i] + (1.0 - beta1) * g;
        const double sign = u > 0.0 ? 1.0 : u < 0.0 ? -1.0 : 0.0;
        master[i] -=
            static_cast<double>(a.learning_rate) * (sign + static_cast<double>(a.weight_decay) * master[i]);
        momentum[i] = beta2 * momentum[i] + (1.0 - beta2) * g;
    }
}

struct State {
    Matrix master, momentum;
};

State random_state(int64_t count) {
    return {random_matrix(1, count, 1, DType::f32), random_matrix(1, count, 2, DType::f32, 0.1)};
}

TEST_P(LionTest, ThreeSteps) {
    for (int64_t count : {1, 7, 33, 130, 20011}) {
        SCOPED_TRACE(fmt::format("n={}", count));
        const State start = random_state(count);
        const bool shared = dtype() == DType::f32 && count % 2 == 1;  // parameter is the master
        const float scales[] = {1.0f, 0.125f, 3.0f};
        const Outputs out = run([&](Harness& h) -> Outputs {
            op::LionStep a = numbers();
            a.master = h.inout(start.master, DType::f32, {count});
            a.momentum = h.inout(start.momentum, DType::f32, {count});
            a.parameter = shared ? a.master : h.output(dtype(), {count});
            for (int step = 0; step < 3; ++step) {
                a.grad = h.input(random_matrix(1, count, 10 + step, DType::f32), DType::f32, {count});
                a.grad_scale = h.input(Matrix(1, 1, scales[step]), DType::f32, {1});
                h.call(a);
            }
            return {h.read(a.parameter), h.read(a.master), h.read(a.momentum)};
        });
        State expected = start;
        for (int step = 0; step < 3; ++step) {
            reference_step(expected.master, expected.momentum, random_matrix(1, count, 10 + step, DType::f32),
                           scales[step]);
        }
        expect_close(out[1], expected.master, few_operations(DType::f32), "master");
        expect_close(out[2], expected.momentum, few_operations(DType::f32), "momentum");
        expect_same_bits(out[0], rounded(out[1], dtype()), "parameter is the rounded master");
    }
}

// Without gradient and momentum only the decay remains. NaN propagates.
TEST_P(LionTest, ZeroHasNoSignAndANanStaysOne) {
    const int64_t count = 33;
    Matrix grad(1, count);
    grad[5] = std::nan("");
    const State start{Matrix(1, count, 2.0), Matrix(1, count)};
    const Outputs out = run([&](Harness& h) -> Outputs {
        op::LionStep a = numbers();
        a.master = h.inout(start.master, DType::f32, {count});
        a.momentum = h.inout(start.momentum, DType::f32, {count});
        a.parameter = h.output(dtype(), {count});
        a.grad = h.input(grad, DType::f32, {count});
        a.grad_scale = h.input(Matrix(1, 1, 1.0), DType::f32, {1});
        h.call(a);
        return {h.read(a.master), h.read(a.momentum)};
    });
    for (int64_t i = 0; i < count; ++i) {
        if (i == 5) {
            EXPECT_TRUE(std::isnan(out[0][i]) && std::isnan(out[1][i]));
            continue;
        }
        EXPECT_NEAR(out[0][i], 2.0 - 0.01 * 0.1 * 2.0, 4 * kF32Roundoff);
        EXPECT_EQ(out[1][i], 0.0);
    }
}

TEST_P(LionTest, NothingChangesIfTheScaleIsNotFinite) {
    const float infinity = std::numeric_limits<float>::infinity();
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
        const State start = random_state(33);
        const Matrix parameter = rounded(start.master, dtype());
        const Outputs out = run([&](Harness& h) -> Outputs {
            op::LionStep a = numbers();
            a.parameter = h.inout(parameter, dtype(), {33});
            a.master = h.inout(start.master, DType::f32, {33});
            a.momentum = h.inout(start.momentum, DType::f32, {33});
            a.grad = h.input(Matrix(1, 33, std::nan("")), DType::f32, {33});
            a.grad_scale = h.input(Matrix(1, 1, bad), DType::f32, {1});
            h.call(a);
            return {h.read(a.parameter), h.read(a.master), h.read(a.momentum)};
        });
        expect_same_bits(out[0], parameter, "parameter");
        expect_same_bits(out[1], start.master, "master");
        expect_same_bits(out[2], start.momentum, "momentum");
    }
}

}  // namespace lion_test
}  // namespace speedrun::testing
