#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace speedrun {

namespace {

using cpu::Vec;

// q and k; from: the operands, absent: q and k themselves.
struct Vectors {
    Tensor q, k, from_q, from_k;
};

// Calls body(result, operand, head among the 2H of q and k, row) for every vector of q, then of k.
template <class Real, class Body>
void for_heads(const Vectors& vectors, const RotaryOptions& o, Body&& body) {
    const bool apart = vectors.from_q.present();
    cpu::parallel_for(vectors.q.rows(), [&](int64_t t) {
        for (int64_t h = 0; h < 2 * o.num_heads; ++h) {
            const Tensor& to = h < o.num_heads ? vectors.q : vectors.k;
            const Tensor& from = !apart ? to : h < o.num_heads ? vectors.from_q : vectors.from_k;
            const int64_t column = h % o.num_heads * o.head_dim;
            body(to.as<Real>() + t * to.row_stride + column, from.as<Real>() + t * from.row_stride + column,
                 h, t);
        }
    });
}

// Position of head h of a token in the tables; h counts the heads of q, then of k.
template <class Arguments>
int64_t position_of(const Arguments& a, int64_t t, int64_t h) {
    if (!a.options.rotate) return 0;
    const int64_t positions = a.position.rank == 2 ? a.position.cols() : 1;
    return a.position.template as<int32_t>()[t * positions + h % positions];
}

template <class Real>
void mix_values(const ValueMix& value) {
    const float cv = value.mix.coefficients.as<float>()[0], cz = value.mix.coefficients.as<float>()[1];
    cpu::parallel_for(value.v.rows(), [&](int64_t t) {
        const Real* v = value.v.as<Real>() + t * value.v.row_stride;
        const Real* z = value.mix.z.as<Real>() + t * value.mix.z.row_stride;
        Real* mixed = value.mixed.as<Real>() + t * value.mixed.row_stride;
        cpu::for_vectors(value.v.cols(), [&](int64_t i, auto width) {
            cpu::store(mixed + i, cv * cpu::load(v + i, width) + cz * cpu::load(z + i, width), width);
        });
    });
}

}  // namespace

void CpuOps::enqueue(const op::QkNormRotaryForward& a, Stream& stream) {
    cpu::submit(stream, "qk_norm_rotary_forward", [=] {
        const int64_t dim = a.options.head_dim, half = dim / 2;
        cpu::with_real(a.q.dtype, [&]<class Real>() {
            if (a.value.mixed.present()) mix_values<Real>(a.value);
            if (!a.options.normalize && !a.options.rotate) return;
            const Vectors vectors{a.q, a.k, a.from_q, a.from_k};
            for_heads<Real>(vectors, a.options, [&](Real* to, const Real* u, int64_t h, int64_t t) {
                float r = 1.0f;
                if (a.options.normalize) {
                    Vec squares{};
                    cpu::for_vectors(dim, [&](int64_t i, auto width) {
                        const Vec v = cpu::load(u + i, width);
                        squares = fma(v, v, squares);
                    });
                    r = 1.0f / std::sqrt(cpu::sum(squares) / static_cast<float>(dim) + a.options.epsilon);
                    a.rstd.as<float>()[t * a.rstd.row_stride + h] = r;
                }
                const int64_t p = position_of(a, t, h);
                const float* c = a.options.rotate ? a.cos.as<float>() + p * half : nullptr;
                const float* s = a.options.rotate ? a.sin.as<float>() + p * half : nullptr;
                cpu::for_vectors(half, [&](int64_t i, auto width) {
                    const Vec first = cpu::load(u + i, width) * r,
                              second = cpu::load(u + half + i, width) * r;
                    const Vec ci = c ? cpu::load(c + i, width) : Vec(1.0f);
                    const Vec si = s ? cpu::load(s + i, width) : Vec{};
                    cpu::store(to + i, first * ci - second * si, width);
                    cpu::store(to + half + i, first * si + second * ci, width);
                });
            });
        });
    });
}

void CpuOps::enqueue(const op::QkNormRotaryBackward& a, Stream& stream) {
    cpu::submit(stream, "qk_norm_rotary_backward", [=] {
        const int64_t dim = a.options.head_dim, half = dim / 2;
        cpu::with_real(a.q.dtype, [&]<class Real>() {
            const Vectors vectors{a.dq, a.dk, a.from_dq, a.from_dk};
            for_heads<Real>(vectors, a.options, [&](Real* to, const Real* d, int64_t h, int64_t t) {
                const Tensor& output = h < a.options.num_heads ? a.q : a.k;
                const Real* u = output.as<Real>() + t * output.row_stride + h % a.options.num_heads * dim;
                // Rotation preserves inner products, so Σ dû·û is computed from the rotated vectors.
                float r = 1.0f, dot = 0.0f;
                if (a.options.normalize) {
                    Vec dots{};
                    cpu::for_vectors(dim, [&](int64_t i, auto width) {
                        dots = fma(cpu::load(d + i, width), cpu::load(u + i, width), dots);
                    });
                    dot = cpu::sum(dots) / static_cast<float>(dim);
                    r = a.rstd.as<float>()[t * a.rstd.row_stride + h];
                }
                const int64_t p = position_of(a, t, h);
                const float* c = a.options.rotate ? a.cos.as<float>() + p * half : nullptr;
                const float* s = a.options.rotate ? a.sin.as<float>() + p * half : nullptr;
                cpu::for_vectors(half, [&](int64_t i, auto width) {
                    const Vec first = (cpu::load(d + i, width) - cpu::load(u + i, width) * dot) * r;
                    const Vec second =
                        (cpu::load(d + half + i, width) - cpu::load(u + half + i, width) * dot) * r;
                    const Vec ci = c ? cpu::load(c + i, width) : Vec(1.0f);
                    const Vec si = s ? cpu::load(s + i, width) : Vec{};
                    cpu::store(to + i, first * ci + second * si, width);
                    cpu::store(to + half + i, second * ci - first * si, width);
                });
            });
        });
    });
}

}  // namespace speedrun
