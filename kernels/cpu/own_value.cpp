#include <algorithm>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduction.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd.h"

namespace speedrun {

namespace {

using cpu::head_of;
using cpu::Vec;

int64_t heads_of(const Tensor& alpha) {
    return alpha.rank == 2 ? alpha.cols() : alpha.numel();
}

float tanh_of_alpha(const Tensor& alpha, int64_t t, int64_t head) {
    float lanes[cpu::kLanes];
    cpu::store(lanes, tanh(Vec(alpha.as<float>()[(alpha.rank == 2 ? t * alpha.row_stride : 0) + head])));
    return lanes[0];
}

template <class Real>
void forward_row(const op::ExcludeOwnValueForward& a, int64_t t) {
    const int64_t heads = heads_of(a.alpha), dim = a.y.cols() / heads;
    for (int64_t h = 0; h < heads; ++h) {
        const Real *o = head_of<Real>(a.o, t, h * dim), *v = head_of<Real>(a.v, t, h * dim);
        Real* y = head_of<Real>(a.y, t, h * dim);
        Vec products{}, squares{};
        cpu::for_vectors(dim, [&](int64_t i, auto width) {
            const Vec value = cpu::load(v + i, width);
            products = fma(cpu::load(o + i, width), value, products);
            squares = fma(value, value, squares);
        });
        const float share = tanh_of_alpha(a.alpha, t, h) * cpu::sum(products) /
                            std::max(cpu::sum(squares), op::ExcludeOwnValueForward::kMinSquare);
        cpu::for_vectors(dim, [&](int64_t i, auto width) {
            cpu::store(y + i, cpu::load(o + i, width) - share * cpu::load(v + i, width), width);
        });
    }
}

// Returns this token's contribution to dalpha.
template <class Real>
float backward_head(const op::ExcludeOwnValueBackward& a, int64_t t, int64_t h, int64_t dim) {
    const Real *dy = head_of<Real>(a.dy, t, h * dim), *o = head_of<Real>(a.o, t, h * dim),
               *v = head_of<Real>(a.v, t, h * dim);
    Real *d_o = head_of<Real>(a.d_o, t, h * dim), *dv = head_of<Real>(a.dv, t, h * dim);
    Vec products{}, gradients{}, squares{};
    cpu::for_vectors(dim, [&](int64_t i, auto width) {
        const Vec value = cpu::load(v + i, width);
        products = fma(cpu::load(o + i, width), value, products);
        gradients = fma(cpu::load(dy + i, width), value, gradients);
        squares = fma(value, value, squares);
    });
    const float factor = tanh_of_alpha(a.alpha, t, h), p = cpu::sum(products), q = cpu::sum(gradients),
                square = cpu::sum(squares), n = std::max(square, op::ExcludeOwnValueForward::kMinSquare);
    const float of_o = factor * q / n, of_dy = factor * p / n,
                of_v = square > op::ExcludeOwnValueForward::kMinSquare ? 2.0f * of_o * p / n : 0.0f;
    cpu::for_vectors(dim, [&](int64_t i, auto width) {
        const Vec g = cpu::load(dy + i, width), value = cpu::load(v + i, width);
        Vec sum = of_v * value - (of_o * cpu::load(o + i, width) + of_dy * g);
        if (a.accumulate_v) sum += cpu::load(dv + i, width);
        cpu::store(dv + i, sum, width);
        cpu::store(d_o + i, g - of_o * value, width);
    });
    return (factor * factor - 1.0f) * p * q / n;
}

// partial: f32 [kReductionChunks][H], for an alpha that all tokens share.
template <class Real>
void backward_rows(const op::ExcludeOwnValueBackward& a, cpu::Range rows, float* partial) {
    const int64_t heads = heads_of(a.alpha), dim = a.dy.cols() / heads;
    std::fill(partial, partial + heads, 0.0f);
    for (int64_t t = rows.begin; t < rows.end; ++t) {
        for (int64_t h = 0; h < heads; ++h) {
            const float term = backward_head<Real>(a, t, h, dim);
            if (a.alpha.rank != 2) {
                partial[h] += term;
                continue;
            }
            float& out = a.dalpha.as<float>()[t * a.dalpha.row_stride + h];
            out = a.accumulate_alpha ? out + term : term;
        }
    }
}

}  // namespace

void CpuOps::enqueue(const op::ExcludeOwnValueForward& a, Stream& stream) {
    cpu::submit(stream, "exclude_own_value_forward", [=] {
        cpu::with_real(a.y.dtype, [&]<class Real>() {
            cpu::parallel_for(a.y.rows(), [&](int64_t t) { forward_row<Real>(a, t); });
        });
    });
}

void CpuOps::enqueue(const op::ExcludeOwnValueBackward& a, Stream& stream) {
    const int64_t heads = heads_of(a.alpha);
    auto* partial =
        static_cast<float*>(workspace(stream, cpu::kReductionChunks * heads * int64_t{sizeof(float)}));
    cpu::submit(stream, "exclude_own_value_backward", [=] {
        cpu::with_real(a.dy.dtype, [&]<class Real>() {
            cpu::parallel_for(cpu::kReductionChunks, [&](int64_t chunk) {
                backward_rows<Real>(a, cpu::chunk_of(a.dy.rows(), chunk, cpu::kReductionChunks),
                                    partial + chunk * heads);
            });
        });
        if (a.alpha.rank != 2)
            cpu::add_chunks(a.dalpha.as<float>(), partial, heads, heads, a.accumulate_alpha);
    });
}

}  // namespace speedrun
