#include <tuple>

#include "kernels/ops/op_checks.h"

namespace speedrun {

namespace {

void expect_weights(const Tensor& w, const char* name, int64_t rows, int64_t heads) {
    if (w.rank == 2) return expect(w, DType::f32, {rows, heads}, name);
    expect(w, DType::f32, {heads}, name);
}

// Both directions; c: what has the shape of the output.
template <class Arguments>
void check_compose(const Arguments& a, const Tensor& c) {
    const ComposeHeadsOptions& o = a.options;
    const int64_t rows = c.rows(), width = o.num_heads * o.head_dim;
    if (o.keys < 1 || o.keys > ComposeHeadsOptions::kMostKeys)
        throw_internal("compose_heads: {} keys, expected 1 to {}", o.keys, ComposeHeadsOptions::kMostKeys);
    if (o.num_heads < 1 || o.head_dim < 1)
        throw_internal("compose_heads: {} heads of {}", o.num_heads, o.head_dim);
    if (o.sequence_length <= 0 || rows % o.sequence_length != 0)
        throw_internal("compose_heads: {} rows are not a multiple of the sequence length {}", rows,
                       o.sequence_length);
    expect_shape(c, {rows, width}, "compose_heads c");
    expect(a.q, c.dtype, {rows, width}, "compose_heads q");
    expect(a.k, c.dtype, {rows, width}, "compose_heads k");
    expect(a.v, c.dtype, {rows, width}, "compose_heads v");
    expect(a.first_key, DType::i32, {rows}, "compose_heads first_key");
    expect_weights(a.w1, "compose_heads w1", rows, o.num_heads);
    expect_weights(a.w2, "compose_heads w2", rows, o.num_heads);
}

}  // namespace

void check(const op::ComposeHeadsForward& a) {
    check_compose(a, a.c);
    for (const Tensor& operand : {a.q, a.k, a.v})
        if (same_memory(a.c, operand)) throw_internal("compose_heads: {} is its own operand", a.c.describe());
}

void check(const op::ComposeHeadsBackward& a) {
    const int64_t rows = a.dc.rows(), cols = a.dc.cols();
    check_compose(a, a.dc);
    expect(a.dq, a.dc.dtype, {rows, cols}, "compose_heads dq");
    expect(a.dk, a.dc.dtype, {rows, cols}, "compose_heads dk");
    expect(a.dv, a.dc.dtype, {rows, cols}, "compose_heads dv");
    for (const Tensor& result : {a.dq, a.dk, a.dv})
        for (const Tensor& operand : {a.dc, a.q, a.k, a.v})
            if (same_memory(result, operand))
                throw_internal("compose_heads: {} is its own operand", result.describe());
    for (const auto& [gradient, weights, name] :
         {std::tuple{a.dw1, a.w1, "compose_heads dw1"}, std::tuple{a.dw2, a.w2, "compose_heads dw2"}}) {
        if (gradient.rank != weights.rank)
            throw_internal("{}: {} is not of the shape of {}", name, gradient.describe(), weights.describe());
        expect_weights(gradient, name, rows, a.options.num_heads);
    }
}

int64_t visible_pairs(const ComposeHeadsOptions& o, int64_t queries) {
    return visible_pairs(AttentionOptions{.sequence_length = o.sequence_length,
                                          .num_heads = o.num_heads,
                                          .head_dim = o.head_dim,
                                          .window = o.keys},
                         queries);
}

}  // namespace speedrun
