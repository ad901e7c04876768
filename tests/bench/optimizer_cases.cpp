// Optimizer steps at the sizes of the 124M model: AdamW and Lion over the embedding, Muon over a layer's
// matrices.
#include <fmt/format.h>

#include <algorithm>

#include "tests/bench/cases.h"

namespace speedrun::bench {

namespace {

// weights: bf16 weights have no copy.
void add_adamw(std::vector<Case>& cases, const ModelShape& s, const char* name, DType weights) {
    const int64_t count = s.padded_vocab * s.width;
    cases.push_back({name, "adamw_step", fmt::format("{}", count), 0, {}, [=](CaseMemory& m) -> Enqueue {
                         const Tensor master = m.inout(weights, {count});
                         const Tensor parameter = weights == DType::f32 ? m.output({count}) : master;
                         const Tensor first = m.inout(DType::f32, {count}),
                                      grad = m.input(DType::f32, {count}), one = m.constant({1}, 1.0f);
                         // Positive: it is the argument of a root. It is written too.
                         const Tensor second = m.constant({count}, 0.5f);
                         m.count_written(second.bytes());
                         m.check(second);
                         return [=](Ops& ops, Stream& stream) {
                             ops.adamw_step({.parameter = parameter,
                                             .master = master,
                                             .first_moment = first,
                                             .second_moment = second,
                                             .grad = grad,
                                             .grad_scale = one,
                                             .learning_rate = 1e-3f,
                                             .beta1 = 0.9f,
                                             .beta2 = 0.95f,
                                             .epsilon = 1e-8f,
                                             .weight_decay = 0.1f,
                                             .step = 10},
                                            stream);
                         };
                     }});
}

void add_lion(std::vector<Case>& cases, const ModelShape& s) {
    const int64_t count = s.padded_vocab * s.width;
    cases.push_back({"optimizer.lion_step.embedding",
                     "lion_step",
                     fmt::format("{}", count),
                     0,
                     {},
                     [=](CaseMemory& m) -> Enqueue {
                         const Tensor parameter = m.output({count}), master = m.inout(DType::f32, {count}),
                                      momentum = m.inout(DType::f32, {count}),
                                      grad = m.input(DType::f32, {count}), one = m.constant({1}, 1.0f);
                         return [=](Ops& ops, Stream& stream) {
                             ops.lion_step({.parameter = parameter,
                                            .master = master,
                                            .momentum = momentum,
                                            .grad = grad,
                                            .grad_scale = one,
                                            .learning_rate = 1e-4f,
                                            .beta1 = 0.9f,
                                            .beta2 = 0.99f,
                                            .weight_decay = 0.1f},
                                           stream);
                         };
                     }});
}

struct Matrices {
    const char* name;
    int64_t n, rows, cols;
};

void add_muon(std::vector<Case>& cases, const Matrices& x) {
    const int64_t n = x.n, rows = x.rows, cols = x.cols, count = n * rows * cols;
    const std::string shape = fmt::format("{} x {}x{}", n, rows, cols);
    const auto name = [&](const char* op) { return fmt::format("optimizer.{}.{}", op, x.name); };
    cases.push_back(
        {name("muon_momentum"), "muon_momentum", shape, 0, {}, [=](CaseMemory& m) -> Enqueue {
             const Tensor update = m.output({count}), momentum = m.inout(DType::f32, {count}),
                          grad = m.input(DType::f32, {count}), one = m.constant({1}, 1.0f);
             return [=](Ops& ops, Stream& stream) {
                 ops.muon_momentum(
                     {.update = update, .momentum = momentum, .grad = grad, .grad_scale = one, .mu = 0.95f},
                     stream);
             };
         }});
    for (const DType weights : {DType::f32, DType::bf16}) {
        const char* const what = weights == DType::f32 ? "muon_apply" : "muon_apply_bf16";
        cases.push_back({name(what), "muon_apply", shape, 0, {}, [=](CaseMemory& m) -> Enqueue {
                             const Tensor master = m.inout(weights, {count});
                             const Tensor parameter = weights == DType::f32 ? m.output({count}) : master;
                             const Tensor update = m.input({count}), one = m.constant({1}, 1.0f);
                             return [=](Ops& ops, Stream& stream) {
                                 ops.muon_apply({.parameter = parameter,
                                                 .master = master,
                                                 .update = update,
                                                 .grad_scale = one,
                                                 .learning_rate = 0.01f,
                                                 .weight_decay = 0.1f,
                                                 .cautious = true},
                                                stream);
                             };
                         }});
    }
    cases.push_back(
        {name("normuon_scale"), "normuon_scale", shape, 0, {}, [=](CaseMemory& m) -> Enqueue {
             const Tensor update = m.inout(m.real(), {n, rows, cols}), one = m.constant({1}, 1.0f);
             const Tensor second = m.constant({n, std::max(rows, cols)}, 0.5f);
             m.count_written(second.bytes());
             m.check(second);
             return [=](Ops& ops, Stream& stream) {
                 ops.normuon_scale(
                     {.update = update, .second_moment = second, .grad_scale = one, .beta2 = 0.95f}, stream);
             };
         }});
    // A symmetric matmul needs half of its elements.
    const auto symmetric = [&](int64_t side, int64_t depth) {
        return static_cast<double>(n) * static_cast<double>(side * (side + 1)) * static_cast<double>(depth);
    };
    const double gram = symmetric(rows, cols);
    cases.push_back({name("gram"), "gram", shape, gram, {}, [=](CaseMemory& m) -> Enqueue {
                         const Tensor a = m.output({n, rows, rows}), in = m.input({n, rows, cols});
                         return [=](Ops& ops, Stream& stream) { ops.gram({.a = a, .x = in}, stream); };
                     }});
    const int64_t side = std::min(rows, cols), depth = std::max(rows, cols);
    const double polar = 5 * (symmetric(side, depth) + symmetric(side, side) +
                              2.0 * static_cast<double>(n * side * side) * static_cast<double>(depth));
    cases.push_back({name("polar_express"), "polar_express", shape, polar, {}, [=](CaseMemory& m) -> Enqueue {
                         const Tensor in = m.inout(m.real(), {n, rows, cols});
                         const Tensor work =
                             m.workspace(m.real(), {op::PolarExpress::workspace_size(n, rows, cols)});
                         return [=](Ops& ops, Stream& stream) {
                             ops.polar_express({.x = in, .workspace = work}, stream);
                         };
                     }});
}

}  // namespace

std::vector<Case> optimizer_cases(const Shapes& shapes) {
    const ModelShape& s = shapes.recipe;
    std::vector<Case> cases;
    add_adamw(cases, s, "optimizer.adamw_step.embedding", DType::f32);
    add_adamw(cases, s, "optimizer.adamw_step.embedding_bf16", DType::bf16);
    add_lion(cases, s);
    add_muon(cases, {"attention", 4, s.width, s.width});
    add_muon(cases, {"mlp", 1, s.width, s.mlp_width});
    return cases;
}

}  // namespace speedrun::bench
