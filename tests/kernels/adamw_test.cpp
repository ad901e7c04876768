#include <limits>

#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {
namespace {

SPEEDRUN_OP_TEST(AdamwTest);

constexpr AdamwOptions kOptions{
    .learning_rate = 0.01f, .beta1 = 0.65f, .beta2 = 0.95f, .epsilon = 1e-8f, .weight_decay = 0.1f};

struct State {
    Matrix master, first_moment, second_moment;

    explicit State(int64_t count)
        : master(random_matrix(1, count, 1, DType::f32)),
          first_moment(random_matrix(1, count, 2, DType::f32, 0.1)),
          second_moment(random_matrix(1, count, 3, DType::f32, 0.1)) {
        for (double& v : second_moment.values) v = std::abs(v);
    }
};

TEST_P(AdamwTest, ThreeSteps) {
    for (int64_t count : {1, 7, 33, 130, 20011}) {
        SCOPED_TRACE(fmt::format("n={}", count));
        const State start(count);
        const bool shared = dtype() == DType::f32 && count % 2 == 1;  // parameter is the master itself
        const float scales[] = {1.0f, 0.125f, 3.0f};
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor master = h.inout(start.master, DType::f32, {count});
            const Tensor first = h.inout(start.first_moment, DType::f32, {count});
            const Tensor second = h.inout(start.second_moment, DType::f32, {count});
            const Tensor parameter = shared ? master : h.output(dtype(), {count});
            AdamwOptions options = kOptions;
            for (int step = 1; step <= 3; ++step) {
                Matrix scale(1, 1, scales[step - 1]);
                const Tensor grad =
                    h.input(random_matrix(1, count, 10 + step, DType::f32), DType::f32, {count});
                options.step = step;
                h.ops().adamw_step(parameter, master, first, second, grad, h.input(scale, DType::f32, {1}),
                                   options, h.stream());
            }
            return {h.read(parameter), h.read(master), h.read(first), h.read(second)};
        });
        State expected = start;
        AdamwOptions options = kOptions;
        for (int step = 1; step <= 3; ++step) {
            options.step = step;
            reference::adamw_step(expected.master, expected.first_moment, expected.second_moment,
                                  random_matrix(1, count, 10 + step, DType::f32), scales[step - 1], options);
        }
        expect_close(out[1], expected.master, few_operations(DType::f32), "master");
        expect_close(out[2], expected.first_moment, few_operations(DType::f32), "first_moment");
        expect_close(out[3], expected.second_moment, few_operations(DType::f32), "second_moment");
        expect_same_bits(out[0], rounded(out[1], dtype()), "parameter is the rounded master");
    }
}

TEST_P(AdamwTest, NothingChangesIfTheScaleIsNotFinite) {
    const float infinity = std::numeric_limits<float>::infinity();
    for (float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
        const State start(33);
        const Matrix parameter = rounded(start.master, dtype());
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor p = h.inout(parameter, dtype(), {33}),
                         master = h.inout(start.master, DType::f32, {33});
            const Tensor first = h.inout(start.first_moment, DType::f32, {33});
            const Tensor second = h.inout(start.second_moment, DType::f32, {33});
            const Tensor grad = h.input(Matrix(1, 33, std::nan("")), DType::f32, {33});
            h.ops().adamw_step(p, master, first, second, grad, h.input(Matrix(1, 1, bad), DType::f32, {1}),
                               kOptions, h.stream());
            return {h.read(p), h.read(master), h.read(first), h.read(second)};
        });
        expect_same_bits(out[0], parameter, "parameter");
        expect_same_bits(out[1], start.master, "master");
        expect_same_bits(out[2], start.first_moment, "first_moment");
        expect_same_bits(out[3], start.second_moment, "second_moment");
    }
}

TEST_P(AdamwTest, ShapeErrors) {
    expect_error(
        [&](Harness& h) {
            const Tensor f32 = h.output(DType::f32, {33});
            h.ops().adamw_step(h.output(dtype(), {33}), f32, f32, f32, h.output(DType::f32, {32}),
                               h.output(DType::f32, {1}), kOptions, h.stream());
        },
        {"[33]", "[32]"});
    expect_error(
        [&](Harness& h) {
            const Tensor f32 = h.output(DType::f32, {33});
            h.ops().adamw_step(h.output(dtype(), {34}), f32, f32, f32, f32, h.output(DType::f32, {1}),
                               kOptions, h.stream());
        },
        {"parameter", "[33]", "[34]"});
}

}  // namespace
}  // namespace speedrun::testing
