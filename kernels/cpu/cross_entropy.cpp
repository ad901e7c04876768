#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/op_checks.h"

namespace speedrun {

namespace {

using cpu::Vec;

// The loss of one row; its gradient too, where dlogits is not null. `scratch` holds the row's exponentials.
template <class Real>
float row_loss(const Real* logits, Real* dlogits, int32_t target, int64_t padded,
               const CrossEntropyOptions& o, float* scratch) {
    const int64_t vocab = o.vocab_size;
    const float cap = o.softcap, inverse_cap = cap > 0.0f ? 1.0f / cap : 0.0f;
    Vec highest = -std::numeric_limits<float>::infinity();
    cpu::for_vectors(vocab, [&](int64_t i, auto width) {
        Vec z = cpu::load(logits + i, width);
        if (cap > 0.0f) z = cap * cpu::tanh(z * inverse_cap);
        cpu::store(scratch + i, z, width);
        if constexpr (std::is_same_v<decltype(width), cpu::Full>) highest = cpu::max(highest, z);
    });
    float maximum = cpu::max_lane(highest);
    for (int64_t i = vocab / cpu::kLanes * cpu::kLanes; i < vocab; ++i)
        maximum = std::max(maximum, scratch[i]);
    const float target_logit = scratch[target];

    Vec sums{};
    float tail = 0.0f;
    cpu::for_vectors(vocab, [&](int64_t i, auto width) {
        const Vec e = cpu::exp(cpu::load(scratch + i, width) - maximum);
        if constexpr (std::is_same_v<decltype(width), cpu::Full>) {
            sums += e;
        } else {
            float lanes[cpu::kLanes];
            cpu::store(lanes, e);
            for (int64_t lane = 0; lane < width.count; ++lane) tail += lanes[lane];
        }
        if (!dlogits) return;
        if (cap >
            0.0f) {  // keep e · d softcap/dz: the capped value is still here, and 1 − tanh² follows from it
            const Vec t = cpu::load(scratch + i, width) * inverse_cap;
            cpu::store(scratch + i, e * (1.0f - t * t), width);
        } else {
            cpu::store(scratch + i, e, width);
        }
    });
    const float total = cpu::sum(sums) + tail;
    const float loss = std::log(total) + maximum - target_logit;
    if (!dlogits) return loss;

    const float factor = o.gradient_scale / total;
    cpu::for_vectors(vocab, [&](int64_t i, auto width) {
        cpu::store(dlogits + i, factor * cpu::load(scratch + i, width), width);
    });
    const float t = target_logit * inverse_cap;
    const float slope = cap > 0.0f ? 1.0f - t * t : 1.0f;
    dlogits[target] = Real(factor * scratch[target] - o.gradient_scale * slope);
    for (int64_t i = vocab; i < padded; ++i) dlogits[i] = Real(0.0f);
    return loss;
}

}  // namespace

void CpuOps::cross_entropy(Tensor losses, Tensor dlogits, Tensor logits, Tensor targets,
                           const CrossEntropyOptions& options, Stream& stream) {
    const int64_t rows = logits.rows(), cols = logits.cols();
    check_cross_entropy(losses, dlogits, logits, targets, options);
    auto* scratch = static_cast<float*>(workspace(stream, device_.num_threads() * cols * sizeof(float)));
    cpu::submit(stream, "cross_entropy", [=] {
        for (int64_t t = 0; t < rows; ++t) {
            const int32_t target = targets.as<int32_t>()[t];
            if (target >= options.vocab_size || target < -1) {
                throw_data("cross_entropy: target {} at row {} is outside the vocabulary of {}", target, t,
                           options.vocab_size);
            }
        }
        cpu::with_real(logits.dtype, [&]<class Real>() {
            cpu::parallel_for(rows, [&](int64_t t) {
                const int32_t target = targets.as<int32_t>()[t];
                const Real* in = logits.as<Real>() + t * logits.row_stride;
                Real* out = dlogits.present() ? dlogits.as<Real>() + t * dlogits.row_stride : nullptr;
                float& loss = losses.as<float>()[t];
                if (target >= 0) {
                    loss = row_loss(in, out, target, cols, options, scratch + cpu::member_index() * cols);
                } else {
                    loss = 0.0f;
                    if (out) std::fill(out, out + cols, Real(0.0f));
                }
            });
        });
    });
}

}  // namespace speedrun
