#include "kernels/ops/op_checks.h"

#include <algorithm>
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

void check_mix(const MixWith& mix, Tensor x, const char* z_name, const char* coefficients_name) {
    expect(mix.z, x.dtype, {x.rows(), x.cols()}, z_name);
    expect(mix.coefficients, DType::f32, {2}, coefficients_name);
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

template <class Arguments>
void check_rotary(const Arguments& a) {
    const RotaryOptions& o = a.options;
    const int64_t rows = a.q.rows(), width = o.num_heads * o.head_dim;
    if (o.head_dim <= 0 || o.head_dim % 2 != 0)
        throw_internal("rotary: head_dim {} is not a positive even number", o.head_dim);
    expect_shape(a.q, {rows, width}, "rotary q");
    expect(a.k, a.q.dtype, {rows, width}, "rotary k");
    if (o.normalize) expect(a.rstd, DType::f32, {rows, 2 * o.num_heads}, "rotary rstd");
    if (!o.rotate) return;
    expect(a.position, DType::i32, {rows}, "rotary position");
    expect(a.cos, DType::f32, {a.cos.rows(), o.head_dim / 2}, "rotary cos");
    expect(a.sin, DType::f32, {a.cos.rows(), o.head_dim / 2}, "rotary sin");
    if (!a.cos.contiguous() || !a.sin.contiguous())
        throw_internal("rotary: cos and sin have to be contiguous");
}

// Those that have the shape and type of q, and those that have them of k.
struct AttentionOperands {
    std::initializer_list<Tensor> of_queries, of_keys;
};
template <class Arguments>
void check_attention(const Arguments& a, const AttentionOperands& operands) {
    const AttentionOptions& o = a.options;
    const int64_t rows = a.q.rows(), keys = a.place.present() ? a.k.rows() : rows;
    if (o.sequence_length <= 0 || keys % o.sequence_length != 0) {
        throw_internal("attention: {} rows are not a multiple of the sequence length {}", keys,
                       o.sequence_length);
    }
    if (const int64_t sequences = keys / o.sequence_length;
        sequences > 0 ? rows == 0 || rows % sequences != 0 : rows > 0)
        throw_internal("attention: {} queries are not as many for each of {} sequences", rows, sequences);
    expect_shape(a.q, {rows, o.num_heads * o.head_dim}, "attention q");
    expect(a.lse, DType::f32, {o.num_heads, rows}, "attention lse");
    expect(a.first_key, DType::i32, {rows}, "attention first_key");
    if (a.place.present()) expect(a.place, DType::i32, {rows}, "attention place");
    for (const Tensor& operand : operands.of_queries)
        expect(operand, a.q.dtype, {rows, a.q.cols()}, "attention operand");
    for (const Tensor& operand : operands.of_keys)
        expect(operand, a.q.dtype, {keys, a.q.cols()}, "attention operand");
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
    check_mix(a.mix, a.x, "mix_norm z", "mix_norm coefficients");
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
    check_mix(a.mix, a.s, "mix_norm z", "mix_norm coefficients");
    expect(a.dcoefficients, DType::f32, {2}, "mix_norm dcoefficients");
}

void check(const op::WeightedSumForward& a) {
    check_terms(a.terms, a.y, a.sequence_length);
    for (int j = 0; j < count_terms(a.terms); ++j) {
        if (a.terms[j].shifted && same_memory(a.terms[j].source, a.y))
            throw_internal("weighted_sum: y is the source of term {}, which is shifted", j);
    }
}

void check(const op::WeightedSumBackward& a) {
    check_terms(a.terms, a.dy, a.sequence_length);
    check_term_gradients(a);
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

void check(const op::QkNormRotaryForward& a) {
    check_rotary(a);
    if (!a.value.mixed.present()) return;
    expect(a.value.mixed, a.q.dtype, {a.q.rows(), a.q.cols()}, "value mix mixed");
    expect(a.value.v, a.q.dtype, {a.q.rows(), a.q.cols()}, "value mix v");
    check_mix(a.value.mix, a.q, "value mix z", "value mix coefficients");
}

void check(const op::QkNormRotaryBackward& a) {
    check_rotary(a);
    expect(a.dq, a.q.dtype, {a.q.rows(), a.q.cols()}, "rotary dq");
    expect(a.dk, a.q.dtype, {a.q.rows(), a.q.cols()}, "rotary dk");
}

void check(const op::AttentionForward& a) {
    check_attention(a, {.of_queries = {a.o}, .of_keys = {a.k, a.v}});
}

void check(const op::AttentionBackward& a) {
    check_attention(a, {.of_queries = {a.dq, a.dout, a.o}, .of_keys = {a.dk, a.dv, a.k, a.v}});
}

void check(const op::MergeAttention& a) {
    const int64_t rows = a.o.rows(), heads = a.lse.rows();
    if (heads <= 0 || a.o.cols() % heads != 0)
        throw_internal("merge_attention: {} is not cut into {} heads", a.o.describe(), heads);
    expect(a.sum, DType::f32, {rows, a.o.cols()}, "merge_attention sum");
    expect(a.lse, DType::f32, {heads, rows}, "merge_attention lse");
    expect(a.lse_of_o, DType::f32, {heads, rows}, "merge_attention lse_of_o");
    if (a.lse_before.present()) expect(a.lse_before, DType::f32, {heads, rows}, "merge_attention lse_before");
    for (const Tensor& of_heads : {a.lse, a.lse_of_o, a.lse_before})
        if (of_heads.present() && !of_heads.contiguous())
            throw_internal("merge_attention: {} is not contiguous", of_heads.describe());
    if (a.lse_before.present() && same_memory(a.lse, a.lse_before))
        throw_internal("merge_attention: lse_before {} is lse", a.lse_before.describe());
}

void check(const op::CrossEntropy& a) {
    const int64_t rows = a.logits.rows(), cols = a.logits.cols();
    expect(a.losses, DType::f32, {rows}, "cross_entropy losses");
    check_targets(a.targets, a.weights, rows);
    if (a.dlogits.present()) expect(a.dlogits, a.logits.dtype, {rows, cols}, "cross_entropy dlogits");
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
    expect(a.dlogits, a.logits.dtype, {rows, a.logits.cols()}, "cross_entropy dlogits");
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

int64_t visible_pairs(const AttentionOptions& o, int64_t queries) {
    if (o.visible_pairs > 0) return o.visible_pairs;
    const int64_t window = o.window > 0 ? std::min(o.window, o.sequence_length) : o.sequence_length;
    const int64_t of_sequence = window * (window + 1) / 2 + (o.sequence_length - window) * window;
    return of_sequence * queries / o.sequence_length;
}

}  // namespace speedrun
