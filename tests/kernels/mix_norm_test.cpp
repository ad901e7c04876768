// The norm of a mix with the residual stream. Sum, mix and norm round like separate operations. Each step is compared
// with its reference on the stored result of the step before.
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {
namespace mix_norm_test {

SPEEDRUN_OP_TEST(MixNormTest);

struct Case {
    NormKind kind;
    bool affine;
    int64_t rows, cols;
    bool strided;  // every matrix is part of a wider one
    int odd = -1;  // the matrix, by its turn, that begins where nothing is aligned
};

constexpr NormKind kKinds[] = {NormKind::rmsnorm, NormKind::layernorm};

// The sizes end chunks, rows, blocks and vectors of every backend at awkward places; 33 is aligned to
// nothing. Rows that fit a block's registers and longer ones, and more rows than one round of blocks.
template <class Body>
void for_cases(Body&& body) {
    for (NormKind kind : kKinds) {
        for (const auto& [rows, cols, strided] :
             {std::tuple{1, 48, false}, {7, 33, false}, {33, 96, true}, {130, 48, false}, {7, 48, true}}) {
            const bool affine = (rows == 33) == (kind == NormKind::rmsnorm);
            SCOPED_TRACE(fmt::format("{} affine={} T={} C={} strided={}", static_cast<int>(kind), affine,
                                     rows, cols, strided));
            body(Case{kind, affine, rows, cols, strided});
        }
    }
    for (const auto& [rows, cols] : {std::pair{5, 768}, {5, 1028}, {5, 2056}, {5, 1029}, {8203, 8}}) {
        SCOPED_TRACE(fmt::format("T={} C={}", rows, cols));
        body(Case{NormKind::rmsnorm, false, rows, cols, false});
    }
    for (int odd = 0; odd < 8; ++odd) {
        SCOPED_TRACE(fmt::format("odd={}", odd));
        body(Case{NormKind::rmsnorm, false, 7, 48, true, odd});
    }
}

Matrix coefficients() {
    Matrix c(1, 2);
    c.values = {0.75, -1.375};
    return c;
}

// The matrices of a call: the right halves of wider tensors if they are strided, the odd one a column further
// to the left.
struct Operands {
    const Case& c;
    DType dtype;
    Harness& h;
    int turn = 0;

    int64_t begin() const { return turn == c.odd ? c.cols - 1 : c.cols; }
    Matrix wide(const Matrix& x) const {
        if (!c.strided) return x;
        Matrix both(x.rows, 2 * x.cols);
        for (int64_t i = 0; i < x.size(); ++i) both(i / x.cols, begin() + i % x.cols) = x[i];
        return both;
    }
    Tensor part(const Tensor& all) {
        const Tensor result = c.strided ? all.column_slice(begin(), c.cols) : all;
        ++turn;
        return result;
    }
    Tensor input(const Matrix& x) { return part(h.input(wide(x), dtype)); }
    Tensor inout(const Matrix& x) { return part(h.inout(wide(x), dtype)); }
    Tensor output() { return part(h.output(dtype, {c.rows, c.strided ? 2 * c.cols : c.cols})); }
    Tensor vector(const Matrix& x) const { return x.empty() ? Tensor() : h.input(x, DType::f32, {x.cols}); }
};

using Runner = std::function<Outputs(const std::function<Outputs(Harness&)>&)>;

enum class Entered { absent, separate, in_place };

TEST_P(MixNormTest, Forward) {
    for_cases([&](const Case& c) {
        for (Entered mode : {Entered::absent, Entered::separate, Entered::in_place}) {
            SCOPED_TRACE(fmt::format("entered={}", static_cast<int>(mode)));
            const Matrix x = random_matrix(c.rows, c.cols, 1, dtype()),
                         delta = random_matrix(c.rows, c.cols, 2, dtype()),
                         z = random_matrix(c.rows, c.cols, 3, dtype());
            const Matrix gain = c.affine ? random_matrix(1, c.cols, 4, DType::f32) : Matrix();
            const Matrix bias = c.affine ? random_matrix(1, c.cols, 5, DType::f32) : Matrix();
            const bool with_mean = c.kind == NormKind::layernorm, added = mode != Entered::absent;
            const float epsilon = c.affine ? 0.25f : kNormEpsilon;  // seen where it is as large as the rows
            const Outputs out = run([&](Harness& h) -> Outputs {
                Operands o{c, dtype(), h};
                const Tensor y = o.output(), sum = o.output(), rstd = h.output(DType::f32, {c.rows});
                const Tensor mean = with_mean ? h.output(DType::f32, {c.rows}) : Tensor();
                const Tensor in = mode == Entered::in_place ? o.inout(x) : o.input(x);
                Tensor entered;
                if (added) entered = mode == Entered::in_place ? in : o.output();
                h.call(op::MixNormForward{.y = y,
                                          .sum = sum,
                                          .entered = entered,
                                          .mean = mean,
                                          .rstd = rstd,
                                          .x = in,
                                          .delta = added ? o.input(delta) : Tensor(),
                                          .mix = {o.input(z), o.vector(coefficients())},
                                          .gain = o.vector(gain),
                                          .bias = o.vector(bias),
                                          .kind = c.kind,
                                          .epsilon = epsilon});
                return {h.read(y), h.read(sum), h.read(rstd), with_mean ? h.read(mean) : Matrix(),
                        added ? h.read(entered) : Matrix()};
            });
            if (added) expect_close(out[4], reference::plus(x, delta), few_operations(dtype()), "entered");
            expect_close(out[1], reference::mix_forward(added ? out[4] : x, z, coefficients()),
                         few_operations(dtype()), "sum");
            const auto expected = reference::norm_forward(out[1], gain, bias, c.kind, epsilon);
            expect_close(out[0], expected.y, reduction(dtype(), c.cols), "y");
            expect_close(out[2], expected.rstd, reduction(DType::f32, c.cols), "rstd");
            if (with_mean) expect_close(out[3], expected.mean, {0, 0, 16 * kF32Roundoff}, "mean");
            if (dtype() == DType::bf16) continue;  // there the roundings between the steps add up
            const auto whole = reference::mix_norm_forward(x, added ? delta : Matrix(), z, coefficients(),
                                                           gain, bias, c.kind, epsilon);
            expect_close(out[0], whole.norm.y, reduction(dtype(), c.cols), "y of all steps");
        }
    });
}

enum class Alias { none, dy, dresidual };

struct BackwardCase {
    Alias alias;
    bool residual, accumulate, accumulate_z;
};

// ds of norm_backward (tested in norm_test.cpp) is the input of the mix's reference. In f32 the result is also
// compared with the reference of all steps together.
void check_backward(const Runner& run, const Case& c, const BackwardCase& b, DType dtype) {
    const auto matrix = [&](uint64_t seed) { return random_matrix(c.rows, c.cols, seed, dtype); };
    const Matrix entered = matrix(1), z = matrix(2), dy = matrix(3), dz_before = matrix(5);
    const Matrix dresidual = b.residual ? matrix(4) : Matrix();
    const Matrix gain = c.affine ? random_matrix(1, c.cols, 6, DType::f32) : Matrix();
    const Matrix before = random_matrix(1, c.cols, 7, DType::f32),
                 dc_before = random_matrix(1, 2, 8, DType::f32);
    const Matrix s = rounded(reference::mix_forward(entered, z, coefficients()), dtype);
    const reference::NormForward forward = reference::norm_forward(s, {}, {}, c.kind);
    const Outputs out = run([&](Harness& h) -> Outputs {
        Operands o{c, dtype, h};
        const Tensor upstream = b.alias == Alias::dy ? o.inout(dy) : o.input(dy);
        Tensor above, dx = upstream;
        if (b.residual) above = b.alias == Alias::dresidual ? o.inout(dresidual) : o.input(dresidual);
        if (b.alias == Alias::dresidual) dx = above;
        if (b.alias == Alias::none) dx = o.output();
        const auto sums = [&](bool given, const Matrix& start) {
            if (!given) return Tensor();
            return b.accumulate ? h.inout(start, DType::f32, {start.cols})
                                : h.output(DType::f32, {start.cols});
        };
        const Tensor dgain = sums(c.affine, before), dbias = sums(c.affine, before);
        const Tensor dc = sums(true, dc_before), dz = b.accumulate_z ? o.inout(dz_before) : o.output();
        const Tensor in = o.input(s), ds = o.output(), rstd = o.vector(forward.rstd), weight = o.vector(gain);
        const Tensor mean = c.kind == NormKind::layernorm ? o.vector(forward.mean) : Tensor();
        h.call(op::NormBackward{.ds = ds,
                                .dgain = c.affine ? h.output(DType::f32, {c.cols}) : Tensor(),
                                .dy = upstream,
                                .s = in,
                                .mean = mean,
                                .rstd = rstd,
                                .gain = weight,
                                .dresidual = above,
                                .accumulate = false,
                                .kind = c.kind});
        h.call(op::MixNormBackward{.dx = dx,
                                   .dz = dz,
                                   .dcoefficients = dc,
                                   .dgain = dgain,
                                   .dbias = dbias,
                                   .dy = upstream,
                                   .s = in,
                                   .entered = o.input(entered),
                                   .mix = {o.input(z), o.vector(coefficients())},
                                   .mean = mean,
                                   .rstd = rstd,
                                   .gain = weight,
                                   .dresidual = above,
                                   .accumulate = b.accumulate,
                                   .accumulate_z = b.accumulate_z,
                                   .kind = c.kind});
        return {h.read(dx),
                h.read(dz),
                h.read(dc),
                h.read(ds),
                c.affine ? h.read(dgain) : Matrix(),
                c.affine ? h.read(dbias) : Matrix()};
    });
    auto mix = reference::mix_backward(out[3], entered, z, coefficients());
    auto norm = reference::norm_backward(dy, s, gain, c.kind);
    auto whole = reference::mix_norm_backward(dy, dresidual, entered, {}, z, coefficients(), gain, c.kind);
    if (b.accumulate_z) {
        mix.dz = reference::plus(mix.dz, dz_before);
        whole.dz = reference::plus(whole.dz, dz_before);
    }
    if (b.accumulate) {
        mix.dcoefficients = reference::plus(mix.dcoefficients, dc_before);
        norm.dgain = reference::plus(norm.dgain, before);
        norm.dbias = reference::plus(norm.dbias, before);
    }
    expect_close(out[0], mix.dx, few_operations(dtype), "dx");
    expect_close(out[1], mix.dz, few_operations(dtype), "dz");
    // Sums of T·C products of size 1 or so, which cancel to some √(T·C): judged against that.
    const double terms = static_cast<double>(c.rows * c.cols);
    expect_close(out[2], mix.dcoefficients, {16 * kF32Roundoff, 0, 32 * std::sqrt(terms) * kF32Roundoff},
                 "dc");
    if (c.affine) {
        expect_close(out[4], norm.dgain, reduction(DType::f32, c.rows), "dgain");
        expect_close(out[5], norm.dbias, reduction(DType::f32, c.rows), "dbias");
    }
    if (dtype == DType::bf16) return;  // there the roundings between the steps add up
    expect_close(out[0], whole.dx, reduction(dtype, c.cols), "dx of all steps");
    expect_close(out[1], whole.dz, reduction(dtype, c.cols), "dz of all steps");
}

TEST_P(MixNormTest, Backward) {
    const auto runner = [this](const std::function<Outputs(Harness&)>& body) { return run(body); };
    for_cases([&](const Case& c) {
        for (Alias alias : {Alias::none, Alias::dy, Alias::dresidual}) {
            for (bool residual : {false, true}) {
                for (bool accumulate_z : {false, true}) {
                    if (alias == Alias::dresidual && !residual) continue;
                    const bool accumulate = residual != accumulate_z;
                    SCOPED_TRACE(fmt::format("alias={} residual={} accumulate={} z={}",
                                             static_cast<int>(alias), residual, accumulate, accumulate_z));
                    check_backward(runner, c, {alias, residual, accumulate, accumulate_z}, dtype());
                }
            }
        }
    });
}

}  // namespace mix_norm_test
}  // namespace speedrun::testing
