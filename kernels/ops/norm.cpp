#include "kernels/ops/norm.h"

namespace speedrun {

namespace {

// Checks arguments common to all norms; x: the normalized tensor.
template <class Arguments>
void check_statistics(const Arguments& a, Tensor x) {
    expect(a.rstd, DType::f32, {x.rows()}, "norm rstd");
    if (a.kind == NormKind::layernorm) expect(a.mean, DType::f32, {x.rows()}, "norm mean");
    if (a.gain.present()) expect(a.gain, DType::f32, {x.cols()}, "norm gain");
}

template <class Arguments>
void check_outputs(const Arguments& a) {
    expect(a.y, a.x.dtype, {a.x.rows(), a.x.cols()}, "norm y");
    check_statistics(a, a.x);
    if (a.bias.present()) expect(a.bias, DType::f32, {a.x.cols()}, "norm bias");
}

// ds receives the gradient of s.
template <class Arguments>
void check_gradients(const Arguments& a, Tensor ds) {
    const int64_t rows = a.s.rows(), cols = a.s.cols();
    check_statistics(a, a.s);
    expect(ds, a.s.dtype, {rows, cols}, "norm ds");
    expect(a.dy, a.s.dtype, {rows, cols}, "norm dy");
    if (a.dresidual.present()) expect(a.dresidual, a.s.dtype, {rows, cols}, "norm dresidual");
    if (a.dgain.present() != a.gain.present())
        throw_internal("norm_backward: gain and dgain are given together or not at all");
    if (a.dgain.present()) expect(a.dgain, DType::f32, {cols}, "norm dgain");
    if (a.dbias.present()) expect(a.dbias, DType::f32, {cols}, "norm dbias");
}

}  // namespace

void op::NormForward::check() const {
    check_outputs(*this);
    if (amax.present()) {
        expect(amax, DType::f32, {1}, "norm amax");
        if (!y.contiguous())
            throw_internal("norm_forward: amax of y {}, which is not contiguous", y.describe());
    }
    if (delta.present() != sum.present())
        throw_internal("norm_forward: sum and delta are given together or not at all");
    if (!delta.present()) return;
    expect(delta, x.dtype, {x.rows(), x.cols()}, "norm delta");
    expect(sum, x.dtype, {x.rows(), x.cols()}, "norm sum");
}

void op::NormBackward::check() const {
    check_gradients(*this, ds);
}

void op::SumNormForward::check() const {
    first().check();
    second().check();
    if (delta.present() != x.present())
        throw_internal("sum_norm_forward: x and delta are given together or not at all");
    if (!delta.present()) return;
    before().check();
    if (terms[0].shifted) throw_internal("sum_norm_forward: the first term is shifted, and delta is given");
}

void op::SumNormBackward::check() const {
    first(dy).check();  // ds has the shape of dy
    second(dy).check();
    if (dsum.present()) expect(dsum, s.dtype, {s.rows(), s.cols()}, "sum_norm dsum");
    for (const TermGradient& gradient : gradients)
        if (same_memory(dsum, gradient.dsource)) throw_internal("sum_norm_backward: dsum is a dsource");
    if (any_shifted(terms) || coefficient_heads(terms) > 1)
        throw_internal("sum_norm_backward: a term is shifted, or has a coefficient for each of {} heads",
                       coefficient_heads(terms));
}

}  // namespace speedrun
