// Optimizer steps at the sizes of the 124M model: AdamW over the embedding, Muon over a layer's
// matrices.
#include <fmt/format.h>

#include <algorithm>

#include "tests/bench/cases.h"

namespace speedrun::bench {

namespace {

// Arguments of a square root, positive; read and written.
Tensor second_moment(CaseMemory& m, CaseMemory::Dims dims) {
    const Tensor second = m.constant(dims, 0.5f);
    m.count_written(second.bytes());
    m.check(second);
    return second;
}

// Weights of this type; bf16 weights have no copy.
struct Weights {
    Tensor master, parameter;

    Weights(CaseMemory& m, DType dtype, int64_t count)
        : master(m.inout(dtype, {count})), parameter(dtype == DType::f32 ? m.output({count}) : master) {}
};

void add_elementwise_steps(std::vector<Case>& cases, const ModelShape& s) {
    const int64_t count = s.padded_vocab * s.width;
    const std::string shape = fmt::format("{}", count);
    for (const DType dtype : {DType::f32, DType::bf16}) {
        const char* const suffix = dtype == DType::f32 ? "" : "_bf16";
        add_case(cases, {fmt::format("optimizer.adamw_step.embedding{}", suffix), shape}, [=](CaseMemory& m) {
            const Weights weights(m, dtype, count);
            return op::AdamwStep{.parameter = weights.parameter,
                                 .master = weights.master,
                                 .first_moment = m.inout(DType::f32, {count}),
                                 .second_moment = second_moment(m, {count}),
                                 .grad = m.input(DType::f32, {count}),
                                 .grad_scale = m.constant({1}, 1.0f),
                                 .rates = m.constant({3}, 1e-3f),
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f,
                                 .epsilon = 1e-8f};
        });
    }
}

struct Matrices {
    const char* name;
    int64_t n, rows, cols;
};

void add_muon(std::vector<Case>& cases, const Matrices& x) {
    const int64_t n = x.n, rows = x.rows, cols = x.cols, count = n * rows * cols;
    const std::string shape = fmt::format("{} x {}x{}", n, rows, cols);
    const auto text = [&](const char* op, double flops = 0) {
        return CaseText{fmt::format("optimizer.{}.{}", op, x.name), shape, flops};
    };
    add_case(cases, text("muon_momentum"), [=](CaseMemory& m) {
        return op::MuonMomentum{.pieces = {{.update = m.output({count}),
                                            .momentum = m.inout(DType::f32, {count}),
                                            .grad = m.input(DType::f32, {count})}},
                                .grad_scale = m.constant({1}, 1.0f),
                                .mu = m.constant({1}, 0.95f)};
    });
    for (const DType dtype : {DType::f32, DType::bf16}) {
        add_case(cases, text(dtype == DType::f32 ? "muon_apply" : "muon_apply_bf16"), [=](CaseMemory& m) {
            const Weights weights(m, dtype, count);
            return op::MuonApply{.pieces = {{.parameter = weights.parameter,
                                             .master = weights.master,
                                             .update = m.input({count}),
                                             .rates = m.constant({2}, 0.01f)}},
                                 .grad_scale = m.constant({1}, 1.0f),
                                 .cautious = true};
        });
    }
    add_case(cases, text("normuon_scale"), [=](CaseMemory& m) {
        return op::NormuonScale{.update = m.inout(m.compute_dtype(), {n, rows, cols}),
                                .second_moment = second_moment(m, {n, std::max(rows, cols)}),
                                .grad_scale = m.constant({1}, 1.0f),
                                .beta2 = 0.95f};
    });
    // A symmetric matmul needs half of its elements.
    const auto symmetric = [&](int64_t side, int64_t depth) {
        return static_cast<double>(n) * static_cast<double>(side * (side + 1)) * static_cast<double>(depth);
    };
    const int64_t side = std::min(rows, cols), depth = std::max(rows, cols);
    const double polar = 5 * (symmetric(side, depth) + symmetric(side, side) +
                              2.0 * static_cast<double>(n * side * side) * static_cast<double>(depth));
    add_case(cases, text("polar_express", polar), [=](CaseMemory& m) {
        return op::PolarExpress{
            .x = {m.inout(m.compute_dtype(), {n, rows, cols})},
            .workspace = m.workspace(m.compute_dtype(), {op::PolarExpress::workspace_size(n, rows, cols)})};
    });
}

}  // namespace

std::vector<Case> optimizer_cases(const Shapes& shapes) {
    const ModelShape& s = shapes.recipe;
    std::vector<Case> cases;
    add_elementwise_steps(cases, s);
    add_muon(cases, {"attention", 4, s.width, s.width});
    add_muon(cases, {"mlp", 1, s.width, s.mlp_width});
    return cases;
}

}  // namespace speedrun::bench
