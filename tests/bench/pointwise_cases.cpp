// All operations of a forward and backward pass except matmuls and attention: memory-bound. Cases of elementwise operations follow
// from their operands.
#include <fmt/format.h>

#include "data/zipf_tokens.h"
#include "tests/bench/cases.h"

namespace speedrun::bench {

namespace {

// 34 passes of T x 768 per layer: roofline bound 6.85 ms, realistic 7.8 ms.
const std::vector<Published> kPointwise = {{"realistic", 0, 0, 6.85 / 7.8}};

std::string sizes(int64_t rows, int64_t cols) {
    return fmt::format("{}x{}", rows, cols);
}

void add_norm(std::vector<Case>& cases, const ModelShape& s, NormKind kind) {
    const int64_t tokens = s.tokens, width = s.width;
    const bool layer = kind == NormKind::layernorm;
    const std::string prefix = fmt::format("pointwise.{}.norm_", s.name), shape = sizes(tokens, width);
    for (const bool residual : {false, true}) {
        add_case(cases, {prefix + (residual ? "forward_residual" : "forward"), shape, 0, kPointwise},
                 [=](CaseMemory& m) {
                     return op::NormForward{.y = m.output({tokens, width}),
                                            .sum = residual ? m.output({tokens, width}) : Tensor{},
                                            .mean = layer ? m.output(DType::f32, {tokens}) : Tensor{},
                                            .rstd = m.output(DType::f32, {tokens}),
                                            .x = m.input({tokens, width}),
                                            .delta = residual ? m.input({tokens, width}) : Tensor{},
                                            .gain = layer ? m.input(DType::f32, {width}) : Tensor{},
                                            .bias = layer ? m.input(DType::f32, {width}) : Tensor{},
                                            .kind = kind};
                 });
    }
    add_case(cases, {prefix + "backward", shape, 0, kPointwise}, [=](CaseMemory& m) {
        return op::NormBackward{.ds = m.output({tokens, width}),
                                .dgain = layer ? m.output(DType::f32, {width}) : Tensor{},
                                .dbias = layer ? m.output(DType::f32, {width}) : Tensor{},
                                .dy = m.input({tokens, width}),
                                .s = m.input({tokens, width}),
                                .mean = layer ? m.input(DType::f32, {tokens}, 0.05f) : Tensor{},
                                .rstd = m.constant({tokens}, 1.0f),
                                .gain = layer ? m.input(DType::f32, {width}) : Tensor{},
                                .dresidual = m.input({tokens, width}),
                                .accumulate = false,
                                .kind = kind};
    });
}

// Allocates the operands of an elementwise operation.
struct Allocate {
    CaseMemory& memory;
    int64_t rows, cols;
    void writes(Tensor& operand, const char* /*name*/) const { operand = memory.output({rows, cols}); }
    void reads(Tensor& operand, const char* /*name*/) const { operand = memory.input({rows, cols}); }
};

// Adds a case of an elementwise operation: an activation on rows of the MLP, another one on rows of the stream.
template <class Op>
void add_elementwise(std::vector<Case>& cases, const ModelShape& s, Activation activation) {
    if constexpr (requires(Op op, Allocate allocate) { Op::operands(op, allocate); }) {
        const std::string name = testing::name_of_op(static_cast<const Op*>(nullptr));
        constexpr bool kActivates = requires(Op op) {
            op.activation;
        };
        if (activation != Activation::relu_squared && !kActivates) return;  // one case is enough
        const int64_t tokens = s.tokens, cols = kActivates ? s.mlp_width : s.width;
        add_case(cases, {fmt::format("pointwise.{}.{}", s.name, name), sizes(tokens, cols), 0, kPointwise},
                 [=](CaseMemory& m) {
                     Op op{};
                     if constexpr (kActivates) op.activation = activation;
                     Op::operands(op, Allocate{m, tokens, cols});
                     if constexpr (std::is_same_v<Op, op::ActivationBackward>)
                         if (activation == Activation::relu_squared) m.square(op.saved);
                     return op;
                 });
    }
}

void add_elementwise(std::vector<Case>& cases, const ModelShape& s, Activation activation) {
#define SPEEDRUN_ELEMENTWISE_CASE(name, Arguments) add_elementwise<op::Arguments>(cases, s, activation);
    SPEEDRUN_EACH_OP(SPEEDRUN_ELEMENTWISE_CASE)
#undef SPEEDRUN_ELEMENTWISE_CASE
}

// In place in every call: with rstd = 1 repeated gradients neither grow nor vanish.
void add_rotary(std::vector<Case>& cases, const ModelShape& s) {
    const int64_t tokens = s.tokens, width = s.width, heads = s.num_heads, half = s.head_dim / 2,
                  length = s.sequence_length;
    const RotaryOptions options{heads, s.head_dim, true, true};
    const std::vector<int32_t> position = documents_of(s).position;
    const std::string prefix = fmt::format("pointwise.{}.qk_norm_rotary_", s.name);
    for (const bool with_value : {false, true}) {
        const int64_t columns = (with_value ? 3 : 2) * width;
        add_case(cases,
                 {prefix + (with_value ? "value_forward" : "forward"), sizes(tokens, columns), 0, kPointwise},
                 [=](CaseMemory& m) {
                     const Tensor qkv = m.inout(m.compute_dtype(), {tokens, columns});
                     ValueMix value;
                     if (with_value) {  // v becomes (v + z) / 2 in every call: it stays near z.
                         const Tensor v = qkv.column_slice(2 * width, width);
                         value = {v, v, {m.input({tokens, width}), m.constant({2}, 0.5f)}};
                     }
                     // Rows of (cos, sin) of one angle: the operation must keep the vectors' lengths.
                     return op::QkNormRotaryForward{.q = qkv.column_slice(0, width),
                                                    .k = qkv.column_slice(width, width),
                                                    .rstd = m.output(DType::f32, {tokens, 2 * heads}),
                                                    .cos = m.constant({length, half}, 0.6f),
                                                    .sin = m.constant({length, half}, 0.8f),
                                                    .position = m.indices(position),
                                                    .value = value,
                                                    .options = options};
                 });
    }
    add_case(cases, {prefix + "backward", sizes(tokens, 2 * width), 0, kPointwise}, [=](CaseMemory& m) {
        const Tensor dqk = m.inout(m.compute_dtype(), {tokens, 2 * width}), qk = m.input({tokens, 2 * width});
        return op::QkNormRotaryBackward{.dq = dqk.column_slice(0, width),
                                        .dk = dqk.column_slice(width, width),
                                        .q = qk.column_slice(0, width),
                                        .k = qk.column_slice(width, width),
                                        .rstd = m.constant({tokens, 2 * heads}, 1.0f),
                                        .cos = m.constant({length, half}, 0.6f),
                                        .sin = m.constant({length, half}, 0.8f),
                                        .position = m.indices(position),
                                        .options = options};
    });
}

struct LossForm {
    int64_t num_targets = 1;  // targets per row, weighted if more than one
    bool fp8 = false;         // FP8 gradients
};

void add_loss(std::vector<Case>& cases, const ModelShape& s, float softcap, LossForm form = {}) {
    const int64_t tokens = s.tokens, vocab = s.padded_vocab, vocab_size = s.vocab_size,
                  count = form.num_targets;
    const bool fp8 = form.fp8, weighed = count > 1;
    const std::vector<int32_t> targets = zipf_tokens({.count = count * tokens, .vocab_size = vocab_size});
    const std::string several = weighed ? fmt::format("_{}_targets", count) : "",
                      name =
                          fmt::format("pointwise.{}.cross_entropy{}{}", s.name, several, fp8 ? "_fp8" : "");
    add_case(cases, {name, sizes(tokens, vocab), 0, {{"realistic", 0, 0, 2.2 / 2.4}}}, [=](CaseMemory& m) {
        const Tensor ids = m.indices(targets);
        return op::CrossEntropy{.losses = m.output(DType::f32, {tokens}),
                                .dlogits = m.output(fp8 ? DType::e5m2 : m.compute_dtype(), {tokens, vocab}),
                                .transposed = fp8 ? m.output(DType::e5m2, {vocab, tokens}) : Tensor{},
                                .scale = fp8 ? m.constant({1}, 1.0f / 448) : Tensor{},
                                .logits = m.input({tokens, vocab}),
                                .targets = weighed ? ids.reshaped({count, tokens}) : ids,
                                .weights = weighed ? m.input(DType::f32, {count}) : Tensor{},
                                .vocab_size = vocab_size,
                                .softcap = {softcap}};
    });
}

// Work of one of two ranks, each with half of the columns.
void add_loss_in_parts(std::vector<Case>& cases, const ModelShape& s, float softcap) {
    const int64_t tokens = s.tokens, columns = s.padded_vocab / 2, whole_vocab_size = s.vocab_size;
    const std::vector<int32_t> ids = zipf_tokens({.count = tokens, .vocab_size = s.vocab_size});
    const std::string prefix = fmt::format("pointwise.{}.cross_entropy_", s.name);
    add_case(cases, {prefix + "part", sizes(tokens, columns)}, [=](CaseMemory& m) {
        return op::CrossEntropyPart{.part = m.output(DType::f32, {tokens, 2}),
                                    .logits = m.input({tokens, columns}),
                                    .targets = m.indices(ids),
                                    .first = 0,
                                    .vocab_size = columns,
                                    .whole_vocab_size = whole_vocab_size,
                                    .softcap = {softcap}};
    });
    add_case(cases, {prefix + "of_parts", sizes(tokens, columns)}, [=](CaseMemory& m) {
        return op::CrossEntropyOfParts{.losses = m.output(DType::f32, {tokens}),
                                       .dlogits = m.output({tokens, columns}),
                                       .logits = m.input({tokens, columns}),
                                       .parts = m.input(DType::f32, {2 * tokens, 2}),
                                       .targets = m.indices(ids),
                                       .first = 0,
                                       .vocab_size = columns,
                                       .whole_vocab_size = whole_vocab_size,
                                       .softcap = {softcap}};
    });
}

}  // namespace

std::vector<Case> pointwise_cases(const Shapes& shapes) {
    std::vector<Case> cases;
    add_norm(cases, shapes.recipe, NormKind::rmsnorm);
    add_elementwise(cases, shapes.recipe, Activation::relu_squared);
    add_rotary(cases, shapes.recipe);
    add_loss(cases, shapes.recipe, 15.0f);
    add_loss(cases, shapes.recipe, 15.0f, {.num_targets = 3});
    add_loss(cases, shapes.recipe, 15.0f, {.num_targets = 3, .fp8 = true});
    add_loss_in_parts(cases, shapes.recipe, 15.0f);
    add_norm(cases, shapes.gpt2, NormKind::layernorm);
    add_elementwise(cases, shapes.gpt2, Activation::gelu_tanh);
    add_loss(cases, shapes.gpt2, 0.0f);
    return cases;
}

}  // namespace speedrun::bench
