#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace speedrun {

namespace {

using cpu::Vec;

// Maximum of the first `count` values. NaN may be lost: the sum of exponentials still has it.
template <class Real>
float largest(const Real* x, int64_t count) {
    if (count < cpu::kLanes)
        return static_cast<float>(*std::max_element(
            x, x + count, [](Real a, Real b) { return static_cast<float>(a) < static_cast<float>(b); }));
    Vec highest = cpu::load(x + count - cpu::kLanes);
    for (int64_t i = 0; i + cpu::kLanes <= count; i += cpu::kLanes) highest = max(highest, cpu::load(x + i));
    return cpu::max_lane(highest);
}

// Targets of a row: distinct ids with weights. The weights of equal targets are added.
struct RowTargets {
    static constexpr int kMax = op::CrossEntropy::kMaxTargets;
    int count = 0;
    float weight = 0.0f;  // sum of all weights
    std::array<int32_t, kMax> id;
    std::array<float, kMax> weight_of;

    template <class Arguments>
    RowTargets(const Arguments& o, int64_t row) {
        if (!o.weights.present()) {
            add(o.targets.template as<int32_t>()[row], 1.0f);
            return;
        }
        for (int64_t k = 0; k < o.weights.numel(); ++k)
            add(o.targets.template as<int32_t>()[k * o.targets.row_stride + row],
                o.weights.template as<float>()[k]);
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

// Softcap of logits, if there is one. Its slope follows from the capped value.
class Cap {
  public:
    explicit Cap(const Softcap& softcap)
        : cap_(softcap.cap),
          shift_(softcap.shift),
          inverse_cap_(cap_ > 0.0f ? 1.0f / cap_ : 0.0f),
          inverse_scale_(cap_ > 0.0f ? 1.0f / softcap.divisor() : 0.0f),
          slope_(softcap.slope()) {}
    bool present() const { return cap_ > 0.0f; }
    Vec operator()(Vec z) const { return present() ? cap_ * cpu::tanh((z + shift_) * inverse_scale_) : z; }
    float of_one(float z) const {
        float lanes[cpu::kLanes];
        cpu::store(lanes, (*this)(Vec{} + z));
        return lanes[0];
    }
    template <class T>  // cap/scale·(1 − tanh²)
    T times_slope(T e, T capped) const {
        const T t = capped * inverse_cap_;
        return present() ? e * (1.0f - t * t) * slope_ : e;
    }

  private:
    float cap_, shift_, inverse_cap_, inverse_scale_, slope_;
};

// Returns the loss of one row, and writes its gradient if dlogits is not null. dlogits may alias logits.
// `scratch` holds exponentials if dlogits cannot.
template <class Real>
float row_loss(const Real* logits, Real* dlogits, const RowTargets& targets, int64_t padded,
               const op::CrossEntropy& o, float* scratch) {
    const int64_t vocab = o.vocab_size;
    const Cap capped(o.softcap);
    const float maximum = capped.of_one(largest(logits, vocab));
    std::array<float, RowTargets::kMax> target_logit;
    for (int i = 0; i < targets.count; ++i)
        target_logit[i] = capped.of_one(static_cast<float>(logits[targets.id[i]]));
    float* const exponentials =
        std::is_same_v<Real, float> && dlogits ? reinterpret_cast<float*>(dlogits) : scratch;

    Vec sums{};
    cpu::for_vectors(vocab, [&](int64_t i, auto width) {
        const Vec z = capped(cpu::load(logits + i, width));
        const Vec e = cpu::keep(cpu::exp(z - maximum), width);
        sums += e;
        if (!dlogits) return;
        cpu::store(exponentials + i, capped.times_slope(e, z), width);
    });
    const float total = cpu::sum(sums);
    float loss = 0.0f;
    for (int i = 0; i < targets.count; ++i)
        loss += targets.weight_of[i] * (std::log(total) + maximum - target_logit[i]);
    if (!dlogits) return loss;

    const float factor = o.gradient_scale * targets.weight / total;
    std::array<float, RowTargets::kMax> of_target;
    for (int i = 0; i < targets.count; ++i) {
        const float slope = capped.times_slope(1.0f, target_logit[i]);
        of_target[i] = factor * exponentials[targets.id[i]] - o.gradient_scale * targets.weight_of[i] * slope;
    }
    cpu::for_vectors(vocab, [&](int64_t i, auto width) {
        cpu::store(dlogits + i, factor * cpu::load(exponentials + i, width), width);
    });
    for (int i = 0; i < targets.count; ++i) dlogits[targets.id[i]] = Real(of_target[i]);
    for (int64_t i = vocab; i < padded; ++i) dlogits[i] = Real(0.0f);
    return loss;
}

// True if the id is a column of this part.
template <class Arguments>
bool has(const Arguments& o, int32_t id) {
    return id >= o.first && id < o.first + o.vocab_size;
}

// log Σ exp over the columns of the part, and its terms of the target sum.
template <class Real>
void row_part(const Real* logits, const RowTargets& targets, const op::CrossEntropyPart& o, float* part) {
    const Cap capped(o.softcap);
    part[0] = -std::numeric_limits<float>::infinity();
    part[1] = 0.0f;
    if (o.vocab_size > 0) {
        const float maximum = capped.of_one(largest(logits, o.vocab_size));
        Vec sums{};
        cpu::for_vectors(o.vocab_size, [&](int64_t i, auto width) {
            sums += cpu::keep(cpu::exp(capped(cpu::load(logits + i, width)) - maximum), width);
        });
        part[0] = std::log(cpu::sum(sums)) + maximum;
    }
    for (int i = 0; i < targets.count; ++i)
        if (has(o, targets.id[i]))
            part[1] +=
                targets.weight_of[i] * capped.of_one(static_cast<float>(logits[targets.id[i] - o.first]));
}

struct Merged {
    float log_sum, targets;
};

// Merges the parts in order, so that every rank computes the same bits.
Merged merge(const Tensor& parts, int64_t row, int64_t rows) {
    const float* const of = parts.as<float>();
    const int64_t count = parts.rows() / rows;
    float highest = -std::numeric_limits<float>::infinity(), sum = 0.0f, targets = 0.0f;
    for (int64_t p = 0; p < count; ++p) highest = std::max(highest, of[2 * (p * rows + row)]);
    for (int64_t p = 0; p < count; ++p) {
        sum += std::exp(of[2 * (p * rows + row)] - highest);
        targets += of[2 * (p * rows + row) + 1];
    }
    return {std::log(sum) + highest, targets};
}

// dlogits may alias logits.
template <class Real>
void row_gradient(const Real* logits, Real* dlogits, const RowTargets& targets,
                  const op::CrossEntropyOfParts& o, float log_sum) {
    const Cap capped(o.softcap);
    const float factor = o.gradient_scale * targets.weight;
    std::array<float, RowTargets::kMax> of_target;
    for (int i = 0; i < targets.count; ++i) {
        if (!has(o, targets.id[i])) continue;
        const float z = capped.of_one(static_cast<float>(logits[targets.id[i] - o.first]));
        of_target[i] =
            capped.times_slope(factor * std::exp(z - log_sum) - o.gradient_scale * targets.weight_of[i], z);
    }
    cpu::for_vectors(o.vocab_size, [&](int64_t i, auto width) {
        const Vec z = capped(cpu::load(logits + i, width));
        cpu::store(dlogits + i, factor * capped.times_slope(cpu::exp(z - log_sum), z), width);
    });
    for (int i = 0; i < targets.count; ++i)
        if (has(o, targets.id[i])) dlogits[targets.id[i] - o.first] = Real(of_target[i]);
}

// Buffer for a row's gradients: dlogits, or scratch that is then rounded to 8 bits.
template <class Real>
struct GradientRow {
    Real* values = nullptr;  // absent: no gradients
    E5m2* eight = nullptr;
    float inverse = 0.0f;

    template <class Arguments>
    GradientRow(const Arguments& a, int64_t row, Real* scratch) {
        if (!a.dlogits.present()) return;
        if (!a.scale.present()) {
            values = a.dlogits.template as<Real>() + row * a.dlogits.row_stride;
            return;
        }
        const float scale = *a.scale.template as<float>();
        values = scratch;
        eight = a.dlogits.template as<E5m2>() + row * a.dlogits.row_stride;
        inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
    }
    void finish(int64_t cols) const {
        if (!eight) return;
        for (int64_t i = 0; i < cols; ++i) eight[i] = E5m2(static_cast<float>(values[i]) * inverse);
    }
};

constexpr int64_t kRowsPerPass = 16;  // rows transposed while they are in a cache

// Calls body(t) for each row. 8-bit dlogits are transposed too.
template <class Arguments, class Body>
void for_rows(const Arguments& a, int64_t rows, const Body& body) {
    if (!a.scale.present()) return cpu::parallel_for(rows, body);
    cpu::parallel_for(rows / kRowsPerPass, [&](int64_t group) {
        const int64_t first = group * kRowsPerPass;
        for (int64_t t = first; t < first + kRowsPerPass; ++t) body(t);
        const E5m2* const from = a.dlogits.template as<E5m2>() + first * a.dlogits.row_stride;
        for (int64_t c = 0; c < a.dlogits.cols(); ++c) {
            E5m2* const to = a.transposed.template as<E5m2>() + c * a.transposed.row_stride + first;
            for (int64_t r = 0; r < kRowsPerPass; ++r) to[r] = from[r * a.dlogits.row_stride + c];
        }
    });
}

struct IdLimits {
    int64_t rows, vocab_size;
};
template <class Arguments>
void check_ids(const Arguments& a, const IdLimits& limits) {
    const auto [rows, vocab_size] = limits;
    const int64_t num_targets = a.weights.present() ? a.weights.numel() : 1;
    for (int64_t i = 0; i < num_targets * rows; ++i) {
        const int64_t k = i / rows, t = i % rows;
        const int32_t target = a.targets.template as<int32_t>()[k * a.targets.row_stride + t];
        if (target >= vocab_size || target < -1) {
            throw_data("cross_entropy: target {} at row {} is outside the vocabulary of {}", target, t,
                       vocab_size);
        }
    }
}

}  // namespace

void CpuOps::enqueue(const op::CrossEntropy& a, Stream& stream) {
    const int64_t rows = a.logits.rows(), cols = a.logits.cols();
    // Scratch of one row: its exponentials, and with a scale (8 bits) also its unrounded gradients after
    // them.
    const int64_t row_bytes = cols * int64_t{sizeof(float)}, bytes = (a.scale.present() ? 2 : 1) * row_bytes;
    auto* const memory = static_cast<char*>(workspace(stream, device_.num_threads() * bytes));
    cpu::submit(stream, "cross_entropy", [=] {
        check_ids(a, {.rows = rows, .vocab_size = a.vocab_size});
        cpu::with_real(a.logits.dtype, [&]<class Real>() {
            for_rows(a, rows, [&](int64_t t) {
                const RowTargets targets(a, t);
                const Real* in = a.logits.as<Real>() + t * a.logits.row_stride;
                char* const scratch = memory + cpu::member_index() * bytes;
                const GradientRow<Real> out(a, t, reinterpret_cast<Real*>(scratch + row_bytes));
                float& loss = a.losses.as<float>()[t];
                if (targets.count > 0) {
                    loss = row_loss(in, out.values, targets, cols, a, reinterpret_cast<float*>(scratch));
                } else {
                    loss = 0.0f;
                    if (out.values) std::fill(out.values, out.values + cols, Real(0.0f));
                }
                out.finish(cols);
            });
        });
    });
}

void CpuOps::enqueue(const op::CrossEntropyPart& a, Stream& stream) {
    const int64_t rows = a.logits.rows();
    cpu::submit(stream, "cross_entropy_part", [=] {
        check_ids(a, {.rows = rows, .vocab_size = a.whole_vocab_size});
        cpu::with_real(a.logits.dtype, [&]<class Real>() {
            cpu::parallel_for(rows, [&](int64_t t) {
                row_part(a.logits.as<Real>() + t * a.logits.row_stride, RowTargets(a, t), a,
                         a.part.as<float>() + 2 * t);
            });
        });
    });
}

void CpuOps::enqueue(const op::CrossEntropyOfParts& a, Stream& stream) {
    const int64_t rows = a.losses.numel(), cols = a.dlogits.present() ? a.dlogits.cols() : 0;
    const int64_t row_bytes = cols * int64_t{sizeof(float)};
    auto* const memory = a.scale.present()
                             ? static_cast<char*>(workspace(stream, device_.num_threads() * row_bytes))
                             : nullptr;
    cpu::submit(stream, "cross_entropy_of_parts", [=] {
        check_ids(a, {.rows = rows, .vocab_size = a.whole_vocab_size});
        cpu::with_real(a.dlogits.present() ? a.logits.dtype : DType::f32, [&]<class Real>() {
            for_rows(a, rows, [&](int64_t t) {
                const RowTargets targets(a, t);
                const Merged all = merge(a.parts, t, rows);
                const bool counts = targets.count > 0;
                a.losses.as<float>()[t] = counts ? targets.weight * all.log_sum - all.targets : 0.0f;
                if (!a.dlogits.present()) return;
                const GradientRow<Real> out(
                    a, t, reinterpret_cast<Real*>(memory + cpu::member_index() * row_bytes));
                if (counts)
                    row_gradient(a.logits.as<Real>() + t * a.logits.row_stride, out.values, targets, a,
                                 all.log_sum);
                std::fill(out.values + (counts ? a.vocab_size : 0), out.values + cols, Real(0.0f));
                out.finish(cols);
            });
        });
    });
}

}  // namespace speedrun
