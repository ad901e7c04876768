#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {
namespace {

SPEEDRUN_OP_TEST(MixTest);

Matrix coefficients() {
    Matrix c(1, 2);
    c.values = {0.75, -1.375};
    return c;
}

TEST_P(MixTest, Backward) {
    for (int64_t rows : {1, 7, 33, 130}) {
        for (bool in_place : {false, true}) {
            for (bool accumulate : {false, true}) {
                for (bool accumulate_z : {false, true}) {
                    for (bool strided : {false, true}) {
                        const int64_t cols = rows == 7 ? 33 : 48;
                        SCOPED_TRACE(fmt::format("T={} C={} in_place={} accumulate={} z={} strided={}", rows,
                                                 cols, in_place, accumulate, accumulate_z, strided));
                        const Matrix x = random_matrix(rows, cols, 1, dtype()),
                                     z = random_matrix(rows, cols, 2, dtype());
                        const Matrix dy = random_matrix(rows, cols, 3, dtype());
                        const Matrix dz_before = random_matrix(rows, cols, 4, dtype());
                        const Matrix dc_before = random_matrix(1, 2, 5, DType::f32);
                        const Outputs out = run([&](Harness& h) -> Outputs {
                            // Strided: dx, and x as well, are the last columns of a wider tensor.
                            Matrix wide(rows, 2 * cols);
                            for (int64_t i = 0; i < x.size(); ++i) wide(i / cols, cols + i % cols) = x[i];
                            const Tensor in = strided ? h.input(wide, dtype()).column_slice(cols, cols)
                                                      : h.input(x, dtype());
                            const Tensor upstream = in_place ? h.inout(dy, dtype()) : h.input(dy, dtype());
                            Tensor dx = upstream;
                            if (!in_place) dx = h.output(dtype(), {rows, 2 * cols}).column_slice(cols, cols);
                            const Tensor dz =
                                accumulate_z ? h.inout(dz_before, dtype()) : h.output(dtype(), {rows, cols});
                            const Tensor dc =
                                accumulate ? h.inout(dc_before, DType::f32, {2}) : h.output(DType::f32, {2});
                            h.ops().mix_backward({.dx = dx,
                                                  .dz = dz,
                                                  .dcoefficients = dc,
                                                  .dy = upstream,
                                                  .x = in,
                                                  .z = h.input(z, dtype()),
                                                  .coefficients = h.input(coefficients(), DType::f32, {2}),
                                                  .accumulate = accumulate,
                                                  .accumulate_z = accumulate_z},
                                                 h.stream());
                            return {h.read(dx), h.read(dz), h.read(dc)};
                        });
                        reference::MixBackward expected = reference::mix_backward(dy, x, z, coefficients());
                        if (accumulate_z) expected.dz = reference::plus(expected.dz, dz_before);
                        if (accumulate)
                            expected.dcoefficients = reference::plus(expected.dcoefficients, dc_before);
                        expect_close(out[0], expected.dx, few_operations(dtype()), "dx");
                        expect_close(out[1], expected.dz, few_operations(dtype()), "dz");
                        // A sum over all elements that may nearly cancel: judged against its typical size
                        // √(T·C).
                        const double typical = std::sqrt(static_cast<double>(x.size()));
                        expect_close(out[2], expected.dcoefficients,
                                     {16 * kF32Roundoff, 0, 8 * typical * typical * kF32Roundoff},
                                     "dcoefficients");
                    }
                }
            }
        }
    }
}

TEST_P(MixTest, Add) {
    for (int64_t rows : {1, 7, 33, 130}) {
        for (int alias : {0, 1, 2}) {
            const int64_t cols = rows == 7 ? 33 : 96;
            SCOPED_TRACE(fmt::format("T={} C={} alias={}", rows, cols, alias));
            const Matrix x = random_matrix(rows, cols, 1, dtype()), z = random_matrix(rows, cols, 2, dtype());
            const Outputs out = run([&](Harness& h) -> Outputs {
                const Tensor tx = alias == 1 ? h.inout(x, dtype()) : h.input(x, dtype());
                const Tensor tz = alias == 2 ? h.inout(z, dtype()) : h.input(z, dtype());
                const Tensor y = alias == 1 ? tx : alias == 2 ? tz : h.output(dtype(), {rows, cols});
                h.ops().add({.y = y, .x = tx, .z = tz}, h.stream());
                return {h.read(y)};
            });
            // One addition: the nearest representable number, bit for bit.
            expect_same_bits(out[0], rounded(reference::plus(x, z), dtype()), "y");
        }
    }
}

TEST_P(MixTest, ShapeErrors) {
    expect_error(
        [&](Harness& h) {
            const Tensor x = h.output(dtype(), {3, 48});
            const Tensor c = h.output(DType::f32, {2});
            h.ops().mix_backward({.dx = x,
                                  .dz = x,
                                  .dcoefficients = c,
                                  .dy = x,
                                  .x = x,
                                  .z = h.output(dtype(), {3, 32}),
                                  .coefficients = c,
                                  .accumulate = false,
                                  .accumulate_z = false},
                                 h.stream());
        },
        {"[3,48]", "[3,32]"});
    expect_error(
        [&](Harness& h) {
            const Tensor x = h.output(dtype(), {3, 48});
            h.ops().mix_backward({.dx = x,
                                  .dz = x,
                                  .dcoefficients = h.output(DType::f32, {3}),
                                  .dy = x,
                                  .x = x,
                                  .z = x,
                                  .coefficients = h.output(DType::f32, {2}),
                                  .accumulate = false,
                                  .accumulate_z = false},
                                 h.stream());
        },
        {"[2]", "[3]"});
    expect_error(
        [&](Harness& h) {
            const Tensor x = h.output(dtype(), {3, 48});
            h.ops().add({.y = x, .x = x, .z = h.output(dtype(), {4, 48})}, h.stream());
        },
        {"[3,48]", "[4,48]"});
}

}  // namespace
}  // namespace speedrun::testing
