#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/ops/op_checks.h"

namespace speedrun {

namespace {

using cpu::Vec;

// The largest of the first `count`; where it matters less, NaN are lost.
template <class Real>
float largest(const Real* x, int64_t count) {
    if (count < cpu::kLanes)
        return static_cast<float>(*std::max_element(
            x, x + count, [](Real a, Real b) { return static_cast<float>(a) < static_cast<float>(b); }));
    Vec highest = cpu::load(x + count - cpu::kLanes);
    for (int64_t i = 0; i + cpu::kLanes <= count; i += cpu::kLanes) highest = max(highest, cpu::load(x + i));
    return cpu::max_lane(highest);
}

// What a row is to predict: different ids, each with its weight, the sum of them where targets are the same.
struct RowTargets {
    static constexpr int kMost = op::CrossEntropy::kMostTargets;
    int count = 0;
    float weight = 0.0f;  // of all
    std::array<int32_t, kMost> id;
    std::array<float, kMost> weight_of;

    RowTargets(const op::CrossEntropy& o, int64_t row) {
        if (!o.weights.present()) {
            add(o.targets.as<int32_t>()[row], 1.0f);
            return;
        }
        for (int64_t k = 0; k < o.weights.numel(); ++k)
            add(o.targets.as<int32_t>()[k * o.targets.row_stride + row], o.weights.as<float>()[k]);
    }

  private:
    void add(int32_t target, float w) {
        if (target < 0) return;
        weight += w;
        for (int i = 0; i < count; ++i) {
            if (id[i] != target) continue;
            weight_of[i] += w;
            return;
        }
        id[count] = target;
        weight_of[count++] = w;
    }
};

// The loss of one row; its gradient too, where dlogits is not null, which may be logits. `scratch` holds
// exponentials that dlogits cannot.
template <class Real>
float row_loss(const Real* logits, Real* dlogits, const RowTargets& targets, int64_t padded,
               const op::CrossEntropy& o, float* scratch) {
    const int64_t vocab = o.vocab_size;
    const float cap = o.softcap, inverse_cap = cap > 0.0f ? 1.0f / cap : 0.0f;
    const auto capped = [&](Vec z) { return cap > 0.0f ? cap * cpu::tanh(z * inverse_cap) : z; };
    const auto capped_one = [&](float z) {
        float lanes[cpu::kLanes];
        cpu::store(lanes, capped(z));
        return lanes[0];
    };
    const float maximum = capped_one(largest(logits, vocab));
    std::array<float, RowTargets::kMost> target_logit;
    for (int i = 0; i < targets.count; ++i)
        target_logit[i] = capped_one(static_cast<float>(logits[targets.id[i]]));
    float* const exponentials =
        std::is_same_v<Real, float> && dlogits ? reinterpret_cast<float*>(dlogits) : scratch;

    Vec sums{};
    cpu::for_vectors(vocab, [&](int64_t i, auto width) {
        const Vec z = capped(cpu::load(logits + i, width));
        const Vec e = cpu::keep(cpu::exp(z - maximum), width);
        sums += e;
        if (!dlogits) return;
        const Vec t = z * inverse_cap;  // 1 − tanh² follows from the capped value
        cpu::store(exponentials + i, cap > 0.0f ? e * (1.0f - t * t) : e, width);
    });
    const float total = cpu::sum(sums);
    float loss = 0.0f;
    for (int i = 0; i < targets.count; ++i)
        loss += targets.weight_of[i] * (std::log(total) + maximum - target_logit[i]);
    if (!dlogits) return loss;

    const float factor = o.gradient_scale * targets.weight / total;
    std::array<float, RowTargets::kMost> of_target;
    for (int i = 0; i < targets.count; ++i) {
        const float t = target_logit[i] * inverse_cap;
        const float slope = cap > 0.0f ? 1.0f - t * t : 1.0f;
        of_target[i] = factor * exponentials[targets.id[i]] - o.gradient_scale * targets.weight_of[i] * slope;
    }
    cpu::for_vectors(vocab, [&](int64_t i, auto width) {
        cpu::store(dlogits + i, factor * cpu::load(exponentials + i, width), width);
    });
    for (int i = 0; i < targets.count; ++i) dlogits[targets.id[i]] = Real(of_target[i]);
    for (int64_t i = vocab; i < padded; ++i) dlogits[i] = Real(0.0f);
    return loss;
}

}  // namespace

void CpuOps::cross_entropy(const op::CrossEntropy& a, Stream& stream) {
    const int64_t rows = a.logits.rows(), cols = a.logits.cols();
    check(a);
    auto* scratch = static_cast<float*>(workspace(stream, device_.num_threads() * cols * sizeof(float)));
    cpu::submit(stream, "cross_entropy", [=] {
        const int64_t num_targets = a.weights.present() ? a.weights.numel() : 1;
        for (int64_t i = 0; i < num_targets * rows; ++i) {
            const int64_t k = i / rows, t = i % rows;
            const int32_t target = a.targets.as<int32_t>()[k * a.targets.row_stride + t];
            if (target >= a.vocab_size || target < -1) {
                throw_data("cross_entropy: target {} at row {} is outside the vocabulary of {}", target, t,
                           a.vocab_size);
            }
        }
        cpu::with_real(a.logits.dtype, [&]<class Real>() {
            cpu::parallel_for(rows, [&](int64_t t) {
                const RowTargets targets(a, t);
                const Real* in = a.logits.as<Real>() + t * a.logits.row_stride;
                Real* out = a.dlogits.present() ? a.dlogits.as<Real>() + t * a.dlogits.row_stride : nullptr;
                float& loss = a.losses.as<float>()[t];
                if (targets.count > 0) {
                    loss = row_loss(in, out, targets, cols, a, scratch + cpu::member_index() * cols);
                } else {
                    loss = 0.0f;
                    if (out) std::fill(out, out + cols, Real(0.0f));
                }
            });
        });
    });
}

}  // namespace speedrun
