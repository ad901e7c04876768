// StepStatistics: the few numbers of a step that the host reads and gradients are scaled by: loss, gradient
// norm, clip coefficient. On the device until read; sums over all ranks.
#pragma once

#include <memory>
#include <vector>

#include "train/sharding/reducer.h"

namespace speedrun {

// The host's copy of a step's statistics.
class StepNumbers {
  public:
    explicit StepNumbers(const float* values) : values_(values) {}
    double loss_sum() const { return values_[kLossTotal]; }        // over all ranks
    double passenger() const { return values_[kPassengerTotal]; }  // over all ranks
    double grad_norm() const { return values_[kGradNorm]; }        // before clipping
    double coefficient() const { return values_[kCoefficient]; }
    // A bucket's share of the norm: Σ|g|^p, or the largest |g|; 0 if it was not due.
    double norm_term(int bucket) const { return values_[kNormTerms + bucket]; }

  private:
    friend class StepStatistics;
    // Those of this rank, then, in the same order, their totals; what the host reads begins with the latter.
    static constexpr int64_t kLossSum = 0, kPassenger = 1, kLossTotal = 2, kPassengerTotal = 3, kGradNorm = 4,
                             kCoefficient = 5, kNormTerms = 6;
    const float* values_;
};

class StepStatistics {
  public:
    // What it is given must outlive it.
    StepStatistics(const OptimizersConfig& config, const Ranks& ranks, const BucketLayout& layout,
                   const GradientStore& gradients, Reducer& reducer, Runtime& runtime);

    // f32 [1]: the sum of this rank's losses, which backward writes on compute; and what all gradients are
    // multiplied by: min(1, clip / norm), not finite where the norm is not.
    Tensor loss_sum() const { return at(StepNumbers::kLossSum); }
    Tensor coefficient() const { return at(StepNumbers::kCoefficient); }
    // f32 [1], to be written on compute before take_loss(): a number of this rank that is summed over all of
    // them beside the loss, in the same collective, and of whose meaning the statistics know nothing.
    Tensor passenger() const { return at(StepNumbers::kPassenger); }

    // Enqueues a bucket's share of the norm, of its reduced gradient, on the reduce stream.
    void take_norm(const Bucket& bucket);
    // Enqueues, and returns f32 [1], what this bucket alone allows: 1, or not finite where its gradient is
    // not. For ranks that do not wait for the norm of all.
    Tensor own_scale(const Bucket& bucket, Stream& stream);
    // On compute, behind backward.
    void take_loss();
    // On the reduce stream, behind every take_norm(): sums over the ranks, norm and coefficient. due: by
    // bucket id, whether it has a norm in this step.
    void combine(const std::vector<bool>& due);

    int64_t host_bytes() const { return (StepNumbers::kNormTerms + layout_.size()) * size_of(DType::f32); }
    // Enqueues the copy to the host, which StepNumbers understands; the next step's numbers wait for it.
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
    // Behind what the host reads: this rank's own norm terms, and a norm and a scale of each bucket.
    const int64_t own_terms_, own_scales_;
    Buffer memory_;
    std::unique_ptr<Event> read_;
    std::vector<int>
        counted_elsewhere_;  // buckets whose gradient another rank has too, which adds it to the norm
};

}  // namespace speedrun
