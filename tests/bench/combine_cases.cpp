// Weighted sums and gates at the shapes of the newest community recipe.
#include <fmt/format.h>

#include "tests/bench/cases.h"

namespace speedrun::bench {

namespace {

constexpr int64_t kGateInputs = 12;  // the first columns of a row, which gates read

// x ← c₀·x + c₁·a + g·x₀: the end of a sublayer, with two scalars and an injection gated per token. The gate
// is a column of a wider tensor. With two terms there is no injection.
struct Sublayer {
    int64_t tokens, width;
    int count = 3;

    WeightedTerms terms(CaseMemory& m) const {
        WeightedTerms all;
        for (int j = 0; j < count; ++j)
            all[j] = {.source = m.input({tokens, width}),
                      .coefficient = j == 2 ? m.input(DType::f32, {tokens, 1}) : m.constant({1}, 0.5f)};
        return all;
    }
    TermGradients gradients(CaseMemory& m) const {
        TermGradients all;
        for (int j = 0; j < count; ++j)
            all[j] = {.dsource = m.output({tokens, width}),
                      .dcoefficient = j == 2 ? m.output(DType::f32, {tokens, 1}) : m.output(DType::f32, {1}),
                      .accumulate_source = false,
                      .accumulate_coefficient = false};
        return all;
    }
};

void add_sublayer(std::vector<Case>& cases, const ModelShape& s) {
    const int64_t tokens = s.tokens, width = s.width, length = s.sequence_length;
    const std::string prefix = "pointwise.recipe.", shape = fmt::format("3x{}x{}", tokens, width);
    const Sublayer end{tokens, width};
    add_case(cases, {prefix + "weighted_sum_forward", shape}, [=](CaseMemory& m) {
        return op::WeightedSumForward{
            .y = m.output({tokens, width}), .terms = end.terms(m), .sequence_length = length};
    });
    add_case(cases, {prefix + "weighted_sum_backward", shape}, [=](CaseMemory& m) {
        return op::WeightedSumBackward{.gradients = end.gradients(m),
                                       .dy = m.input({tokens, width}),
                                       .terms = end.terms(m),
                                       .sequence_length = length};
    });
}

// Weighted sums with the norm that follows: the end of a sublayer, and the mix of the stream, itself a sum, with the
// first embedding.
void add_sum_norm(std::vector<Case>& cases, const ModelShape& s, int terms) {
    const int64_t tokens = s.tokens, width = s.width, length = s.sequence_length;
    const Sublayer end{tokens, width, terms};
    const std::string prefix = fmt::format("pointwise.recipe.{}_norm_", terms == 2 ? "mix" : "sum"),
                      shape = fmt::format("{}x{}x{}", terms, tokens, width);
    add_case(cases, {prefix + "forward", shape}, [=](CaseMemory& m) {
        op::SumNormForward a{.y = m.output({tokens, width}),
                             .sum = m.output({tokens, width}),
                             .rstd = m.output(DType::f32, {tokens}),
                             .terms = terms == 2 ? WeightedTerms() : end.terms(m),
                             .sequence_length = length,
                             .kind = NormKind::rmsnorm};
        if (terms > 2) return a;
        a.x = m.input({tokens, width});
        a.delta = m.input({tokens, width});
        for (int j = 0; j < 2; ++j)
            a.terms[j] = {.source = j == 0 ? m.output({tokens, width}) : m.input({tokens, width}),
                          .coefficient = m.constant({1}, 0.5f)};
        return a;
    });
    add_case(cases, {prefix + "backward", shape}, [=](CaseMemory& m) {
        return op::SumNormBackward{.gradients = end.gradients(m),
                                   .dy = m.input({tokens, width}),
                                   .s = m.input({tokens, width}),
                                   .terms = end.terms(m),
                                   .rstd = m.constant({tokens}, 1.0f),
                                   .dresidual = m.input({tokens, width}),
                                   .accumulate = false,
                                   .kind = NormKind::rmsnorm};
    });
}

// Gradients of two sources that five sublayers share, each with gates per token.
void add_shared_sources(std::vector<Case>& cases, const ModelShape& s) {
    const int64_t tokens = s.tokens, width = s.width;
    constexpr int kSums = 5;
    add_case(cases,
             {"pointwise.recipe.shared_sources_backward", fmt::format("{}x{}x{}", kSums, tokens, width)},
             [=](CaseMemory& m) {
                 op::SharedSourcesBackward a{.sources = {}, .sums = {}};
                 for (SharedSource& shared : a.sources)
                     shared = {m.input({tokens, width}), m.output({tokens, width}), false};
                 for (int l = 0; l < kSums; ++l) {
                     a.sums[l].dy = m.input({tokens, width});
                     for (SharedTerm& term : a.sums[l].terms)
                         term = {m.input(DType::f32, {tokens, 1}), m.output(DType::f32, {tokens, 1})};
                 }
                 return a;
             });
}

// v ← v + gate_h·row: a value embedding, gated per head.
void add_value_gate(std::vector<Case>& cases, const ModelShape& s) {
    const int64_t tokens = s.tokens, width = s.width, heads = s.num_heads, length = s.sequence_length;
    add_case(cases, {"pointwise.recipe.value_gate_backward", fmt::format("2x{}x{}", tokens, width)},
             [=](CaseMemory& m) {
                 return op::WeightedSumBackward{
                     .gradients = {{{.dsource = m.output({tokens, width}),
                                     .dcoefficient = m.output(DType::f32, {tokens, heads}),
                                     .accumulate_source = false,
                                     .accumulate_coefficient = false}}},
                     .dy = m.input({tokens, width}),
                     .terms = {{{.source = m.input({tokens, width}),
                                 .coefficient = m.input(DType::f32, {tokens, heads})}}},
                     .sequence_length = length};
             });
}

// e_t + gate_t·e_{t−1}.
void add_smear(std::vector<Case>& cases, const ModelShape& s) {
    const int64_t tokens = s.tokens, width = s.width, length = s.sequence_length;
    const std::string shape = fmt::format("2x{}x{}", tokens, width);
    const auto terms_of = [=](CaseMemory& m) {
        const Tensor e = m.input({tokens, width});
        return WeightedTerms{
            {{.source = e}, {.source = e, .coefficient = m.input(DType::f32, {tokens, 1}), .shifted = true}}};
    };
    add_case(cases, {"pointwise.recipe.smear_forward", shape}, [=](CaseMemory& m) {
        return op::WeightedSumForward{
            .y = m.output({tokens, width}), .terms = terms_of(m), .sequence_length = length};
    });
    add_case(cases, {"pointwise.recipe.smear_backward", shape}, [=](CaseMemory& m) {
        const Tensor de = m.output({tokens, width});
        const TermGradient token{.dsource = de, .accumulate_source = false, .accumulate_coefficient = false},
            previous{.dsource = de,
                     .dcoefficient = m.output(DType::f32, {tokens, 1}),
                     .accumulate_source = true,
                     .accumulate_coefficient = false};
        return op::WeightedSumBackward{.gradients = {{token, previous}},
                                       .dy = m.input({tokens, width}),
                                       .terms = terms_of(m),
                                       .sequence_length = length};
    });
}

// One gate per head, from the first columns of a wider row. A row is counted by the sectors of these columns,
// the smallest unit of device memory.
void add_gate(std::vector<Case>& cases, const ModelShape& s) {
    const int64_t tokens = s.tokens, width = s.width, heads = s.num_heads;
    const std::string shape = fmt::format("{}x{}x{}", tokens, kGateInputs, heads);
    const auto first_columns = [=](CaseMemory& m) {
        const Tensor slice =
            m.uncounted_input(m.compute_dtype(), {tokens, width}).column_slice(0, kGateInputs);
        constexpr int64_t kSector = op::Traffic::kSector;
        m.count_read(tokens * ((kGateInputs * size_of(m.compute_dtype()) + kSector - 1) / kSector * kSector));
        return slice;
    };
    add_case(cases, {"pointwise.recipe.narrow_linear_forward", shape}, [=](CaseMemory& m) {
        return op::NarrowLinearForward{.y = m.output(DType::f32, {tokens, heads}),
                                       .x = first_columns(m),
                                       .weight = m.input(DType::f32, {heads, kGateInputs}),
                                       .scale = 1.0f,
                                       .activation = GateActivation::two_sigmoid};
    });
    add_case(cases, {"pointwise.recipe.narrow_linear_backward", shape}, [=](CaseMemory& m) {
        return op::NarrowLinearBackward{.dx = m.output({tokens, kGateInputs}),
                                        .dweight = m.output(DType::f32, {heads, kGateInputs}),
                                        .dy = m.input(DType::f32, {tokens, heads}),
                                        .y = m.input(DType::f32, {tokens, heads}),
                                        .x = first_columns(m),
                                        .weight = m.input(DType::f32, {heads, kGateInputs}),
                                        .scale = 1.0f,
                                        .activation = GateActivation::two_sigmoid,
                                        .accumulate_x = false,
                                        .accumulate = false};
    });
}

}  // namespace

std::vector<Case> combine_cases(const Shapes& shapes) {
    std::vector<Case> cases;
    add_sublayer(cases, shapes.recipe);
    for (const int terms : {2, 3}) add_sum_norm(cases, shapes.recipe, terms);
    add_shared_sources(cases, shapes.recipe);
    add_value_gate(cases, shapes.recipe);
    add_smear(cases, shapes.recipe);
    add_gate(cases, shapes.recipe);
    return cases;
}

}  // namespace speedrun::bench
