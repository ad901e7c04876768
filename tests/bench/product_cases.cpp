// Matmuls of one layer and the head: forward y = x Wᵀ, dgrad dx = dy W, wgrad dW += dyᵀ x.
#include <fmt/format.h>

#include "tests/bench/cases.h"

namespace speedrun::bench {

namespace {

struct Linear {
    const char* name;
    int64_t in, out;
    std::vector<Published> forward, dgrad, wgrad;
};

const char* const kTrace = "cuBLASLt, recipe trace";

std::string sizes(int64_t m, int64_t n, int64_t k) {
    return fmt::format("{}x{}x{}", m, n, k);
}

void add_linear(std::vector<Case>& cases, const ModelShape& shape, const Linear& l, bool with_bias) {
    const int64_t tokens = shape.tokens, in = l.in, out = l.out;
    const std::string name = fmt::format("product.{}.{}", shape.name, l.name);
    const double flops =
        2.0 * static_cast<double>(tokens) * static_cast<double>(in) * static_cast<double>(out);
    cases.push_back({name + ".forward", "matmul", sizes(tokens, out, in), flops, l.forward,
                     [=](CaseMemory& m) -> Enqueue {
                         const Tensor y = m.output({tokens, out}), x = m.input({tokens, in}),
                                      w = m.input({out, in}, 0.02f);
                         const Tensor bias = with_bias ? m.input(DType::f32, {out}) : Tensor{};
                         return [=](Ops& ops, Stream& stream) {
                             ops.matmul({.c = y, .a = x, .b = w, .bias = bias, .transpose_b = true}, stream);
                         };
                     }});
    cases.push_back(
        {name + ".dgrad", "matmul", sizes(tokens, in, out), flops, l.dgrad, [=](CaseMemory& m) -> Enqueue {
             const Tensor dx = m.output({tokens, in}), dy = m.input({tokens, out}),
                          w = m.input({out, in}, 0.02f);
             return [=](Ops& ops, Stream& stream) { ops.matmul({.c = dx, .a = dy, .b = w}, stream); };
         }});
    cases.push_back(
        {name + ".wgrad", "matmul", sizes(out, in, tokens), flops, l.wgrad, [=](CaseMemory& m) -> Enqueue {
             const Tensor dw = m.inout(DType::f32, {out, in}), dy = m.input({tokens, out}, 0.01f),
                          x = m.input({tokens, in});
             return [=](Ops& ops, Stream& stream) {
                 ops.matmul({.c = dw, .a = dy, .b = x, .transpose_a = true, .accumulate = true}, stream);
             };
         }});
}

// FP8 matmuls of the head, the quantization of their operands, and the additional FP8 work of the MLP. The
// loss writes its gradients as FP8 (pointwise_cases.cpp).
void add_fp8(std::vector<Case>& cases, const ModelShape& shape) {
    const int64_t tokens = shape.tokens, width = shape.width, vocab = shape.padded_vocab;
    const std::string name = fmt::format("fp8.{}.head.", shape.name);
    cases.push_back(
        {name + "quantize_x",
         "quantize",
         fmt::format("{}x{}", tokens, width),
         0,
         {},
         [=](CaseMemory& m) -> Enqueue {
             const Tensor out = m.output(DType::e4m3, {tokens, width}),
                          turned = m.output(DType::e4m3, {width, tokens}), x = m.input({tokens, width}),
                          scale = m.output(DType::f32, {1});
             return [=](Ops& ops, Stream& stream) {
                 ops.quantize({.out = out, .transposed = turned, .x = x, .scale = scale, .constant = 0.01f},
                              stream);
             };
         }});
    const int64_t hidden = shape.mlp_width;
    cases.push_back(
        {fmt::format("fp8.{}.mlp.relu_squared", shape.name),
         "quantize",
         fmt::format("{}x{}", tokens, hidden),
         0,
         {},
         [=](CaseMemory& m) -> Enqueue {
             const Tensor out = m.output(DType::e4m3, {tokens, hidden}), y = m.output({tokens, hidden}),
                          x = m.input({tokens, hidden}), scale = m.constant({1}, 0.01f),
                          amax = m.inout(DType::f32, {1});
             return [=](Ops& ops, Stream& stream) {
                 ops.quantize({.out = out, .x = x, .scale = scale, .relu_squared = y, .amax = amax}, stream);
             };
         }});
    cases.push_back({fmt::format("fp8.{}.scales", shape.name),
                     "renew_scales",
                     "48",
                     0,
                     {},
                     [=](CaseMemory& m) -> Enqueue {
                         const Tensor scales = m.output(DType::f32, {48}), amax = m.inout(DType::f32, {48}),
                                      factors = m.constant({48}, 0.01f);
                         return [=](Ops& ops, Stream& stream) {
                             ops.renew_scales({.scales = scales, .amax = amax, .factors = factors}, stream);
                         };
                     }});
    struct Operand {
        DType type;
        int64_t rows;
    };
    const auto product = [&](const char* what, Operand a, Operand b, int64_t inner, bool accumulate) {
        const double flops =
            2.0 * static_cast<double>(a.rows) * static_cast<double>(b.rows) * static_cast<double>(inner);
        cases.push_back({name + what,
                         "scaled_matmul",
                         sizes(a.rows, b.rows, inner),
                         flops,
                         {},
                         [=](CaseMemory& m) -> Enqueue {
                             const Tensor c = accumulate ? m.inout(DType::f32, {a.rows, b.rows})
                                                         : m.output({a.rows, b.rows}),
                                          left = m.input(a.type, {a.rows, inner}),
                                          right = m.input(b.type, {b.rows, inner}),
                                          one = m.constant({1}, 0.1f), other = m.constant({1}, 0.02f);
                             return [=](Ops& ops, Stream& stream) {
                                 ops.scaled_matmul({.c = c,
                                                    .a = left,
                                                    .b = right,
                                                    .scale_a = one,
                                                    .scale_b = other,
                                                    .accumulate = accumulate},
                                                   stream);
                             };
                         }});
    };
    product("forward", {DType::e4m3, tokens}, {DType::e4m3, vocab}, width, false);
    product("dgrad", {DType::e5m2, tokens}, {DType::e4m3, width}, vocab, false);
    product("wgrad", {DType::e5m2, vocab}, {DType::e4m3, width}, tokens, true);
}

}  // namespace

std::vector<Case> product_cases(const Shapes& shapes) {
    const ModelShape& r = shapes.recipe;
    // Milliseconds: the realistic time of all such matmuls of a microbatch (2.2 for 36 output matmuls, 10.3
    // for the head's three), divided evenly.
    const std::vector<Published> output = {{"realistic", 0, 2.2 / 36, 0}};
    const std::vector<Published> head = {{"realistic", 0, 10.3 / 3, 0}};
    std::vector<Case> cases;
    add_linear(
        cases, r,
        {"qkv", r.width, 3 * r.width, {{kTrace, 682, 0, 0}}, {{kTrace, 773, 0, 0}}, {{kTrace, 688, 0, 0}}},
        false);
    add_linear(cases, r, {"out", r.width, r.width, output, output, output}, false);
    add_linear(cases, r, {"up", r.width, r.mlp_width, {{kTrace, 681, 0, 0}}, {}, {{kTrace, 754, 0, 0}}},
               false);
    add_linear(cases, r, {"down", r.mlp_width, r.width, {{kTrace, 777, 0, 0}}, {}, {{kTrace, 754, 0, 0}}},
               false);
    add_linear(cases, r, {"head", r.width, r.padded_vocab, head, head, head}, false);
    add_linear(cases, shapes.gpt2, {"up", r.width, r.mlp_width, {}, {}, {}}, true);
    add_fp8(cases, r);
    return cases;
}

}  // namespace speedrun::bench
