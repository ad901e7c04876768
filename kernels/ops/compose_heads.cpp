#include "kernels/ops/compose_heads.h"

#include <tuple>

#include "kernels/ops/attention.h"

namespace speedrun {

namespace {

void expect_weights(const Tensor& w, const char* name, int64_t rows, int64_t heads) {
    if (w.rank == 2) return expect(w, DType::f32, {rows, heads}, name);
    expect(w, DType::f32, {heads}, name);
}

// Checks forward and backward; c: the output or its gradient.
template <class Arguments>
void check_compose(const Arguments& a, const Tensor& c) {
    const ComposeHeadsOptions& o = a.options;
    const int64_t rows = c.rows(), width = o.num_heads * o.head_dim;
    if (o.keys < 1 || o.keys > ComposeHeadsOptions::kMaxKeys)
        throw_internal("compose_heads: {} keys, expected 1 to {}", o.keys, ComposeHeadsOptions::kMaxKeys);
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

void op::ComposeHeadsForward::check() const {
    check_compose(*this, c);
    for (const Tensor& operand : {q, k, v})
        if (same_memory(c, operand)) throw_internal("compose_heads: {} is its own operand", c.describe());
}

void op::ComposeHeadsBackward::check() const {
    const int64_t rows = dc.rows(), cols = dc.cols();
    check_compose(*this, dc);
    expect(dq, dc.dtype, {rows, cols}, "compose_heads dq");
    expect(dk, dc.dtype, {rows, cols}, "compose_heads dk");
    expect(dv, dc.dtype, {rows, cols}, "compose_heads dv");
    for (const Tensor& result : {dq, dk, dv})
        for (const Tensor& operand : {dc, q, k, v})
            if (same_memory(result, operand))
                throw_internal("compose_heads: {} is its own operand", result.describe());
    for (const auto& [gradient, weights, name] :
         {std::tuple{dw1, w1, "compose_heads dw1"}, std::tuple{dw2, w2, "compose_heads dw2"}}) {
        if (gradient.rank != weights.rank)
            throw_internal("{}: {} is not of the shape of {}", name, gradient.describe(), weights.describe());
        expect_weights(gradient, name, rows, options.num_heads);
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
