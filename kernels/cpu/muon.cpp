#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/ops/weight_types.h"

namespace speedrun {

using cpu::Vec;

void CpuOps::enqueue(const op::MuonMomentum& a, Stream& stream) {
    cpu::submit(stream, "muon_momentum", [a] {
        const float factor = *a.grad_scale.as<float>(), mu = *a.mu.as<float>();
        const bool finite = std::isfinite(factor);
        for (const op::MuonMomentum::Piece& piece : a.pieces) {
            cpu::with_real(piece.update.dtype, [&]<class Real>() {
                cpu::for_blocks(piece.momentum.numel(), [&](int64_t begin, int64_t size) {
                    Real* u = piece.update.as<Real>() + begin;
                    float* b = piece.momentum.as<float>() + begin;
                    const float* g = piece.grad.as<float>() + begin;
                    cpu::for_vectors(size, [&](int64_t i, auto width) {
                        if (!finite) return cpu::store(u + i, Vec{}, width);
                        const Vec fresh = (1.0f - mu) * factor * cpu::load(g + i, width);
                        const Vec average = mu * cpu::load(b + i, width) + fresh;
                        cpu::store(b + i, average, width);
                        cpu::store(u + i, a.nesterov ? fresh + mu * average : average, width);
                    });
                });
            });
        }
    });
}

namespace {

void apply_to(const op::MuonApply::Piece& a, bool cautious) {
    const float rate = a.rates.as<float>()[0], decay = a.rates.as<float>()[1];
    const bool separate = a.parameter.data != a.master.data;
    cpu::with_real(a.update.dtype, [&]<class Update>() {
        with_weights(a.master, a.parameter, [&]<class Master, class Real>() {
            cpu::for_blocks(a.master.numel(), [&](int64_t begin, int64_t size) {
                Master* w = a.master.as<Master>() + begin;
                Real* p = a.parameter.as<Real>() + begin;
                const Update* u = a.update.as<Update>() + begin;
                cpu::for_vectors(size, [&](int64_t i, auto width) {
                    const Vec wi = cpu::load(w + i, width), ui = cpu::load(u + i, width);
                    const Vec decayed = decay * wi;
                    const Vec shrink = cautious ? select(ui * wi >= 0.0f, decayed, 0.0f) : decayed;
                    const Vec result = wi - rate * ui - shrink;
                    cpu::store(w + i, result, width);
                    if (separate) cpu::store(p + i, result, width);
                });
            });
        });
    });
}

}  // namespace

void CpuOps::enqueue(const op::MuonApply& a, Stream& stream) {
    cpu::submit(stream, "muon_apply", [a] {
        if (!std::isfinite(*a.grad_scale.as<float>())) return;
        for (const op::MuonApply::Piece& piece : a.pieces) apply_to(piece, a.cautious);
    });
}

}  // namespace speedrun
