// Fill, scale, cast, sums, counts, random values; column sums. Over the elements of the embedding.
#include <fmt/format.h>

#include "tests/bench/cases.h"

namespace speedrun::bench {

std::vector<Case> utility_cases(const Shapes& shapes) {
    const int64_t count = shapes.recipe.padded_vocab * shapes.recipe.width;
    const int64_t tokens = shapes.gpt2.tokens, mlp = shapes.gpt2.mlp_width;
    const std::string flat = fmt::format("{}", count);
    std::vector<Case> cases;
    const auto add = [&](const char* name, const std::string& shape, auto prepare) {
        add_case(cases, {fmt::format("utility.{}", name), shape}, prepare);
    };
    add("fill", flat, [=](CaseMemory& m) { return op::Fill{.x = m.output({count}), .value = 0.5f}; });
    add("scale", flat,
        [=](CaseMemory& m) { return op::Scale{.x = m.inout(m.compute_dtype(), {count}), .factor = -1.0f}; });
    add("cast_down", flat + " from f32", [=](CaseMemory& m) {
        return op::Cast{.out = m.output({count}), .in = m.input(DType::f32, {count})};
    });
    add("cast_up", flat + " to f32", [=](CaseMemory& m) {
        return op::Cast{.out = m.output(DType::f32, {count}), .in = m.input({count})};
    });
    const std::pair<const char*, VectorNorm> norms[] = {{"norm_term_1", VectorNorm::one},
                                                        {"norm_term_2", VectorNorm::two},
                                                        {"norm_term_3", VectorNorm::three},
                                                        {"norm_term_inf", VectorNorm::infinity}};
    for (const auto& [name, norm] : norms) {
        add(name, flat, [=, norm = norm](CaseMemory& m) {
            return op::NormTerm{.pieces = {{.out = m.output(DType::f32, {1}), .x = m.input({count})}},
                                .norm = norm};
        });
    }
    add("sum", fmt::format("{}", tokens), [=](CaseMemory& m) {
        return op::Sum{
            .out = m.output(DType::f32, {1}), .x = m.input(DType::f32, {tokens}), .accumulate = false};
    });
    add("count_nonfinite", flat, [=](CaseMemory& m) {
        return op::CountNonfinite{.out = m.output(DType::f32, {1}), .x = m.input({count})};
    });
    add("clip_coefficient", "150", [=](CaseMemory& m) {
        return op::ClipCoefficient{.coefficient = m.output(DType::f32, {1}),
                                   .norm = m.output(DType::f32, {1}),
                                   .terms = m.constant({150}, 0.25f),
                                   .max_norm = 1.0f,
                                   .kind = VectorNorm::two};
    });
    add("random_normal", flat, [=](CaseMemory& m) {
        return op::RandomNormal{
            .x = m.output(DType::f32, {count}), .seed = 1, .sequence = 2, .offset = 0, .deviation = 0.02f};
    });
    add("random_uniform", flat, [=](CaseMemory& m) {
        return op::RandomUniform{
            .x = m.output(DType::f32, {count}), .seed = 1, .sequence = 2, .offset = 0, .bound = 0.02f};
    });
    add("column_sum", fmt::format("{}x{}", tokens, mlp), [=](CaseMemory& m) {
        return op::ColumnSum{
            .out = m.output(DType::f32, {mlp}), .x = m.input({tokens, mlp}), .accumulate = false};
    });
    return cases;
}

std::vector<Case> all_cases(const Shapes& shapes) {
    std::vector<Case> cases;
    for (auto* make : {product_cases, attention_cases, embedding_cases, pointwise_cases, combine_cases,
                       optimizer_cases, utility_cases}) {
        for (Case& c : make(shapes)) cases.push_back(std::move(c));
    }
    return cases;
}

}  // namespace speedrun::bench
