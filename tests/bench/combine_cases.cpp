// Weighted sums and gates at the shapes of the newest community recipe.
#include <fmt/format.h>

#include "tests/bench/cases.h"

namespace speedrun::bench {

namespace {

constexpr int64_t kGateInputs = 12;  // the first columns of a row, which gates read

// x ← c₀·x + c₁·a + g·x₀: the end of a sublayer, with two scalars and an injection gated per token. The gate
// is a column of a wider tensor.
void add_sublayer(std::vector<Case>& cases, const ModelShape& s) {
    const int64_t tokens = s.tokens, width = s.width, length = s.sequence_length;
    const std::string shape = fmt::format("3x{}x{}", tokens, width);
    cases.push_back(
        {"pointwise.recipe.weighted_sum_forward",
         "weighted_sum_forward",
         shape,
         0,
         {},
         [=](CaseMemory& m) -> Enqueue {
             const Tensor y = m.output({tokens, width});
             const WeightedTerms terms = {
                 {{.source = m.input({tokens, width}), .coefficient = m.constant({1}, 0.5f)},
                  {.source = m.input({tokens, width}), .coefficient = m.constant({1}, 0.5f)},
                  {.source = m.input({tokens, width}), .coefficient = m.input(DType::f32, {tokens, 1})}}};
             return [=](Ops& ops, Stream& stream) {
                 ops.weighted_sum_forward({.y = y, .terms = terms, .sequence_length = length}, stream);
             };
         }});
    cases.push_back(
        {"pointwise.recipe.weighted_sum_backward",
         "weighted_sum_backward",
         shape,
         0,
         {},
         [=](CaseMemory& m) -> Enqueue {
             WeightedTerms terms;
             TermGradients gradients;
             for (int j = 0; j < 3; ++j) {
                 const bool gate = j == 2;
                 terms[j].source = m.input({tokens, width});
                 terms[j].coefficient = gate ? m.input(DType::f32, {tokens, 1}) : m.constant({1}, 0.5f);
                 gradients[j] = {
                     .dsource = m.output({tokens, width}),
                     .dcoefficient = gate ? m.output(DType::f32, {tokens, 1}) : m.output(DType::f32, {1}),
                     .accumulate_source = false,
                     .accumulate_coefficient = false};
             }
             const Tensor dy = m.input({tokens, width});
             return [=](Ops& ops, Stream& stream) {
                 ops.weighted_sum_backward(
                     {.gradients = gradients, .dy = dy, .terms = terms, .sequence_length = length}, stream);
             };
         }});
}

// The end of a sublayer with the norm that follows.
void add_normed_sublayer(std::vector<Case>& cases, const ModelShape& s) {
    const int64_t tokens = s.tokens, width = s.width, length = s.sequence_length;
    const std::string shape = fmt::format("3x{}x{}", tokens, width);
    const auto terms_of = [=](CaseMemory& m) {
        return WeightedTerms{
            {{.source = m.input({tokens, width}), .coefficient = m.constant({1}, 0.5f)},
             {.source = m.input({tokens, width}), .coefficient = m.constant({1}, 0.5f)},
             {.source = m.input({tokens, width}), .coefficient = m.input(DType::f32, {tokens, 1})}}};
    };
    cases.push_back({"pointwise.recipe.sum_norm_forward",
                     "sum_norm_forward",
                     shape,
                     0,
                     {},
                     [=](CaseMemory& m) -> Enqueue {
                         const Tensor y = m.output({tokens, width}), sum = m.output({tokens, width}),
                                      rstd = m.output(DType::f32, {tokens});
                         const WeightedTerms terms = terms_of(m);
                         return [=](Ops& ops, Stream& stream) {
                             ops.sum_norm_forward({.y = y,
                                                   .sum = sum,
                                                   .rstd = rstd,
                                                   .terms = terms,
                                                   .sequence_length = length,
                                                   .kind = NormKind::rmsnorm},
                                                  stream);
                         };
                     }});
    cases.push_back({"pointwise.recipe.sum_norm_backward",
                     "sum_norm_backward",
                     shape,
                     0,
                     {},
                     [=](CaseMemory& m) -> Enqueue {
                         const WeightedTerms terms = terms_of(m);
                         TermGradients gradients;
                         for (int j = 0; j < 3; ++j) {
                             gradients[j] = {.dsource = m.output({tokens, width}),
                                             .dcoefficient = j == 2 ? m.output(DType::f32, {tokens, 1})
                                                                    : m.output(DType::f32, {1}),
                                             .accumulate_source = false,
                                             .accumulate_coefficient = false};
                         }
                         const Tensor dy = m.input({tokens, width}), sum = m.input({tokens, width}),
                                      dresidual = m.input({tokens, width}), rstd = m.constant({tokens}, 1.0f);
                         return [=](Ops& ops, Stream& stream) {
                             ops.sum_norm_backward({.gradients = gradients,
                                                    .dy = dy,
                                                    .s = sum,
                                                    .terms = terms,
                                                    .rstd = rstd,
                                                    .dresidual = dresidual,
                                                    .accumulate = false,
                                                    .kind = NormKind::rmsnorm},
                                                   stream);
                         };
                     }});
}

// v ← v + gate_h·row: a value embedding, gated per head.
void add_value_gate(std::vector<Case>& cases, const ModelShape& s) {
    const int64_t tokens = s.tokens, width = s.width, heads = s.num_heads, length = s.sequence_length;
    cases.push_back(
        {"pointwise.recipe.value_gate_backward",
         "weighted_sum_backward",
         fmt::format("2x{}x{}", tokens, width),
         0,
         {},
         [=](CaseMemory& m) -> Enqueue {
             const Tensor dy = m.input({tokens, width}), row = m.input({tokens, width}),
                          drow = m.output({tokens, width}), gate = m.input(DType::f32, {tokens, heads}),
                          dgate = m.output(DType::f32, {tokens, heads});
             const WeightedTerms terms = {{{.source = row, .coefficient = gate}}};
             const TermGradients gradients = {{{.dsource = drow,
                                                .dcoefficient = dgate,
                                                .accumulate_source = false,
                                                .accumulate_coefficient = false}}};
             return [=](Ops& ops, Stream& stream) {
                 ops.weighted_sum_backward(
                     {.gradients = gradients, .dy = dy, .terms = terms, .sequence_length = length}, stream);
             };
         }});
}

// e_t + gate_t·e_{t−1}.
void add_smear(std::vector<Case>& cases, const ModelShape& s) {
    const int64_t tokens = s.tokens, width = s.width, length = s.sequence_length;
    cases.push_back(
        {"pointwise.recipe.smear_forward",
         "weighted_sum_forward",
         fmt::format("2x{}x{}", tokens, width),
         0,
         {},
         [=](CaseMemory& m) -> Enqueue {
             const Tensor y = m.output({tokens, width}), e = m.input({tokens, width});
             const WeightedTerms terms = {
                 {{.source = e},
                  {.source = e, .coefficient = m.input(DType::f32, {tokens, 1}), .shifted = true}}};
             return [=](Ops& ops, Stream& stream) {
                 ops.weighted_sum_forward({.y = y, .terms = terms, .sequence_length = length}, stream);
             };
         }});
    cases.push_back(
        {"pointwise.recipe.smear_backward",
         "weighted_sum_backward",
         fmt::format("2x{}x{}", tokens, width),
         0,
         {},
         [=](CaseMemory& m) -> Enqueue {
             const Tensor de = m.output({tokens, width}), dy = m.input({tokens, width}),
                          e = m.input({tokens, width});
             const WeightedTerms terms = {
                 {{.source = e},
                  {.source = e, .coefficient = m.input(DType::f32, {tokens, 1}), .shifted = true}}};
             const TermGradients gradients = {
                 {{.dsource = de, .accumulate_source = false, .accumulate_coefficient = false},
                  {.dsource = de,
                   .dcoefficient = m.output(DType::f32, {tokens, 1}),
                   .accumulate_source = true,
                   .accumulate_coefficient = false}}};
             return [=](Ops& ops, Stream& stream) {
                 ops.weighted_sum_backward(
                     {.gradients = gradients, .dy = dy, .terms = terms, .sequence_length = length}, stream);
             };
         }});
}

// One gate per head, from the first columns of a wider row. A row is counted by the sectors of these columns,
// the smallest unit of device memory.
void add_gate(std::vector<Case>& cases, const ModelShape& s) {
    const int64_t tokens = s.tokens, width = s.width, heads = s.num_heads;
    const std::string shape = fmt::format("{}x{}x{}", tokens, kGateInputs, heads);
    const auto first_columns = [=](CaseMemory& m) {
        const Tensor slice = m.uncounted_input(m.real(), {tokens, width}).column_slice(0, kGateInputs);
        constexpr int64_t kSector = op::Traffic::kSector;
        m.count_read(tokens * ((kGateInputs * size_of(m.real()) + kSector - 1) / kSector * kSector));
        return slice;
    };
    cases.push_back({"pointwise.recipe.narrow_linear_forward",
                     "narrow_linear_forward",
                     shape,
                     0,
                     {},
                     [=](CaseMemory& m) -> Enqueue {
                         const Tensor y = m.output(DType::f32, {tokens, heads}), x = first_columns(m),
                                      weight = m.input(DType::f32, {heads, kGateInputs});
                         return [=](Ops& ops, Stream& stream) {
                             ops.narrow_linear_forward({.y = y,
                                                        .x = x,
                                                        .weight = weight,
                                                        .scale = 1.0f,
                                                        .activation = GateActivation::two_sigmoid},
                                                       stream);
                         };
                     }});
    cases.push_back({"pointwise.recipe.narrow_linear_backward",
                     "narrow_linear_backward",
                     shape,
                     0,
                     {},
                     [=](CaseMemory& m) -> Enqueue {
                         const Tensor dx = m.output({tokens, kGateInputs}),
                                      dweight = m.output(DType::f32, {heads, kGateInputs}),
                                      dy = m.input(DType::f32, {tokens, heads}),
                                      y = m.input(DType::f32, {tokens, heads}), x = first_columns(m),
                                      weight = m.input(DType::f32, {heads, kGateInputs});
                         return [=](Ops& ops, Stream& stream) {
                             ops.narrow_linear_backward({.dx = dx,
                                                         .dweight = dweight,
                                                         .dy = dy,
                                                         .y = y,
                                                         .x = x,
                                                         .weight = weight,
                                                         .scale = 1.0f,
                                                         .activation = GateActivation::two_sigmoid,
                                                         .accumulate_x = false,
                                                         .accumulate = false},
                                                        stream);
                         };
                     }});
}

}  // namespace

std::vector<Case> combine_cases(const Shapes& shapes) {
    std::vector<Case> cases;
    add_sublayer(cases, shapes.recipe);
    add_normed_sublayer(cases, shapes.recipe);
    add_value_gate(cases, shapes.recipe);
    add_smear(cases, shapes.recipe);
    add_gate(cases, shapes.recipe);
    return cases;
}

}  // namespace speedrun::bench
