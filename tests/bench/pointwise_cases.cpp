// All operations of a forward and backward pass except matmuls and attention: memory-bound.
#include <fmt/format.h>

#include <set>

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
    const auto add_forward = [&](const char* name, bool residual) {
        cases.push_back({fmt::format("pointwise.{}.{}", s.name, name), "norm_forward", sizes(tokens, width),
                         0, kPointwise, [=](CaseMemory& m) -> Enqueue {
                             const Tensor y = m.output({tokens, width}), x = m.input({tokens, width});
                             const Tensor rstd = m.output(DType::f32, {tokens});
                             const Tensor mean = layer ? m.output(DType::f32, {tokens}) : Tensor{};
                             const Tensor gain = layer ? m.input(DType::f32, {width}) : Tensor{};
                             const Tensor bias = layer ? m.input(DType::f32, {width}) : Tensor{};
                             const Tensor sum = residual ? m.output({tokens, width}) : Tensor{};
                             const Tensor delta = residual ? m.input({tokens, width}) : Tensor{};
                             return [=](Ops& ops, Stream& stream) {
                                 ops.norm_forward({.y = y,
                                                   .sum = sum,
                                                   .mean = mean,
                                                   .rstd = rstd,
                                                   .x = x,
                                                   .delta = delta,
                                                   .gain = gain,
                                                   .bias = bias,
                                                   .kind = kind},
                                                  stream);
                             };
                         }});
    };
    add_forward("norm_forward", false);
    add_forward("norm_forward_residual", true);
    cases.push_back({fmt::format("pointwise.{}.norm_backward", s.name), "norm_backward", sizes(tokens, width),
                     0, kPointwise, [=](CaseMemory& m) -> Enqueue {
                         const Tensor ds = m.output({tokens, width}), dy = m.input({tokens, width}),
                                      x = m.input({tokens, width}), dresidual = m.input({tokens, width});
                         const Tensor rstd = m.constant({tokens}, 1.0f);
                         const Tensor mean = layer ? m.input(DType::f32, {tokens}, 0.05f) : Tensor{};
                         const Tensor gain = layer ? m.input(DType::f32, {width}) : Tensor{};
                         const Tensor dgain = layer ? m.output(DType::f32, {width}) : Tensor{};
                         const Tensor dbias = layer ? m.output(DType::f32, {width}) : Tensor{};
                         return [=](Ops& ops, Stream& stream) {
                             ops.norm_backward({.ds = ds,
                                                .dgain = dgain,
                                                .dbias = dbias,
                                                .dy = dy,
                                                .s = x,
                                                .mean = mean,
                                                .rstd = rstd,
                                                .gain = gain,
                                                .dresidual = dresidual,
                                                .accumulate = false,
                                                .kind = kind},
                                               stream);
                         };
                     }});
}

void add_mix_norm(std::vector<Case>& cases, const ModelShape& s) {
    const int64_t tokens = s.tokens, width = s.width;
    const std::string prefix = fmt::format("pointwise.{}.", s.name), shape = sizes(tokens, width);
    cases.push_back({prefix + "mix_norm_forward", "mix_norm_forward", shape, 0, kPointwise,
                     [=](CaseMemory& m) -> Enqueue {
                         const Tensor y = m.output({tokens, width}), sum = m.output({tokens, width}),
                                      entered = m.output({tokens, width}),
                                      rstd = m.output(DType::f32, {tokens});
                         const Tensor x = m.input({tokens, width}), delta = m.input({tokens, width});
                         const MixWith mix{m.input({tokens, width}), m.constant({2}, 0.5f)};
                         return [=](Ops& ops, Stream& stream) {
                             ops.mix_norm_forward({.y = y,
                                                   .sum = sum,
                                                   .entered = entered,
                                                   .rstd = rstd,
                                                   .x = x,
                                                   .delta = delta,
                                                   .mix = mix,
                                                   .kind = NormKind::rmsnorm},
                                                  stream);
                         };
                     }});
    cases.push_back({prefix + "mix_norm_backward", "mix_norm_backward", shape, 0, kPointwise,
                     [=](CaseMemory& m) -> Enqueue {
                         const Tensor dx = m.output({tokens, width}), dz = m.output({tokens, width}),
                                      dc = m.output(DType::f32, {2});
                         const Tensor dy = m.input({tokens, width}), sum = m.input({tokens, width}),
                                      entered = m.input({tokens, width}),
                                      dresidual = m.input({tokens, width});
                         const Tensor rstd = m.constant({tokens}, 1.0f);
                         const MixWith mix{m.input({tokens, width}), m.constant({2}, 0.5f)};
                         return [=](Ops& ops, Stream& stream) {
                             ops.mix_norm_backward({.dx = dx,
                                                    .dz = dz,
                                                    .dcoefficients = dc,
                                                    .dy = dy,
                                                    .s = sum,
                                                    .entered = entered,
                                                    .mix = mix,
                                                    .rstd = rstd,
                                                    .dresidual = dresidual,
                                                    .accumulate = false,
                                                    .accumulate_z = false,
                                                    .kind = NormKind::rmsnorm},
                                                   stream);
                         };
                     }});
}

void add_activation(std::vector<Case>& cases, const ModelShape& s, Activation activation) {
    const int64_t tokens = s.tokens, width = s.mlp_width;
    cases.push_back({fmt::format("pointwise.{}.activation_forward", s.name), "activation_forward",
                     sizes(tokens, width), 0, kPointwise, [=](CaseMemory& m) -> Enqueue {
                         const Tensor y = m.output({tokens, width}), x = m.input({tokens, width});
                         return [=](Ops& ops, Stream& stream) {
                             ops.activation_forward({.y = y, .x = x, .activation = activation}, stream);
                         };
                     }});
    cases.push_back({fmt::format("pointwise.{}.activation_backward", s.name), "activation_backward",
                     sizes(tokens, width), 0, kPointwise, [=](CaseMemory& m) -> Enqueue {
                         const Tensor dx = m.output({tokens, width}), dy = m.input({tokens, width}),
                                      x = m.input({tokens, width});
                         return [=](Ops& ops, Stream& stream) {
                             ops.activation_backward({.dx = dx, .dy = dy, .x = x, .activation = activation},
                                                     stream);
                         };
                     }});
}

void add_residual_stream(std::vector<Case>& cases, const ModelShape& s) {
    const int64_t tokens = s.tokens, width = s.width;
    const std::string prefix = fmt::format("pointwise.{}.", s.name), shape = sizes(tokens, width);
    cases.push_back({prefix + "add", "add", shape, 0, kPointwise, [=](CaseMemory& m) -> Enqueue {
                         const Tensor y = m.output({tokens, width}), x = m.input({tokens, width}),
                                      z = m.input({tokens, width});
                         return [=](Ops& ops, Stream& stream) { ops.add({.y = y, .x = x, .z = z}, stream); };
                     }});
}

// In place in every call: with rstd = 1 repeated gradients neither grow nor vanish.
void add_rotary(std::vector<Case>& cases, const ModelShape& s) {
    const int64_t tokens = s.tokens, width = s.width, heads = s.num_heads, half = s.head_dim / 2;
    const RotaryOptions options{heads, s.head_dim, true, true};
    const std::vector<int32_t> position = documents_of(s).position;
    const auto name = [&](const char* op) { return fmt::format("pointwise.{}.{}", s.name, op); };
    // Rows of (cos, sin) of one angle: the operation must keep the vectors' lengths.
    const auto tables = [=](CaseMemory& m) {
        return std::pair(m.constant({s.sequence_length, half}, 0.6f),
                         m.constant({s.sequence_length, half}, 0.8f));
    };
    cases.push_back(
        {name("qk_norm_rotary_forward"), "qk_norm_rotary_forward", sizes(tokens, 2 * width), 0, kPointwise,
         [=](CaseMemory& m) -> Enqueue {
             const Tensor qk = m.inout(m.real(), {tokens, 2 * width});
             const Tensor q = qk.column_slice(0, width), k = qk.column_slice(width, width);
             const Tensor rstd = m.output(DType::f32, {tokens, 2 * heads}), p = m.indices(position);
             const auto [cos, sin] = tables(m);
             return [=, cos = cos, sin = sin](Ops& ops, Stream& stream) {
                 ops.qk_norm_rotary_forward({.q = q,
                                             .k = k,
                                             .rstd = rstd,
                                             .cos = cos,
                                             .sin = sin,
                                             .position = p,
                                             .options = options},
                                            stream);
             };
         }});
    cases.push_back(
        {name("qk_norm_rotary_value_forward"), "qk_norm_rotary_forward", sizes(tokens, 3 * width), 0,
         kPointwise, [=](CaseMemory& m) -> Enqueue {
             const Tensor qkv = m.inout(m.real(), {tokens, 3 * width});
             const Tensor q = qkv.column_slice(0, width), k = qkv.column_slice(width, width),
                          v = qkv.column_slice(2 * width, width);
             // v becomes (v + z) / 2 in every call: it stays near z.
             const ValueMix value{v, v, {m.input({tokens, width}), m.constant({2}, 0.5f)}};
             const Tensor rstd = m.output(DType::f32, {tokens, 2 * heads}), p = m.indices(position);
             const auto [cos, sin] = tables(m);
             return [=, cos = cos, sin = sin](Ops& ops, Stream& stream) {
                 ops.qk_norm_rotary_forward({.q = q,
                                             .k = k,
                                             .rstd = rstd,
                                             .cos = cos,
                                             .sin = sin,
                                             .position = p,
                                             .value = value,
                                             .options = options},
                                            stream);
             };
         }});
    cases.push_back(
        {name("qk_norm_rotary_backward"), "qk_norm_rotary_backward", sizes(tokens, 2 * width), 0, kPointwise,
         [=](CaseMemory& m) -> Enqueue {
             const Tensor dqk = m.inout(m.real(), {tokens, 2 * width}), qk = m.input({tokens, 2 * width});
             const Tensor rstd = m.constant({tokens, 2 * heads}, 1.0f), p = m.indices(position);
             const auto [cos, sin] = tables(m);
             return [=, cos = cos, sin = sin](Ops& ops, Stream& stream) {
                 ops.qk_norm_rotary_backward({.dq = dqk.column_slice(0, width),
                                              .dk = dqk.column_slice(width, width),
                                              .q = qk.column_slice(0, width),
                                              .k = qk.column_slice(width, width),
                                              .rstd = rstd,
                                              .cos = cos,
                                              .sin = sin,
                                              .position = p,
                                              .options = options},
                                             stream);
             };
         }});
}

struct LossForm {
    int64_t num_targets = 1;  // targets per row, weighted if more than one
    bool fp8 = false;         // FP8 gradients
};

void add_loss(std::vector<Case>& cases, const ModelShape& s, float softcap, LossForm form = {}) {
    const auto [num_targets, fp8] = form;
    const int64_t tokens = s.tokens, vocab = s.padded_vocab;
    const int64_t vocab_size = s.vocab_size;
    const std::vector<int32_t> targets =
        zipf_tokens({.count = num_targets * tokens, .vocab_size = s.vocab_size});
    const std::string several = num_targets > 1 ? fmt::format("_{}_targets", num_targets) : "";
    cases.push_back({fmt::format("pointwise.{}.cross_entropy{}{}", s.name, several, fp8 ? "_fp8" : ""),
                     "cross_entropy",
                     sizes(tokens, vocab),
                     0,
                     {{"realistic", 0, 0, 2.2 / 2.4}},
                     [=, fp8 = fp8, num_targets = num_targets](CaseMemory& m) -> Enqueue {
                         const Tensor losses = m.output(DType::f32, {tokens}),
                                      dlogits = m.output(fp8 ? DType::e5m2 : m.real(), {tokens, vocab}),
                                      transposed = fp8 ? m.output(DType::e5m2, {vocab, tokens}) : Tensor{},
                                      logits = m.input({tokens, vocab}), ids = m.indices(targets);
                         const Tensor scale = fp8 ? m.constant({1}, 1.0f / 448) : Tensor{};
                         const bool weighed = num_targets > 1;
                         const Tensor target = weighed ? ids.reshaped({num_targets, tokens}) : ids;
                         const Tensor weights = weighed ? m.input(DType::f32, {num_targets}) : Tensor{};
                         return [=](Ops& ops, Stream& stream) {
                             ops.cross_entropy({.losses = losses,
                                                .dlogits = dlogits,
                                                .transposed = transposed,
                                                .scale = scale,
                                                .logits = logits,
                                                .targets = target,
                                                .weights = weights,
                                                .vocab_size = vocab_size,
                                                .softcap = {softcap}},
                                               stream);
                         };
                     }});
}

// Work of one of two ranks, each with half of the columns.
void add_loss_in_parts(std::vector<Case>& cases, const ModelShape& s, float softcap) {
    const int64_t tokens = s.tokens, columns = s.padded_vocab / 2, whole_vocab_size = s.vocab_size;
    const std::vector<int32_t> ids = zipf_tokens({.count = tokens, .vocab_size = s.vocab_size});
    cases.push_back({fmt::format("pointwise.{}.cross_entropy_part", s.name),
                     "cross_entropy_part",
                     sizes(tokens, columns),
                     0,
                     {},
                     [=](CaseMemory& m) -> Enqueue {
                         const Tensor part = m.output(DType::f32, {tokens, 2}),
                                      logits = m.input({tokens, columns}), targets = m.indices(ids);
                         return [=](Ops& ops, Stream& stream) {
                             ops.cross_entropy_part({.part = part,
                                                     .logits = logits,
                                                     .targets = targets,
                                                     .first = 0,
                                                     .vocab_size = columns,
                                                     .whole_vocab_size = whole_vocab_size,
                                                     .softcap = {softcap}},
                                                    stream);
                         };
                     }});
    cases.push_back({fmt::format("pointwise.{}.cross_entropy_of_parts", s.name),
                     "cross_entropy_of_parts",
                     sizes(tokens, columns),
                     0,
                     {},
                     [=](CaseMemory& m) -> Enqueue {
                         const Tensor losses = m.output(DType::f32, {tokens}),
                                      dlogits = m.output({tokens, columns}),
                                      logits = m.input({tokens, columns}),
                                      parts = m.input(DType::f32, {2 * tokens, 2}), targets = m.indices(ids);
                         return [=](Ops& ops, Stream& stream) {
                             ops.cross_entropy_of_parts({.losses = losses,
                                                         .dlogits = dlogits,
                                                         .logits = logits,
                                                         .parts = parts,
                                                         .targets = targets,
                                                         .first = 0,
                                                         .vocab_size = columns,
                                                         .whole_vocab_size = whole_vocab_size,
                                                         .softcap = {softcap}},
                                                        stream);
                         };
                     }});
}

}  // namespace

std::vector<Case> pointwise_cases(const Shapes& shapes) {
    std::vector<Case> cases;
    add_norm(cases, shapes.recipe, NormKind::rmsnorm);
    add_mix_norm(cases, shapes.recipe);
    add_activation(cases, shapes.recipe, Activation::relu_squared);
    add_residual_stream(cases, shapes.recipe);
    add_rotary(cases, shapes.recipe);
    add_loss(cases, shapes.recipe, 15.0f);
    add_loss(cases, shapes.recipe, 15.0f, {.num_targets = 3});
    add_loss(cases, shapes.recipe, 15.0f, {.num_targets = 3, .fp8 = true});
    add_loss_in_parts(cases, shapes.recipe, 15.0f);
    add_norm(cases, shapes.gpt2, NormKind::layernorm);
    add_activation(cases, shapes.gpt2, Activation::gelu_tanh);
    add_loss(cases, shapes.gpt2, 0.0f);
    return cases;
}

}  // namespace speedrun::bench
