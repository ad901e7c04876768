#include "kernels/ops/optimizer.h"

#include <string>

namespace speedrun {

namespace {

// The master is f32 with a parameter of either dtype, or both are bf16.
void check_weights(const char* op, const Tensor& master, const Tensor& parameter) {
    const auto name = [&](const char* what) { return std::string(op) + " " + what; };
    const DType kept = master.dtype == DType::bf16 ? DType::bf16 : DType::f32;
    const DType dtype = kept == DType::bf16 || parameter.dtype == DType::bf16 ? DType::bf16 : DType::f32;
    expect(master, kept, {master.numel()}, name("master").c_str());
    expect(parameter, dtype, {master.numel()}, name("parameter").c_str());
}

}  // namespace

void op::AdamwStep::check() const {
    check_weights("adamw_step", master, parameter);
    expect(grad, DType::f32, {master.numel()}, "adamw_step grad");
    expect(grad_scale, DType::f32, {1}, "adamw_step grad_scale");
    expect(rates, DType::f32, {3}, "adamw_step rates");
    const DType moments = first_moment.dtype == DType::bf16 ? DType::bf16 : DType::f32;
    expect(first_moment, moments, {master.numel()}, "adamw_step first_moment");
    expect(second_moment, moments, {master.numel()}, "adamw_step second_moment");
}

void op::MuonMomentum::check() const {
    for (const Piece& piece : pieces) {
        const int64_t count = piece.momentum.numel();
        expect(piece.momentum, DType::f32, {count}, "muon momentum");
        expect(piece.grad, DType::f32, {count}, "muon grad");
        expect(piece.update, pieces.front().update.dtype, {count}, "muon update");
    }
    expect(grad_scale, DType::f32, {1}, "muon grad_scale");
    expect(mu, DType::f32, {1}, "muon mu");
}

Tensor op::PolarExpress::workspace_of(size_t batch) const {
    const int64_t first = workspace_size({x.begin(), x.begin() + static_cast<int64_t>(batch)});
    auto* const data = static_cast<char*>(workspace.data);
    return {data ? data + first * size_of(workspace.dtype) : nullptr,
            workspace.dtype,
            {workspace_size({x[batch]})}};
}

void op::PolarExpress::check() const {
    for (const Tensor& batch : x) {
        if (batch.rank != 3) throw_internal("polar_express: x must be [n,R,C], not {}", batch.describe());
        expect(batch, x.front().dtype, {batch.shape[0], batch.shape[1], batch.shape[2]}, "polar_express x");
    }
    if (!x.empty()) expect(workspace, x.front().dtype, {workspace_size(x)}, "polar_express workspace");
}

void op::NormuonScale::check() const {
    const Tensor& u = update;
    if (u.rank != 3) throw_internal("normuon_scale: update must be [n,R,C], not {}", u.describe());
    if (!u.contiguous()) throw_internal("normuon_scale: {} is not contiguous", u.describe());
    expect(second_moment, DType::f32, {u.shape[0], num_lines(lines, u.shape[1], u.shape[2])},
           "normuon second_moment");
    expect(grad_scale, DType::f32, {1}, "normuon grad_scale");
}

void op::MuonApply::check() const {
    for (const Piece& piece : pieces) {
        const Piece& first = pieces.front();
        const int64_t count = piece.master.numel();
        check_weights("muon_apply", piece.master, piece.parameter);
        expect(piece.master, first.master.dtype, {count}, "muon_apply master");
        expect(piece.parameter, first.parameter.dtype, {count}, "muon_apply parameter");
        expect(piece.update, first.update.dtype, {count}, "muon_apply update");
        expect(piece.rates, DType::f32, {2}, "muon_apply rates");
    }
    expect(grad_scale, DType::f32, {1}, "muon_apply grad_scale");
}

}  // namespace speedrun
