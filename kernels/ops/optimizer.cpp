#include "kernels/ops/optimizer.h"

#include <string>

namespace speedrun {

namespace {

// The master is f32 with a parameter of either dtype, or both are bf16.
void check_weights(const char* op, const Tensor& master, const Tensor& parameter) {
    const auto name = [&](const char* what) { return std::string(op) + " " + what; };
    const DType kept = master.dtype == DType::bf16 ? DType::bf16 : DType::f32;
    const DType real = kept == DType::bf16 || parameter.dtype == DType::bf16 ? DType::bf16 : DType::f32;
    expect(master, kept, {master.numel()}, name("master").c_str());
    expect(parameter, real, {master.numel()}, name("parameter").c_str());
}

}  // namespace

void op::AdamwStep::check() const {
    check_weights("adamw_step", master, parameter);
    expect(grad, DType::f32, {master.numel()}, "adamw_step grad");
    expect(grad_scale, DType::f32, {1}, "adamw_step grad_scale");
    const DType moments = first_moment.dtype == DType::bf16 ? DType::bf16 : DType::f32;
    expect(first_moment, moments, {master.numel()}, "adamw_step first_moment");
    expect(second_moment, moments, {master.numel()}, "adamw_step second_moment");
}

void op::MuonMomentum::check() const {
    const int64_t count = momentum.numel();
    expect(momentum, DType::f32, {count}, "muon momentum");
    expect(grad, DType::f32, {count}, "muon grad");
    expect(update, update.dtype, {count}, "muon update");
    expect(grad_scale, DType::f32, {1}, "muon grad_scale");
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
    check_weights("muon_apply", master, parameter);
    expect(grad_scale, DType::f32, {1}, "muon_apply grad_scale");
    expect(update, update.dtype, {master.numel()}, "muon_apply update");
}

}  // namespace speedrun
