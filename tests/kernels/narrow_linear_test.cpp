#include "tests/kernels/op_test_support.h"

namespace speedrun::testing::narrow_linear_test {

SPEEDRUN_OP_TEST(NarrowLinearTest);

constexpr GateActivation kActivations[] = {GateActivation::identity, GateActivation::sigmoid,
                                           GateActivation::two_sigmoid, GateActivation::tanh};

struct Shape {
    int64_t rows, inputs, outputs;
};
// Gates of the recipes (12 columns, 1 and 6 outputs; 64 and 41), the smallest and the largest shapes, columns
// that are not whole quads. Rows: none, one and several tiles and chunks.
const std::vector<Shape> kShapes = {{1, 1, 1},   {7, 12, 6},    {130, 12, 1}, {33, 64, 41},
                                    {65, 17, 5}, {140, 64, 64}, {257, 15, 33}};

struct Setting {
    Shape shape;
    GateActivation activation;
    bool weight_f32, biased;
    int64_t slice;  // first column of x, and of y, in a wider tensor
    bool accumulate, accumulate_x;

    std::string describe() const {
        return fmt::format("T={} K={} N={} activation={} f32={} bias={} slice={} accumulate={}{}", shape.rows,
                           shape.inputs, shape.outputs, static_cast<int>(activation), weight_f32, biased,
                           slice, accumulate, accumulate_x);
    }
};

// Every shape with every activation; the switches alternate.
std::vector<Setting> settings() {
    std::vector<Setting> result;
    for (const Shape& shape : kShapes) {
        for (GateActivation activation : kActivations) {
            const auto turn = static_cast<int64_t>(result.size() + result.size() / 4);
            result.push_back({shape, activation, turn % 2 == 0, turn % 3 != 0, turn % 3, turn % 2 == 1,
                              turn / 2 % 2 == 1});
        }
    }
    return result;
}

constexpr float kScale = 0.75f;

struct Inputs {
    Matrix x, weight, bias, dy;
};

Inputs random_inputs(const Setting& s, DType dtype) {
    const auto [rows, inputs, outputs] = s.shape;
    const DType weight = s.weight_f32 ? DType::f32 : dtype;
    const double deviation = 1.0 / std::sqrt(static_cast<double>(inputs));
    return {random_matrix(rows, inputs, 1, dtype), random_matrix(outputs, inputs, 2, weight, deviation),
            s.biased ? random_matrix(1, outputs, 3, DType::f32) : Matrix(),
            random_matrix(rows, outputs, 4, DType::f32)};
}

// Columns of a tensor that has a few more on both sides, unless the slice begins at 0.
Margin margin_of(const Setting& s) {
    return {s.slice, 3 * s.slice};
}

Tensor upload_weight(Harness& h, const Setting& s, const Inputs& in, DType dtype) {
    return h.input(in.weight, s.weight_f32 ? DType::f32 : dtype);
}

TEST_P(NarrowLinearTest, Forward) {
    for (const Setting& s : settings()) {
        SCOPED_TRACE(s.describe());
        const Inputs in = random_inputs(s, dtype());
        const Matrix expected =
            reference::narrow_linear_forward(in.x, in.weight, in.bias, kScale, s.activation);
        // tanh and exp err by about 3e-7 where the result is small.
        Tolerance tolerance = reduction(DType::f32, s.shape.inputs);
        tolerance.absolute = 16 * kF32Roundoff;
        check([&](Harness& h) -> Checks {
            const Tensor y = h.output(expected, DType::f32, margin_of(s));
            h.call(op::NarrowLinearForward{
                .y = y,
                .x = h.input(in.x, dtype(), margin_of(s)),
                .weight = upload_weight(h, s, in, dtype()),
                .bias = s.biased ? h.input(in.bias, DType::f32, {s.shape.outputs}) : Tensor(),
                .scale = kScale,
                .activation = s.activation});
            return {{y, expected, "y", tolerance}};
        });
    }
}

TEST_P(NarrowLinearTest, Backward) {
    for (const Setting& s : settings()) {
        SCOPED_TRACE(s.describe());
        const auto [rows, inputs, outputs] = s.shape;
        const Inputs in = random_inputs(s, dtype());
        const Matrix y = reference::narrow_linear_forward(in.x, in.weight, in.bias, kScale, s.activation),
                     dx_before = random_matrix(rows, inputs, 5, dtype()),
                     dw_before = random_matrix(outputs, inputs, 6, DType::f32),
                     db_before = random_matrix(1, outputs, 7, DType::f32);
        const auto expected =
            reference::narrow_linear_backward(in.dy, in.x, in.weight, in.bias, kScale, s.activation);
        check([&](Harness& h) -> Checks {
            op::NarrowLinearBackward a{.dx = h.inout(dx_before, dtype(), margin_of(s)),
                                       .dweight = h.inout(dw_before, DType::f32),
                                       .dy = h.input(in.dy, DType::f32, margin_of(s)),
                                       .y = h.input(y, DType::f32, margin_of(s)),
                                       .x = h.input(in.x, dtype(), margin_of(s)),
                                       .weight = upload_weight(h, s, in, dtype()),
                                       .scale = kScale,
                                       .activation = s.activation,
                                       .accumulate_x = s.accumulate_x,
                                       .accumulate = s.accumulate};
            if (s.biased) a.dbias = h.inout(db_before, DType::f32, {s.shape.outputs});
            h.call(a);
            const Tolerance of_sums = reduction(DType::f32, s.shape.rows);
            return {{a.dx, added(s.accumulate_x, expected.dx, dx_before), "dx",
                     reduction(dtype(), s.shape.outputs)},
                    {a.dweight, added(s.accumulate, expected.dweight, dw_before), "dweight", of_sums},
                    {a.dbias, added(s.accumulate, expected.dbias, db_before), "dbias", of_sums}};
        });
    }
}

// Each gradient alone: gradients that are not requested are neither written nor read.
TEST_P(NarrowLinearTest, ComputesRequestedGradientsOnly) {
    const Setting s{{130, 12, 6}, GateActivation::sigmoid, true, true, 0, false, false};
    const Inputs in = random_inputs(s, dtype());
    const Matrix y = reference::narrow_linear_forward(in.x, in.weight, in.bias, kScale, s.activation);
    const reference::NarrowLinearBackward expected =
        reference::narrow_linear_backward(in.dy, in.x, in.weight, in.bias, kScale, s.activation);
    const Matrix* requested[] = {&expected.dx, &expected.dweight, &expected.dbias};
    sweep(std::tuple{Ints{0, 1, 2}}, [&](int64_t which) {
        check([&](Harness& h) -> Checks {
            op::NarrowLinearBackward a{.dy = h.input(in.dy, DType::f32),
                                       .y = h.input(y, DType::f32),
                                       .x = h.output(dtype(), {130, 12}),
                                       .weight = h.output(DType::f32, {6, 12}),
                                       .scale = kScale,
                                       .activation = s.activation,
                                       .accumulate_x = false,
                                       .accumulate = false};
            if (which == 0) a.weight = h.input(in.weight, DType::f32);
            if (which == 0) a.dx = h.output(dtype(), {130, 12});
            if (which == 1) a.x = h.input(in.x, dtype());
            if (which == 1) a.dweight = h.output(DType::f32, {6, 12});
            if (which == 2) a.dbias = h.output(DType::f32, {6});
            h.call(a);
            return {{which == 0   ? a.dx
                     : which == 1 ? a.dweight
                                  : a.dbias,
                     *requested[which], "gradient", reduction(which == 0 ? dtype() : DType::f32, 130)}};
        });
    });
}

// 2·sigmoid and tanh reach their limits far from 0; no overflow becomes NaN.
TEST_P(NarrowLinearTest, ActivationsSaturate) {
    Matrix x(2, 1), weight(1, 1, 1000.0);
    x[0] = 4.0, x[1] = -4.0;
    const double limits[4][2] = {{4000.0, -4000.0}, {1.0, 0.0}, {2.0, 0.0}, {1.0, -1.0}};
    for (GateActivation activation : kActivations) {
        const Outputs out = run([&](Harness& h) -> Outputs {
            const Tensor y = h.output(DType::f32, {2, 1});
            h.call(op::NarrowLinearForward{.y = y,
                                           .x = h.input(x, dtype()),
                                           .weight = h.input(weight, DType::f32),
                                           .scale = 1.0f,
                                           .activation = activation});
            return {h.read(y)};
        });
        // e^-4000 is 0 or, with the CPU's clamped exponential, e^-88.
        for (int i = 0; i < 2; ++i) EXPECT_NEAR(out[0][i], limits[static_cast<int>(activation)][i], 1e-35);
    }
}

}  // namespace speedrun::testing::narrow_linear_test
