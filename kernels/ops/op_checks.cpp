#include "kernels/ops/op_checks.h"

#include <string>

namespace speedrun {

namespace {

// What all norms have; x: the tensor that is normed.
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

// ds: what receives the gradient of s.
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

void check_mix(const MixWith& mix, Tensor x) {
    expect(mix.z, x.dtype, {x.rows(), x.cols()}, "mix_norm z");
    expect(mix.coefficients, DType::f32, {2}, "mix_norm coefficients");
}

// out: y or dy, whose shape and type the sources have.
void check_terms(const WeightedTerms& terms, Tensor out, int64_t sequence_length) {
    const int64_t rows = out.rows(), cols = out.cols(), heads = coefficient_heads(terms);
    const int count = count_terms(terms);
    if (out.rank != 2 || count == 0) throw_internal("weighted_sum: {} terms for {}", count, out.describe());
    if (rows > INT32_MAX || cols > INT32_MAX) throw_internal("weighted_sum: {} is too large", out.describe());
    if (sequence_length <= 0 || rows % sequence_length != 0) {
        throw_internal("weighted_sum: {} rows are not a multiple of the sequence length {}", rows,
                       sequence_length);
    }
    if (cols % heads != 0)
        throw_internal("weighted_sum: {} columns are not a multiple of {} coefficients", cols, heads);
    for (int j = 0; j < kMaxTerms; ++j) {
        const Tensor &source = terms[j].source, &coefficient = terms[j].coefficient;
        if (j >= count && (source.present() || coefficient.present()))
            throw_internal("weighted_sum: term {} follows one without a source", j);
        if (j >= count) continue;
        expect(source, out.dtype, {rows, cols}, "weighted_sum source");
        if (!coefficient.present()) continue;
        if (coefficient.rank == 1) {
            expect(coefficient, DType::f32, {1}, "weighted_sum coefficient");
        } else {
            expect(coefficient, DType::f32, {rows, coefficient.cols() == 1 ? 1 : heads},
                   "weighted_sum coefficient");
        }
    }
}

void check_term_gradients(const op::WeightedSumBackward& a) {
    for (int j = 0; j < kMaxTerms; ++j) {
        const TermGradient& g = a.gradients[j];
        if (j >= count_terms(a.terms) && (g.dsource.present() || g.dcoefficient.present()))
            throw_internal("weighted_sum: a gradient is wanted of term {} of {}", j, count_terms(a.terms));
        if (g.dcoefficient.present()) {
            const Tensor& c = a.terms[j].coefficient;
            if (!c.present()) throw_internal("weighted_sum: term {} has no coefficient, but its gradient", j);
            if (c.rank == 1) {
                expect(g.dcoefficient, DType::f32, {1}, "weighted_sum dcoefficient");
            } else {
                expect(g.dcoefficient, DType::f32, {c.rows(), c.cols()}, "weighted_sum dcoefficient");
            }
        }
        if (!g.dsource.present()) continue;
        expect(g.dsource, a.dy.dtype, {a.dy.rows(), a.dy.cols()}, "weighted_sum dsource");
        if (same_memory(g.dsource, a.dy) && any_shifted(a.terms))
            throw_internal("weighted_sum: dsource {} is dy, but a term is shifted", j);
        for (int i = 0; i < j; ++i) {
            if (!same_memory(a.gradients[i].dsource, g.dsource)) continue;
            if (!joins_previous(a.gradients, j) || !g.accumulate_source)
                throw_internal(
                    "weighted_sum: dsource {} is that of term {}, but no neighbour that accumulates", j, i);
        }
    }
}

// What both directions of narrow_linear have.
template <class Arguments>
void check_narrow(const Arguments& a) {
    const int64_t rows = a.x.rows(), outputs = a.weight.rank == 2 ? a.weight.shape[0] : 0;
    const auto fits = [](int64_t size) { return size >= 1 && size <= kMaxNarrow; };
    if (a.x.rank != 2 || !fits(outputs) || !fits(a.x.cols()))
        throw_internal(
            "narrow_linear: x {} and weight {} are not [T,K] and [N,K] with 1 to {} columns and rows",
            a.x.describe(), a.weight.describe(), kMaxNarrow);
    const DType weight_type = a.weight.dtype == DType::f32 ? DType::f32 : a.x.dtype;
    expect(a.weight, weight_type, {outputs, a.x.cols()}, "narrow_linear weight");
    if (!a.weight.contiguous())
        throw_internal("narrow_linear: weight {} is not contiguous", a.weight.describe());
    expect(a.y, DType::f32, {rows, outputs}, "narrow_linear y");
}

void check_targets(const Tensor& targets, const Tensor& weights, int64_t rows) {
    if (!weights.present()) return expect(targets, DType::i32, {rows}, "cross_entropy targets");
    const int64_t count = weights.numel();
    if (count > op::CrossEntropy::kMostTargets)
        throw_internal("cross_entropy: {} targets a row, at most {}", count, op::CrossEntropy::kMostTargets);
    expect(weights, DType::f32, {count}, "cross_entropy weights");
    expect(targets, DType::i32, {count, rows}, "cross_entropy targets");
}

template <class Arguments>
void check_part(const Arguments& a, int64_t cols) {
    if (a.vocab_size < 0 || a.vocab_size > cols || a.first < 0 ||
        (a.vocab_size > 0 && a.first + a.vocab_size > a.whole_vocab_size)) {
        throw_internal("cross_entropy: {} ids from {} on, of {}, do not fit {} logits", a.vocab_size, a.first,
                       a.whole_vocab_size, cols);
    }
}
// dlogits as logits are, or 8-bit numbers of theirs.
template <class Arguments>
void check_dlogits(const Arguments& a, int64_t rows, int64_t cols) {
    const bool scaled = a.scale.present();
    expect(a.dlogits, scaled ? DType::e5m2 : a.logits.dtype, {rows, cols}, "cross_entropy dlogits");
    if (!scaled) return;
    expect(a.scale, DType::f32, {1}, "cross_entropy scale");
    expect(a.transposed, DType::e5m2, {cols, rows}, "cross_entropy transposed");
    constexpr int64_t kUnit = 16;  // elements, as op::ScaledMatmul takes them
    for (const Tensor& x : {a.logits, a.dlogits, a.transposed}) {
        if (x.cols() % kUnit != 0 || x.row_stride % kUnit != 0 ||
            reinterpret_cast<uintptr_t>(x.data) % static_cast<uintptr_t>(kUnit) != 0)
            throw_internal(
                "cross_entropy: rows of {} ({} apart) are not in units of {}, as dlogits in 8 bits need",
                x.describe(), x.row_stride, kUnit);
    }
    if (std::max(rows, cols) > INT32_MAX)
        throw_internal("cross_entropy: {} is too large for dlogits in 8 bits", a.logits.describe());
}
void check_pairs(const Tensor& pairs, int64_t count, const char* name) {
    expect(pairs, DType::f32, {count, 2}, name);
    if (!pairs.contiguous()) throw_internal("{} {} is not contiguous", name, pairs.describe());
}

}  // namespace

void check(const op::NormForward& a) {
    check_outputs(a);
    if (a.delta.present() != a.sum.present())
        throw_internal("norm_forward: sum and delta are given together or not at all");
    if (!a.delta.present()) return;
    expect(a.delta, a.x.dtype, {a.x.rows(), a.x.cols()}, "norm delta");
    expect(a.sum, a.x.dtype, {a.x.rows(), a.x.cols()}, "norm sum");
}

void check(const op::NormBackward& a) {
    check_gradients(a, a.ds);
}

void check(const op::MixNormForward& a) {
    const int64_t rows = a.x.rows(), cols = a.x.cols();
    check_outputs(a);
    expect(a.sum, a.x.dtype, {rows, cols}, "mix_norm sum");
    check_mix(a.mix, a.x);
    if (a.delta.present() != a.entered.present())
        throw_internal("mix_norm_forward: entered and delta are given together or not at all");
    if (!a.delta.present()) return;
    expect(a.delta, a.x.dtype, {rows, cols}, "mix_norm delta");
    expect(a.entered, a.x.dtype, {rows, cols}, "mix_norm entered");
}

void check(const op::MixNormBackward& a) {
    check_gradients(a, a.dx);
    expect(a.dz, a.s.dtype, {a.s.rows(), a.s.cols()}, "mix_norm dz");
    expect(a.entered, a.s.dtype, {a.s.rows(), a.s.cols()}, "mix_norm entered");
    check_mix(a.mix, a.s);
    expect(a.dcoefficients, DType::f32, {2}, "mix_norm dcoefficients");
}

void check(const op::WeightedSumForward& a) {
    check_terms(a.terms, a.y, a.sequence_length);
    for (int j = 0; j < count_terms(a.terms); ++j) {
        if (a.terms[j].shifted && same_memory(a.terms[j].source, a.y))
            throw_internal("weighted_sum: y is the source of term {}, which is shifted", j);
    }
}

void check(const op::SumNormForward& a) {
    check(a.first());
    check(a.second());
}

void check(const op::WeightedSumBackward& a) {
    check_terms(a.terms, a.dy, a.sequence_length);
    check_term_gradients(a);
}

void check(const op::SumNormBackward& a) {
    check(a.first(a.dy));  // ds has the shape of dy
    check(a.second(a.dy));
    if (any_shifted(a.terms) || coefficient_heads(a.terms) > 1)
        throw_internal("sum_norm_backward: a term is shifted, or has a coefficient for each of {} heads",
                       coefficient_heads(a.terms));
}

void check(const op::NarrowLinearForward& a) {
    check_narrow(a);
    if (a.bias.present()) expect(a.bias, DType::f32, {a.y.cols()}, "narrow_linear bias");
}

void check(const op::NarrowLinearBackward& a) {
    check_narrow(a);
    expect(a.dy, DType::f32, {a.y.rows(), a.y.cols()}, "narrow_linear dy");
    if (a.dx.present()) expect(a.dx, a.x.dtype, {a.x.rows(), a.x.cols()}, "narrow_linear dx");
    if (a.dbias.present()) expect(a.dbias, DType::f32, {a.y.cols()}, "narrow_linear dbias");
    if (!a.dweight.present()) return;
    expect(a.dweight, DType::f32, {a.y.cols(), a.x.cols()}, "narrow_linear dweight");
    if (!a.dweight.contiguous())
        throw_internal("narrow_linear: dweight {} is not contiguous", a.dweight.describe());
}

void check(const op::CrossEntropy& a) {
    const int64_t rows = a.logits.rows(), cols = a.logits.cols();
    expect(a.losses, DType::f32, {rows}, "cross_entropy losses");
    check_targets(a.targets, a.weights, rows);
    if (a.dlogits.present()) check_dlogits(a, rows, cols);
    if (a.vocab_size <= 0 || a.vocab_size > cols) {
        throw_internal("cross_entropy: vocabulary of {} does not fit {} logits", a.vocab_size, cols);
    }
}

void check(const op::CrossEntropyPart& a) {
    const int64_t rows = a.logits.rows();
    check_targets(a.targets, a.weights, rows);
    check_part(a, a.logits.cols());
    check_pairs(a.part, rows, "cross_entropy part");
}

void check(const op::CrossEntropyOfParts& a) {
    const int64_t rows = a.logits.present() ? a.logits.rows() : a.losses.numel(), pairs = a.parts.rows();
    expect(a.losses, DType::f32, {rows}, "cross_entropy losses");
    check_targets(a.targets, a.weights, rows);
    if (pairs < rows || (rows > 0 && pairs % rows != 0))
        throw_internal("cross_entropy: parts {} are not one or several of {} rows", a.parts.describe(), rows);
    check_pairs(a.parts, pairs, "cross_entropy parts");
    if (!a.dlogits.present()) return;
    expect_shape(a.logits, {rows, a.logits.cols()}, "cross_entropy logits");
    check_dlogits(a, rows, a.logits.cols());
    check_part(a, a.logits.cols());
}

void check_step(const char* op, std::initializer_list<Tensor> states, Tensor parameter, Tensor grad_scale) {
    const int64_t count = states.begin()->numel();
    const auto name = [&](const char* what) { return std::string(op) + " " + what; };
    for (const Tensor& state : states) expect(state, DType::f32, {count}, name("state").c_str());
    expect(parameter, parameter.dtype, {count}, name("parameter").c_str());
    expect(grad_scale, DType::f32, {1}, name("grad_scale").c_str());
}

// A master of f32 with a copy of either type, or one of bf16, which f32 would only spell out.
void check_weights(const char* op, const Tensor& master, const Tensor& parameter) {
    const auto name = [&](const char* what) { return std::string(op) + " " + what; };
    const DType kept = master.dtype == DType::bf16 ? DType::bf16 : DType::f32;
    const DType real = kept == DType::bf16 || parameter.dtype == DType::bf16 ? DType::bf16 : DType::f32;
    expect(master, kept, {master.numel()}, name("master").c_str());
    expect(parameter, real, {master.numel()}, name("parameter").c_str());
}

void check(const op::AdamwStep& a) {
    check_weights("adamw_step", a.master, a.parameter);
    expect(a.grad, DType::f32, {a.master.numel()}, "adamw_step grad");
    expect(a.grad_scale, DType::f32, {1}, "adamw_step grad_scale");
    const DType moments = a.first_moment.dtype == DType::bf16 ? DType::bf16 : DType::f32;
    expect(a.first_moment, moments, {a.master.numel()}, "adamw_step first_moment");
    expect(a.second_moment, moments, {a.master.numel()}, "adamw_step second_moment");
}

void check(const op::MuonMomentum& a) {
    const int64_t count = a.momentum.numel();
    expect(a.momentum, DType::f32, {count}, "muon momentum");
    expect(a.grad, DType::f32, {count}, "muon grad");
    expect(a.update, a.update.dtype, {count}, "muon update");
    expect(a.grad_scale, DType::f32, {1}, "muon grad_scale");
}

void check(const op::NormuonScale& a) {
    const Tensor& u = a.update;
    if (u.rank != 3) throw_internal("normuon_scale: update must be [n,R,C], not {}", u.describe());
    if (!u.contiguous()) throw_internal("normuon_scale: {} is not contiguous", u.describe());
    expect(a.second_moment, DType::f32, {u.shape[0], num_lines(a.lines, u.shape[1], u.shape[2])},
           "normuon second_moment");
    expect(a.grad_scale, DType::f32, {1}, "normuon grad_scale");
}

void check(const op::MuonApply& a) {
    check_weights("muon_apply", a.master, a.parameter);
    expect(a.grad_scale, DType::f32, {1}, "muon_apply grad_scale");
    expect(a.update, a.update.dtype, {a.master.numel()}, "muon_apply update");
}

}  // namespace speedrun
