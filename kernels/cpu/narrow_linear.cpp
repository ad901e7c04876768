#include <algorithm>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/reduction.h"
#include "kernels/cpu/simd.h"

namespace speedrun {

namespace {

using cpu::Vec;

Vec activated(Vec z, GateActivation activation) {
    switch (activation) {
        case GateActivation::sigmoid:
            return 1.0f / (1.0f + cpu::exp(0.0f - z));
        case GateActivation::two_sigmoid:
            return 2.0f / (1.0f + cpu::exp(0.0f - z));
        case GateActivation::tanh:
            return cpu::tanh(z);
        case GateActivation::identity:
            break;
    }
    return z;
}

// Derivative of the activation from its value y.
Vec derivative(Vec y, GateActivation activation) {
    switch (activation) {
        case GateActivation::sigmoid:
            return y * (1.0f - y);
        case GateActivation::two_sigmoid:
            return y * (1.0f - 0.5f * y);
        case GateActivation::tanh:
            return (1.0f - y) * (1.0f + y);
        case GateActivation::identity:
            break;
    }
    return 1.0f;
}

template <class Body>
void with_weight(DType weight, DType input_dtype, Body&& body) {
    cpu::with_real(input_dtype, [&]<class Real>() {
        if (weight == DType::f32) return body.template operator()<float, Real>();
        body.template operator()<Real, Real>();
    });
}

constexpr int64_t kRow = kMaxNarrow;  // floats per row of the scratch matrix, padding is 0
constexpr int64_t kMatrix = kRow * kRow;

// W in f32: matrix[k·kRow + n] if transposed, otherwise matrix[n·kRow + k].
template <class Weight>
void unpack(float* matrix, const Tensor& weight, bool transpose) {
    const int64_t outputs = weight.rows(), inputs = weight.cols();
    std::fill(matrix, matrix + kMatrix, 0.0f);
    for (int64_t n = 0; n < outputs; ++n) {
        for (int64_t k = 0; k < inputs; ++k)
            matrix[transpose ? k * kRow + n : n * kRow + k] =
                static_cast<float>(weight.as<Weight>()[n * inputs + k]);
    }
}

template <class Real>
void unpack_row(float* row, const Real* from, int64_t count) {
    cpu::for_vectors(count, [&](int64_t i, auto width) { cpu::store(row + i, cpu::load(from + i, width)); });
}

constexpr int64_t kPartial = kMatrix + kRow;  // f32 partial sums of a chunk of rows: dW, db

template <class Real>
void backward_rows(const op::NarrowLinearBackward& a, cpu::Range rows, const float* weight, float* partial) {
    const int64_t outputs = a.y.cols(), inputs = a.x.cols();
    std::fill(partial, partial + kPartial, 0.0f);
    float* const bias_sums = partial + kMatrix;
    alignas(64) float x[kRow], dz[kRow];
    for (int64_t t = rows.begin; t < rows.end; ++t) {
        const float* dy = a.dy.as<float>() + t * a.dy.row_stride;
        const float* y = a.y.as<float>() + t * a.y.row_stride;
        cpu::for_vectors(outputs, [&](int64_t n, auto width) {
            const Vec d =
                a.scale * (cpu::load(dy + n, width) * derivative(cpu::load(y + n, width), a.activation));
            cpu::store(dz + n, d);
            cpu::store(bias_sums + n, cpu::load(bias_sums + n) + d);
        });
        if (a.dweight.present()) {
            unpack_row(x, a.x.as<Real>() + t * a.x.row_stride, inputs);
            for (int64_t n = 0; n < outputs; ++n) {
                float* const sums = partial + n * kRow;
                for (int64_t k = 0; k < inputs; k += cpu::kLanes)
                    cpu::store(sums + k, fma(dz[n], cpu::load(x + k), cpu::load(sums + k)));
            }
        }
        if (!a.dx.present()) continue;
        Real* dx = a.dx.as<Real>() + t * a.dx.row_stride;
        cpu::for_vectors(inputs, [&](int64_t k, auto width) {
            Vec sum{};
            for (int64_t n = 0; n < outputs; ++n) sum = fma(dz[n], cpu::load(weight + n * kRow + k), sum);
            if (a.accumulate_x) sum += cpu::load(dx + k, width);
            cpu::store(dx + k, sum, width);
        });
    }
}

void run(const op::NarrowLinearBackward& a, float* scratch) {
    float *const weight = scratch, *const partial = scratch + kMatrix;
    with_weight(a.weight.dtype, a.x.dtype, [&]<class Weight, class Real>() {
        if (a.dx.present()) unpack<Weight>(weight, a.weight, false);
        cpu::parallel_for(cpu::kReductionChunks, [&](int64_t chunk) {
            backward_rows<Real>(a, cpu::chunk_of(a.x.rows(), chunk, cpu::kReductionChunks), weight,
                                partial + chunk * kPartial);
        });
    });
    const int64_t outputs = a.y.cols(), inputs = a.x.cols();
    for (int64_t n = 0; n < outputs && a.dweight.present(); ++n)
        cpu::add_chunks(a.dweight.as<float>() + n * inputs, partial + n * kRow, kPartial, inputs,
                        a.accumulate);
    if (a.dbias.present())
        cpu::add_chunks(a.dbias.as<float>(), partial + kMatrix, kPartial, outputs, a.accumulate);
}

}  // namespace

void CpuOps::enqueue(const op::NarrowLinearForward& a, Stream& stream) {
    auto* weight = static_cast<float*>(workspace(stream, kMatrix * int64_t{sizeof(float)}));
    cpu::submit(stream, "narrow_linear_forward", [=] {
        const int64_t outputs = a.y.cols(), inputs = a.x.cols();
        const float* bias = a.bias.present() ? a.bias.as<float>() : nullptr;
        with_weight(a.weight.dtype, a.x.dtype, [&]<class Weight, class Real>() {
            unpack<Weight>(weight, a.weight, true);
            cpu::parallel_for(a.x.rows(), [&](int64_t t) {
                alignas(64) float x[kRow];
                unpack_row(x, a.x.as<Real>() + t * a.x.row_stride, inputs);
                float* y = a.y.as<float>() + t * a.y.row_stride;
                cpu::for_vectors(outputs, [&](int64_t n, auto width) {
                    Vec sum = bias ? cpu::load(bias + n, width) : Vec();
                    for (int64_t k = 0; k < inputs; ++k)
                        sum = fma(x[k], cpu::load(weight + k * kRow + n), sum);
                    cpu::store(y + n, activated(a.scale * sum, a.activation), width);
                });
            });
        });
    });
}

void CpuOps::enqueue(const op::NarrowLinearBackward& a, Stream& stream) {
    auto* scratch = static_cast<float*>(
        workspace(stream, (kMatrix + cpu::kReductionChunks * kPartial) * int64_t{sizeof(float)}));
    cpu::submit(stream, "narrow_linear_backward", [=] { run(a, scratch); });
}

}  // namespace speedrun
