// StepStatistics: loss, gradient norm and clip coefficient of a step, summed over all ranks. On the device until read.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "train/sharding/reducer.h"

namespace speedrun {

// Host copy of a step's statistics.
class HostStatistics {
  public:
    explicit HostStatistics(const float* values) : values_(values) {}
    double loss_sum() const { return values_[kLossTotal]; }  // sum over all ranks
    bool stop() const { return values_[kStopTotal] > 0; }    // a rank requests the end of the run
    double grad_norm() const { return values_[kGradNorm]; }  // before clipping
    double coefficient() const { return values_[kCoefficient]; }
    // Bucket's term of the norm: Σ|g|^p, or max |g|; 0 if it was not due.
    double norm_term(int bucket) const { return values_[kNormTerms + bucket]; }

  private:
    friend class StepStatistics;
    // This rank's values, then their totals in the same order; the host copy begins with the totals.
    static constexpr int64_t kLossSum = 0, kStop = 1, kLossTotal = 2, kStopTotal = 3, kGradNorm = 4,
                             kCoefficient = 5, kNormTerms = 6;
    const float* values_;
};

class StepStatistics {
  public:
    // All arguments must outlive it.
    StepStatistics(const OptimizersConfig& config, const Ranks& ranks, const BucketLayout& layout,
                   const GradientStore& gradients, Reducer& reducer, Runtime& runtime);

    // f32 [1]: this rank's loss sum, which backward writes on compute; and the factor of all gradients: min(1, clip /
    // norm), not finite if the norm is not.
    Tensor loss_sum() const { return at(HostStatistics::kLossSum); }
    Tensor coefficient() const { return at(HostStatistics::kCoefficient); }
    // f32 [1], written on compute before take_loss(): 1 if this rank requests the end of the run, else 0. All ranks receive
    // the sum with the loss, which needs no collective of its own.
    Tensor stop() const { return at(HostStatistics::kStop); }

    // Enqueues the norm terms of reduced gradients on the reduce stream.
    void take_norms(std::span<const Bucket* const> buckets);
    // Enqueues and returns, f32 [1], the factor of this bucket's gradient alone: 1, or not finite if the gradient is
    // not. For ranks that do not wait for the global norm.
    Tensor own_scale(const Bucket& bucket, Stream& stream);
    // On compute, after backward.
    void take_loss();
    // On the reduce stream, after every take_norms(): enqueues sums over ranks, norm and coefficient. due: has a norm
    // term in this step; index: bucket.
    void combine(const std::vector<bool>& due);

    int64_t host_bytes() const { return (HostStatistics::kNormTerms + layout_.size()) * size_of(DType::f32); }
    // Enqueues the copy to the host, in the layout of HostStatistics. The next step's statistics wait for it.
    void read(float* host, Stream& stream);

  private:
    Tensor at(int64_t index, int64_t count = 1) const {
        return memory_.tensor(DType::f32, {count}, index * size_of(DType::f32));
    }

    const VectorNorm norm_;
    const double clip_;
    const bool adds_loss_;
    const BucketLayout& layout_;
    const GradientStore& gradients_;
    Reducer& reducer_;
    Runtime& runtime_;
    // Offsets after the host's part: this rank's norm terms, then a norm and a scale per bucket.
    const int64_t own_terms_, own_scales_;
    Buffer memory_;
    std::unique_ptr<Event> read_;
    std::vector<int>
        counted_elsewhere_;  // buckets with a copy of the gradient on another rank, which adds it to the norm
};

}  // namespace speedrun
