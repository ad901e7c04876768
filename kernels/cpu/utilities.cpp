#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace speedrun {

using cpu::Vec;

namespace {

// Σ of term(vector) over a flat array, in fixed chunks added in order.
template <class Real, class Term>
float reduce(const Real* x, int64_t count, Term&& term) {
    std::array<float, cpu::kReductionChunks> partial;
    cpu::parallel_for(cpu::kReductionChunks, [&](int64_t chunk) {
        const auto [begin, end] = cpu::chunk_of(count, chunk, cpu::kReductionChunks);
        Vec sums{};
        cpu::for_vectors(end - begin, [&, first = begin](int64_t i, auto width) {
            sums += term(cpu::load(x + first + i, width));
        });
        partial[chunk] = cpu::sum(sums);
    });
    float total = 0.0f;
    for (float value : partial) total += value;
    return total;
}

// Compares magnitudes as integers: their bits have the order of the values, with NaN above infinity, so no
// maximum loses it.
template <class Real>
float largest_magnitude(const Real* x, int64_t count) {
    std::array<uint32_t, cpu::kReductionChunks> partial;
    cpu::parallel_for(cpu::kReductionChunks, [&](int64_t chunk) {
        const auto [begin, end] = cpu::chunk_of(count, chunk, cpu::kReductionChunks);
        Vec largest;
        cpu::for_vectors(end - begin, [&, first = begin](int64_t i, auto width) {
            largest = max_bits(largest, magnitude(cpu::load(x + first + i, width)));
        });
        float lanes[cpu::kLanes];
        cpu::store(lanes, largest);
        partial[chunk] = 0;
        for (int64_t lane = 0; lane < cpu::kLanes; ++lane)
            partial[chunk] = std::max(partial[chunk], std::bit_cast<uint32_t>(lanes[lane]));
    });
    return std::bit_cast<float>(*std::max_element(partial.begin(), partial.end()));
}

template <class Real>
float term_of(const Real* x, int64_t count, VectorNorm norm) {
    switch (norm) {
        case VectorNorm::one:
            return reduce(x, count, [](Vec v) { return magnitude(v); });
        case VectorNorm::two:
            return reduce(x, count, [](Vec v) { return v * v; });
        case VectorNorm::three:
            return reduce(x, count, [](Vec v) { return magnitude(v) * (v * v); });
        case VectorNorm::infinity:
            return largest_magnitude(x, count);
    }
    throw_internal("no such norm");
}

}  // namespace

void CpuOps::enqueue(const op::Fill& a, Stream& stream) {
    cpu::submit(stream, "fill", [=] {
        cpu::with_real(a.x.dtype, [&]<class Real>() {
            cpu::for_blocks(a.x.numel(), [&](int64_t begin, int64_t size) {
                std::fill_n(a.x.as<Real>() + begin, size, Real(a.value));
            });
        });
    });
}

void CpuOps::enqueue(const op::Scale& a, Stream& stream) {
    cpu::submit(stream, "scale", [=] {
        cpu::with_real(a.x.dtype, [&]<class Real>() {
            cpu::for_blocks(a.x.numel(), [&](int64_t begin, int64_t size) {
                Real* data = a.x.as<Real>() + begin;
                cpu::for_vectors(size, [&](int64_t i, auto width) {
                    cpu::store(data + i, a.factor * cpu::load(data + i, width), width);
                });
            });
        });
    });
}

void CpuOps::enqueue(const op::Cast& a, Stream& stream) {
    cpu::submit(stream, "cast", [=] {
        cpu::with_real(a.in.dtype, [&]<class From>() {
            cpu::with_real(a.out.dtype, [&]<class To>() {
                cpu::for_blocks(a.in.numel(), [&](int64_t begin, int64_t size) {
                    const From* from = a.in.as<From>() + begin;
                    To* to = a.out.as<To>() + begin;
                    cpu::for_vectors(size, [&](int64_t i, auto width) {
                        cpu::store(to + i, cpu::load(from + i, width), width);
                    });
                });
            });
        });
    });
}

void CpuOps::enqueue(const op::NormTerm& a, Stream& stream) {
    cpu::submit(stream, "norm_term", [a] {
        for (const op::NormTerm::Piece& piece : a.pieces)
            cpu::with_real(piece.x.dtype, [&]<class Real>() {
                *piece.out.as<float>() = term_of(piece.x.as<Real>(), piece.x.numel(), a.norm);
            });
    });
}

void CpuOps::enqueue(const op::Sum& a, Stream& stream) {
    cpu::submit(stream, "sum", [=] {
        const float total = reduce(a.x.as<float>(), a.x.numel(), [](Vec v) { return v; });
        *a.out.as<float>() = a.accumulate ? *a.out.as<float>() + total : total;
    });
}

void CpuOps::enqueue(const op::CountNonfinite& a, Stream& stream) {
    cpu::submit(stream, "count_nonfinite", [=] {
        cpu::with_real(a.x.dtype, [&]<class Real>() {
            *a.out.as<float>() = reduce(a.x.as<Real>(), a.x.numel(), [](Vec v) {
                return select(magnitude(v) <= std::numeric_limits<float>::max(), 0.0f,
                              1.0f);  // comparisons with NaN are false
            });
        });
    });
}

void CpuOps::enqueue(const op::ClipCoefficient& a, Stream& stream) {
    cpu::submit(stream, "clip_coefficient", [=] {
        const auto* const from = a.terms.as<float>();
        double total = 0.0;
        if (a.kind == VectorNorm::infinity) {
            total = largest_magnitude(from, a.terms.numel());
        } else {
            for (int64_t i = 0; i < a.terms.numel(); ++i) total += from[i];
        }
        if (a.kind == VectorNorm::two) total = std::sqrt(total);
        if (a.kind == VectorNorm::three) total = std::cbrt(total);
        const auto value = static_cast<float>(total);
        *a.norm.as<float>() = value;
        float factor = a.max_norm > 0.0f && value > a.max_norm ? a.max_norm / value : 1.0f;
        if (!std::isfinite(value)) factor = std::numeric_limits<float>::quiet_NaN();
        *a.coefficient.as<float>() = factor;
    });
}

}  // namespace speedrun
