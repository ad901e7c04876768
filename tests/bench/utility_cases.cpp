// Fill, scale, cast, sums, counts, random values; column sums. Over the elements of the embedding.
#include <fmt/format.h>

#include "tests/bench/cases.h"

namespace speedrun::bench {

std::vector<Case> utility_cases(const Shapes& shapes) {
    const int64_t count = shapes.recipe.padded_vocab * shapes.recipe.width;
    const int64_t tokens = shapes.gpt2.tokens, mlp = shapes.gpt2.mlp_width;
    const std::string flat = fmt::format("{}", count);
    std::vector<Case> cases;
    const auto add = [&](const char* name, const char* op, const std::string& shape,
                         std::function<Enqueue(CaseMemory&)> prepare) {
        cases.push_back({fmt::format("utility.{}", name), op, shape, 0, {}, std::move(prepare)});
    };
    add("fill", "fill", flat, [=](CaseMemory& m) -> Enqueue {
        const Tensor x = m.output({count});
        return [=](Ops& ops, Stream& stream) { ops.fill({.x = x, .value = 0.5f}, stream); };
    });
    add("scale", "scale", flat, [=](CaseMemory& m) -> Enqueue {
        const Tensor x = m.inout(m.real(), {count});
        return [=](Ops& ops, Stream& stream) { ops.scale({.x = x, .factor = -1.0f}, stream); };
    });
    add("cast_down", "cast", flat + " from f32", [=](CaseMemory& m) -> Enqueue {
        const Tensor out = m.output({count}), in = m.input(DType::f32, {count});
        return [=](Ops& ops, Stream& stream) { ops.cast({.out = out, .in = in}, stream); };
    });
    add("cast_up", "cast", flat + " to f32", [=](CaseMemory& m) -> Enqueue {
        const Tensor out = m.output(DType::f32, {count}), in = m.input({count});
        return [=](Ops& ops, Stream& stream) { ops.cast({.out = out, .in = in}, stream); };
    });
    const int64_t columns = shapes.recipe.width, rows = shapes.recipe.tokens;
    add("accumulate", "accumulate", fmt::format("{}x{}", rows, columns), [=](CaseMemory& m) -> Enqueue {
        const Tensor sum = m.inout(DType::f32, {rows, columns}), x = m.input({rows, columns});
        return [=](Ops& ops, Stream& stream) {
            ops.accumulate({.sum = sum, .x = x, .accumulate = true}, stream);
        };
    });
    const std::pair<const char*, VectorNorm> norms[] = {{"norm_term_1", VectorNorm::one},
                                                        {"norm_term_2", VectorNorm::two},
                                                        {"norm_term_3", VectorNorm::three},
                                                        {"norm_term_inf", VectorNorm::infinity}};
    for (const auto& [name, norm] : norms) {
        add(name, "norm_term", flat, [=, norm = norm](CaseMemory& m) -> Enqueue {
            const Tensor out = m.output(DType::f32, {1}), x = m.input({count});
            return
                [=](Ops& ops, Stream& stream) { ops.norm_term({.out = out, .x = x, .norm = norm}, stream); };
        });
    }
    add("sum", "sum", fmt::format("{}", tokens), [=](CaseMemory& m) -> Enqueue {
        const Tensor out = m.output(DType::f32, {1}), x = m.input(DType::f32, {tokens});
        return [=](Ops& ops, Stream& stream) { ops.sum({.out = out, .x = x, .accumulate = false}, stream); };
    });
    add("count_nonfinite", "count_nonfinite", flat, [=](CaseMemory& m) -> Enqueue {
        const Tensor out = m.output(DType::f32, {1}), x = m.input({count});
        return [=](Ops& ops, Stream& stream) { ops.count_nonfinite({.out = out, .x = x}, stream); };
    });
    add("clip_coefficient", "clip_coefficient", "150", [=](CaseMemory& m) -> Enqueue {
        const Tensor coefficient = m.output(DType::f32, {1}), norm = m.output(DType::f32, {1}),
                     terms = m.constant({150}, 0.25f);
        return [=](Ops& ops, Stream& stream) {
            ops.clip_coefficient({.coefficient = coefficient,
                                  .norm = norm,
                                  .terms = terms,
                                  .max_norm = 1.0f,
                                  .kind = VectorNorm::two},
                                 stream);
        };
    });
    add("random_normal", "random_normal", flat, [=](CaseMemory& m) -> Enqueue {
        const Tensor x = m.output(DType::f32, {count});
        return [=](Ops& ops, Stream& stream) {
            ops.random_normal({.x = x, .seed = 1, .sequence = 2, .offset = 0, .deviation = 0.02f}, stream);
        };
    });
    add("random_uniform", "random_uniform", flat, [=](CaseMemory& m) -> Enqueue {
        const Tensor x = m.output(DType::f32, {count});
        return [=](Ops& ops, Stream& stream) {
            ops.random_uniform({.x = x, .seed = 1, .sequence = 2, .offset = 0, .bound = 0.02f}, stream);
        };
    });
    add("column_sum", "column_sum", fmt::format("{}x{}", tokens, mlp), [=](CaseMemory& m) -> Enqueue {
        const Tensor out = m.output(DType::f32, {mlp}), x = m.input({tokens, mlp});
        return [=](Ops& ops, Stream& stream) {
            ops.column_sum({.out = out, .x = x, .accumulate = false}, stream);
        };
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
