// Matmuls of one layer and the head: forward y = x Wᵀ, dgrad dx = dy W, wgrad dW += dyᵀ x.
#include <fmt/format.h>

#include <functional>

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

double flops_of(int64_t m, int64_t n, int64_t k) {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

void add_linear(std::vector<Case>& cases, const ModelShape& shape, const Linear& l, bool with_bias) {
    const int64_t tokens = shape.tokens, in = l.in, out = l.out;
    const std::string name = fmt::format("product.{}.{}", shape.name, l.name);
    const double flops = flops_of(tokens, in, out);
    add_case(cases, {name + ".forward", sizes(tokens, out, in), flops, l.forward}, [=](CaseMemory& m) {
        return op::Matmul{.c = m.output({tokens, out}),
                          .a = m.input({tokens, in}),
                          .b = m.input({out, in}, 0.02f),
                          .bias = with_bias ? m.input(DType::f32, {out}) : Tensor{},
                          .transpose_b = true};
    });
    add_case(cases, {name + ".dgrad", sizes(tokens, in, out), flops, l.dgrad}, [=](CaseMemory& m) {
        return op::Matmul{
            .c = m.output({tokens, in}), .a = m.input({tokens, out}), .b = m.input({out, in}, 0.02f)};
    });
    add_case(cases, {name + ".wgrad", sizes(out, in, tokens), flops, l.wgrad}, [=](CaseMemory& m) {
        return op::Matmul{.c = m.inout(DType::f32, {out, in}),
                          .a = m.input({tokens, out}, 0.01f),
                          .b = m.input({tokens, in}),
                          .transpose_a = true,
                          .accumulate = true};
    });
}

// The two matmuls of the MLP with ReLU²: its first in forward, the gradient of its hidden layer in backward.
void add_squares(std::vector<Case>& cases, const ModelShape& shape) {
    const int64_t tokens = shape.tokens, width = shape.width, hidden = shape.mlp_width;
    const std::string prefix = fmt::format("product.{}.", shape.name);
    const auto add = [&](const char* name, const std::function<op::Matmul(CaseMemory&)>& make) {
        add_case(cases, {prefix + name, sizes(tokens, hidden, width), flops_of(tokens, hidden, width)}, make);
    };
    add("up.relu_squared", [=](CaseMemory& m) {
        return op::Matmul{.c = m.output({tokens, hidden}),
                          .a = m.input({tokens, width}),
                          .b = m.input({hidden, width}, 0.02f),
                          .transpose_b = true,
                          .epilogue = {.relu_squared = true}};
    });
    add("down.relu_squared_backward", [=](CaseMemory& m) {
        const Tensor squares = m.input({tokens, hidden});
        m.square(squares);
        return op::Matmul{.c = m.output({tokens, hidden}),
                          .a = m.input({tokens, width}),
                          .b = m.input({width, hidden}, 0.02f),
                          .epilogue = {.squares = squares}};
    });
}

// Matmuls that add their result to the residual stream: the last ones of attention and of the MLP.
void add_addends(std::vector<Case>& cases, const ModelShape& shape) {
    const int64_t tokens = shape.tokens, width = shape.width;
    const auto add = [&](const char* name, int64_t inner) {
        add_case(cases,
                 {fmt::format("product.{}.{}.addend", shape.name, name), sizes(tokens, width, inner),
                  flops_of(tokens, width, inner)},
                 [=](CaseMemory& m) {
                     return op::Matmul{.c = m.output({tokens, width}),
                                       .a = m.input({tokens, inner}),
                                       .b = m.input({width, inner}, 0.02f),
                                       .transpose_b = true,
                                       .addend = m.input({tokens, width})};
                 });
    };
    add("out", width);
    add("down", shape.mlp_width);
}

// FP8 matmuls of the head, the quantization of their operands, and the additional FP8 work of the MLP. The
// loss writes its gradients as FP8 (pointwise_cases.cpp).
void add_fp8(std::vector<Case>& cases, const ModelShape& shape) {
    const int64_t tokens = shape.tokens, width = shape.width, vocab = shape.padded_vocab,
                  hidden = shape.mlp_width;
    const std::string prefix = fmt::format("fp8.{}.", shape.name);
    add_case(cases, {prefix + "head.quantize_x", fmt::format("{}x{}", tokens, width)}, [=](CaseMemory& m) {
        return op::Quantize{.out = m.output(DType::e4m3, {tokens, width}),
                            .transposed = m.output(DType::e4m3, {width, tokens}),
                            .x = m.input({tokens, width}),
                            .scale = m.output(DType::f32, {1}),
                            .constant = 0.01f};
    });
    add_case(cases,
             {prefix + "mlp.relu_squared", sizes(tokens, hidden, width), flops_of(tokens, hidden, width)},
             [=](CaseMemory& m) {
                 return op::ScaledMatmul{.c = m.output({tokens, hidden}),
                                         .a = m.input(DType::e4m3, {tokens, width}),
                                         .b = m.input(DType::e4m3, {hidden, width}),
                                         .scale_a = m.constant({1}, 0.1f),
                                         .scale_b = m.constant({1}, 0.02f),
                                         .epilogue = {.relu_squared = true,
                                                      .quantized = m.output(DType::e4m3, {tokens, hidden}),
                                                      .scale = m.constant({1}, 0.01f),
                                                      .amax = m.inout(DType::f32, {1})}};
             });
    add_case(cases, {prefix + "mlp.addend", sizes(tokens, width, hidden), flops_of(tokens, width, hidden)},
             [=](CaseMemory& m) {
                 return op::ScaledMatmul{.c = m.output({tokens, width}),
                                         .a = m.input(DType::e4m3, {tokens, hidden}),
                                         .b = m.input(DType::e4m3, {width, hidden}),
                                         .scale_a = m.constant({1}, 0.1f),
                                         .scale_b = m.constant({1}, 0.02f),
                                         .addend = m.input({tokens, width})};
             });
    add_case(cases, {prefix + "scales", "48"}, [=](CaseMemory& m) {
        return op::RenewScales{.scales = m.output(DType::f32, {48}),
                               .amax = m.inout(DType::f32, {48}),
                               .factors = m.constant({48}, 0.01f)};
    });
    struct Operand {
        DType type;
        int64_t rows;
    };
    const auto product = [&](const char* what, Operand a, Operand b, int64_t inner, bool accumulate) {
        const double flops = flops_of(a.rows, b.rows, inner);
        add_case(cases, {prefix + "head." + what, sizes(a.rows, b.rows, inner), flops}, [=](CaseMemory& m) {
            return op::ScaledMatmul{
                .c = accumulate ? m.inout(DType::f32, {a.rows, b.rows}) : m.output({a.rows, b.rows}),
                .a = m.input(a.type, {a.rows, inner}),
                .b = m.input(b.type, {b.rows, inner}),
                .scale_a = m.constant({1}, 0.1f),
                .scale_b = m.constant({1}, 0.02f),
                .accumulate = accumulate};
        });
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
    add_squares(cases, r);
    add_addends(cases, r);
    add_linear(cases, r, {"head", r.width, r.padded_vocab, head, head, head}, false);
    add_linear(cases, shapes.gpt2, {"up", r.width, r.mlp_width, {}, {}, {}}, true);
    add_fp8(cases, r);
    return cases;
}

}  // namespace speedrun::bench
