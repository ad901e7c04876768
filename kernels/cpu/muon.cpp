#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/ops/op_checks.h"
#include "kernels/ops/weight_types.h"

namespace speedrun {

using cpu::Vec;

namespace {

// Blocks of a flat array of `count` elements, in parallel: body(begin, size).
template <class Body>
void for_blocks(int64_t count, Body&& body) {
    cpu::parallel_for((count + cpu::kBlock - 1) / cpu::kBlock, [&](int64_t block) {
        const int64_t begin = block * cpu::kBlock;
        body(begin, std::min(cpu::kBlock, count - begin));
    });
}

// x /= 1.02·‖x‖ + epsilon, the sum taken over fixed chunks.
template <class Real>
void normalize(Real* x, int64_t count, float epsilon) {
    std::array<float, cpu::kReductionChunks> partial;
    cpu::parallel_for(cpu::kReductionChunks, [&](int64_t chunk) {
        const auto [begin, end] = cpu::chunk_of(count, chunk, cpu::kReductionChunks);
        Vec squares{};
        cpu::for_vectors(end - begin, [&, first = begin](int64_t i, auto width) {
            const Vec v = cpu::load(x + first + i, width);
            squares = fma(v, v, squares);
        });
        partial[chunk] = cpu::sum(squares);
    });
    float total = 0.0f;
    for (float value : partial) total += value;
    const float factor = 1.0f / (1.02f * std::sqrt(total) + epsilon);
    for_blocks(count, [&](int64_t begin, int64_t size) {
        cpu::for_vectors(size, [&](int64_t i, auto width) {
            cpu::store(x + begin + i, factor * cpu::load(x + begin + i, width), width);
        });
    });
}

Tensor matrix_of(Tensor batch, int64_t index) {
    const int64_t size = batch.shape[1] * batch.shape[2];
    char* data = batch.data ? static_cast<char*>(batch.data) + index * size * size_of(batch.dtype) : nullptr;
    return Tensor(data, batch.dtype, {batch.shape[1], batch.shape[2]});
}

}  // namespace

void CpuOps::muon_momentum(const op::MuonMomentum& a, Stream& stream) {
    const int64_t count = a.momentum.numel();
    check(a);
    cpu::submit(stream, "muon_momentum", [=] {
        const float factor = *a.grad_scale.as<float>();
        const float mu = a.mu;
        const bool finite = std::isfinite(factor);
        cpu::with_real(a.update.dtype, [&]<class Real>() {
            for_blocks(count, [&](int64_t begin, int64_t size) {
                Real* u = a.update.as<Real>() + begin;
                float* b = a.momentum.as<float>() + begin;
                const float* g = a.grad.as<float>() + begin;
                cpu::for_vectors(size, [&](int64_t i, auto width) {
                    if (!finite) return cpu::store(u + i, Vec{}, width);
                    const Vec fresh = (1.0f - mu) * factor * cpu::load(g + i, width);
                    const Vec average = mu * cpu::load(b + i, width) + fresh;
                    cpu::store(b + i, average, width);
                    cpu::store(u + i, a.nesterov ? fresh + mu * average : average, width);
                });
            });
        });
    });
}

void CpuOps::gram(const op::Gram& a, Stream& stream) {
    const Tensor x = a.x;
    if (x.rank != 3) throw_internal("gram: x must be [n,R,C], not {}", x.describe());
    expect(a.a, x.dtype, {x.shape[0], x.shape[1], x.shape[1]}, "gram a");
    for (int64_t i = 0; i < x.shape[0]; ++i) {
        product(matrix_of(a.a, i), matrix_of(x, i), matrix_of(x, i), Tensor{},
                {.transpose_b = true, .symmetric = true}, "gram", stream);
    }
}

void CpuOps::polar_express(const op::PolarExpress& call, Stream& stream) {
    const Tensor x = call.x, scratch = call.workspace;
    if (x.rank != 3) throw_internal("polar_express: x must be [n,R,C], not {}", x.describe());
    const int64_t rows = x.shape[1], cols = x.shape[2], side = std::min(rows, cols);
    expect(scratch, x.dtype, {op::PolarExpress::workspace_size(x.shape[0], rows, cols)},
           "polar_express workspace");
    const bool wide = rows <= cols;  // A = XXᵀ and X ← BX; otherwise A = XᵀX and X ← XB
    const auto part = [&](int64_t offset, int64_t r, int64_t c) {
        char* data = scratch.data ? static_cast<char*>(scratch.data) + offset * size_of(x.dtype) : nullptr;
        return Tensor(data, x.dtype, {r, c});
    };
    const Tensor a = part(0, side, side), b = part(side * side, side, side),
                 next = part(2 * side * side, rows, cols);

    for (int64_t index = 0; index < x.shape[0]; ++index) {
        Tensor from = matrix_of(x, index), to = next;
        cpu::submit(stream, "polar_normalize", [=] {
            cpu::with_real(from.dtype,
                           [&]<class Real>() { normalize(from.as<Real>(), rows * cols, call.epsilon); });
        });
        for (const PolarCoefficients& k : kPolarExpress) {
            product(a, from, from, Tensor{}, {.transpose_a = !wide, .transpose_b = wide, .symmetric = true},
                    "polar_gram", stream);
            product(b, a, a, Tensor{}, {.symmetric = true}, "polar_square", stream);
            cpu::submit(stream, "polar_polynomial", [=] {  // b ← k.b·A + k.c·A²
                cpu::with_real(a.dtype, [&]<class Real>() {
                    for_blocks(side * side, [&](int64_t begin, int64_t size) {
                        const Real* first = a.as<Real>() + begin;
                        Real* second = b.as<Real>() + begin;
                        cpu::for_vectors(size, [&](int64_t i, auto width) {
                            cpu::store(second + i,
                                       k.b * cpu::load(first + i, width) + k.c * cpu::load(second + i, width),
                                       width);
                        });
                    });
                });
            });
            product(to, wide ? b : from, wide ? from : b, Tensor{}, {.beta = k.a, .base = from},
                    "polar_update", stream);
            std::swap(from, to);
        }
        // Five iterations: the result is in the workspace.
        cpu::submit(stream, "polar_store", [=] {
            std::copy_n(static_cast<const char*>(from.data), from.bytes(), static_cast<char*>(to.data));
        });
    }
}

void CpuOps::muon_apply(const op::MuonApply& a, Stream& stream) {
    const int64_t count = a.master.numel();
    check(a);
    cpu::submit(stream, "muon_apply", [=] {
        if (!std::isfinite(*a.grad_scale.as<float>())) return;
        const float rate = a.learning_rate, decay = a.learning_rate * a.weight_decay;
        const bool separate = a.parameter.data != a.master.data;
        cpu::with_real(a.update.dtype, [&]<class Update>() {
            with_weights(a.master, a.parameter, [&]<class Master, class Real>() {
                for_blocks(count, [&](int64_t begin, int64_t size) {
                    Master* w = a.master.as<Master>() + begin;
                    Real* p = a.parameter.as<Real>() + begin;
                    const Update* u = a.update.as<Update>() + begin;
                    cpu::for_vectors(size, [&](int64_t i, auto width) {
                        const Vec wi = cpu::load(w + i, width), ui = cpu::load(u + i, width);
                        const Vec decayed = decay * wi;
                        const Vec shrink = a.cautious ? select(ui * wi >= 0.0f, decayed, 0.0f) : decayed;
                        const Vec result = wi - rate * ui - shrink;
                        cpu::store(w + i, result, width);
                        if (separate) cpu::store(p + i, result, width);
                    });
                });
            });
        });
    });
}

}  // namespace speedrun
