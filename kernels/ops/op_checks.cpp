#include "kernels/ops/op_checks.h"

#include <algorithm>

namespace speedrun {

namespace {

void check_statistics(Tensor x, Tensor mean, Tensor rstd, Tensor gain, NormKind kind) {
    expect(rstd, DType::f32, {x.rows()}, "norm rstd");
    if (kind == NormKind::layernorm) expect(mean, DType::f32, {x.rows()}, "norm mean");
    if (gain.present()) expect(gain, DType::f32, {x.cols()}, "norm gain");
}

void check_mix(const MixWith& mix, Tensor x, const char* z_name, const char* coefficients_name) {
    expect(mix.z, x.dtype, {x.rows(), x.cols()}, z_name);
    expect(mix.coefficients, DType::f32, {2}, coefficients_name);
}

}  // namespace

void check_norm_forward(Tensor y, Tensor sum, Tensor mean, Tensor rstd, Tensor x, Tensor delta, Tensor gain,
                        Tensor bias, NormKind kind) {
    const int64_t rows = x.rows(), cols = x.cols();
    expect(y, x.dtype, {rows, cols}, "norm y");
    check_statistics(x, mean, rstd, gain, kind);
    if (bias.present()) expect(bias, DType::f32, {cols}, "norm bias");
    if (delta.present() != sum.present())
        throw_internal("norm_forward: sum and delta are given together or not at all");
    if (delta.present()) {
        expect(delta, x.dtype, {rows, cols}, "norm delta");
        expect(sum, x.dtype, {rows, cols}, "norm sum");
    }
}

void check_norm_backward(Tensor ds, Tensor dgain, Tensor dbias, Tensor dy, Tensor s, Tensor mean, Tensor rstd,
                         Tensor gain, Tensor dresidual, NormKind kind) {
    const int64_t rows = s.rows(), cols = s.cols();
    check_statistics(s, mean, rstd, gain, kind);
    expect(ds, s.dtype, {rows, cols}, "norm ds");
    expect(dy, s.dtype, {rows, cols}, "norm dy");
    if (dresidual.present()) expect(dresidual, s.dtype, {rows, cols}, "norm dresidual");
    if (dgain.present() != gain.present())
        throw_internal("norm_backward: gain and dgain are given together or not at all");
    if (dgain.present()) expect(dgain, DType::f32, {cols}, "norm dgain");
    if (dbias.present()) expect(dbias, DType::f32, {cols}, "norm dbias");
}

void check_mix_norm_forward(Tensor y, Tensor sum, Tensor entered, Tensor mean, Tensor rstd, Tensor x,
                            Tensor delta, const MixWith& mix, Tensor gain, Tensor bias, NormKind kind) {
    const int64_t rows = x.rows(), cols = x.cols();
    check_norm_forward(y, {}, mean, rstd, x, {}, gain, bias, kind);
    expect(sum, x.dtype, {rows, cols}, "mix_norm sum");
    check_mix(mix, x, "mix_norm z", "mix_norm coefficients");
    if (delta.present() != entered.present())
        throw_internal("mix_norm_forward: entered and delta are given together or not at all");
    if (delta.present()) {
        expect(delta, x.dtype, {rows, cols}, "mix_norm delta");
        expect(entered, x.dtype, {rows, cols}, "mix_norm entered");
    }
}

void check_mix_norm_backward(Tensor dx, Tensor dz, Tensor dcoefficients, Tensor dgain, Tensor dbias,
                             Tensor dy, Tensor s, Tensor entered, const MixWith& mix, Tensor mean,
                             Tensor rstd, Tensor gain, Tensor dresidual, NormKind kind) {
    check_norm_backward(dx, dgain, dbias, dy, s, mean, rstd, gain, dresidual, kind);
    expect(dz, s.dtype, {s.rows(), s.cols()}, "mix_norm dz");
    expect(entered, s.dtype, {s.rows(), s.cols()}, "mix_norm entered");
    check_mix(mix, s, "mix_norm z", "mix_norm coefficients");
    expect(dcoefficients, DType::f32, {2}, "mix_norm dcoefficients");
}

void check_rotary(Tensor q, Tensor k, Tensor rstd, Tensor cos, Tensor sin, Tensor position,
                  const RotaryOptions& o) {
    const int64_t rows = q.rows(), width = o.num_heads * o.head_dim;
    if (o.head_dim <= 0 || o.head_dim % 2 != 0)
        throw_internal("rotary: head_dim {} is not a positive even number", o.head_dim);
    expect_shape(q, {rows, width}, "rotary q");
    expect(k, q.dtype, {rows, width}, "rotary k");
    if (o.normalize) expect(rstd, DType::f32, {rows, 2 * o.num_heads}, "rotary rstd");
    if (!o.rotate) return;
    expect(position, DType::i32, {rows}, "rotary position");
    expect(cos, DType::f32, {cos.rows(), o.head_dim / 2}, "rotary cos");
    expect(sin, DType::f32, {cos.rows(), o.head_dim / 2}, "rotary sin");
    if (!cos.contiguous() || !sin.contiguous()) throw_internal("rotary: cos and sin have to be contiguous");
}

void check_value_mix(const ValueMix& value, Tensor q) {
    if (!value.mixed.present()) return;
    expect(value.mixed, q.dtype, {q.rows(), q.cols()}, "value mix mixed");
    expect(value.v, q.dtype, {q.rows(), q.cols()}, "value mix v");
    check_mix(value.mix, q, "value mix z", "value mix coefficients");
}

void check_attention(Tensor q, Tensor lse, Tensor first_key, std::initializer_list<Tensor> operands,
                     const AttentionOptions& o) {
    const int64_t rows = q.rows();
    if (o.sequence_length <= 0 || rows % o.sequence_length != 0) {
        throw_internal("attention: {} rows are not a multiple of the sequence length {}", rows,
                       o.sequence_length);
    }
    expect_shape(q, {rows, o.num_heads * o.head_dim}, "attention q");
    expect(lse, DType::f32, {o.num_heads, rows}, "attention lse");
    expect(first_key, DType::i32, {rows}, "attention first_key");
    for (const Tensor& operand : operands) expect(operand, q.dtype, {rows, q.cols()}, "attention operand");
}

void check_cross_entropy(Tensor losses, Tensor dlogits, Tensor logits, Tensor targets,
                         const CrossEntropyOptions& options) {
    const int64_t rows = logits.rows(), cols = logits.cols();
    expect(losses, DType::f32, {rows}, "cross_entropy losses");
    expect(targets, DType::i32, {rows}, "cross_entropy targets");
    if (dlogits.present()) expect(dlogits, logits.dtype, {rows, cols}, "cross_entropy dlogits");
    if (options.vocab_size <= 0 || options.vocab_size > cols) {
        throw_internal("cross_entropy: vocabulary of {} does not fit {} logits", options.vocab_size, cols);
    }
}

void check_adamw_step(Tensor parameter, Tensor master, Tensor first_moment, Tensor second_moment, Tensor grad,
                      Tensor grad_scale) {
    const int64_t count = master.numel();
    for (const Tensor& tensor : {master, first_moment, second_moment, grad})
        expect(tensor, DType::f32, {count}, "adamw state");
    expect(parameter, parameter.dtype, {count}, "adamw parameter");
    expect(grad_scale, DType::f32, {1}, "adamw grad_scale");
}

void check_muon_momentum(Tensor update, Tensor momentum, Tensor grad, Tensor grad_scale) {
    const int64_t count = momentum.numel();
    expect(momentum, DType::f32, {count}, "muon momentum");
    expect(grad, DType::f32, {count}, "muon grad");
    expect(update, update.dtype, {count}, "muon update");
    expect(grad_scale, DType::f32, {1}, "muon grad_scale");
}

void check_normuon_scale(Tensor update, Tensor second_moment, Tensor grad_scale) {
    if (update.rank != 3) throw_internal("normuon_scale: update must be [n,R,C], not {}", update.describe());
    if (!update.contiguous()) throw_internal("normuon_scale: {} is not contiguous", update.describe());
    expect(second_moment, DType::f32, {update.shape[0], std::max(update.shape[1], update.shape[2])},
           "normuon second_moment");
    expect(grad_scale, DType::f32, {1}, "normuon grad_scale");
}

void check_muon_apply(Tensor parameter, Tensor master, Tensor update, Tensor grad_scale) {
    const int64_t count = master.numel();
    expect(master, DType::f32, {count}, "muon master");
    expect(parameter, parameter.dtype, {count}, "muon parameter");
    expect(update, update.dtype, {count}, "muon update");
    expect(grad_scale, DType::f32, {1}, "muon grad_scale");
}

int64_t visible_pairs(const AttentionOptions& o) {
    const int64_t window = o.window > 0 ? std::min(o.window, o.sequence_length) : o.sequence_length;
    return window * (window + 1) / 2 + (o.sequence_length - window) * window;
}

int64_t Ops::polar_express_workspace(int64_t n, int64_t rows, int64_t cols) {
    const int64_t side = std::min(rows, cols);
    return n * (2 * side * side + rows * cols);  // a backend may take all matrices at once, or in turn
}

}  // namespace speedrun
