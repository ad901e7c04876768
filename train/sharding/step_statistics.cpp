#include "train/sharding/step_statistics.h"

namespace speedrun {

StepStatistics::StepStatistics(const OptimizersConfig& config, const Ranks& ranks, const BucketLayout& layout,
                               const GradientStore& gradients, Reducer& reducer, Runtime& runtime)
    : norm_(config.clip_norm),
      clip_(config.clip),
      adds_loss_(ranks.tensor().index == 0),
      layout_(layout),
      gradients_(gradients),
      reducer_(reducer),
      runtime_(runtime),
      own_terms_(HostStatistics::kNormTerms + layout.size()),
      own_scales_(own_terms_ + layout.size()),
      memory_(runtime.device(), "step statistics", MemoryCategory::workspace,
              (own_scales_ + int64_t{2} * layout.size()) * size_of(DType::f32)),
      read_(runtime.device().create_event()) {
    for (const Bucket& bucket : layout.all())
        if (!adds_norm_term(bucket, reducer.norm_axes(), ranks)) counted_elsewhere_.push_back(bucket.id);
}

void StepStatistics::take_norms(std::span<const Bucket* const> buckets) {
    Stream& stream = runtime_.reduce();
    std::vector<op::NormTerm::Piece> pieces;
    for (const Bucket* bucket : buckets) {
        const Tensor term = at(own_terms_ + bucket->id);
        if (layout_.valid(*bucket) > 0) {
            pieces.push_back({.out = term, .x = gradients_.shard(*bucket)});
        } else {
            runtime_.ops().fill({.x = term, .value = 0.0f}, stream);
        }
    }
    if (!pieces.empty()) runtime_.ops().norm_term({.pieces = pieces, .norm = norm_}, stream);
}

Tensor StepStatistics::own_scale(const Bucket& bucket, Stream& stream) {
    const int64_t own = own_scales_ + int64_t{2} * bucket.id;
    const Tensor scale = at(own), norm = at(own + 1);
    runtime_.ops().clip_coefficient({.coefficient = scale,
                                     .norm = norm,
                                     .terms = at(own_terms_ + bucket.id),
                                     .max_norm = 0.0f,
                                     .kind = norm_},
                                    stream);
    return scale;
}

void StepStatistics::take_loss() {
    Stream& compute = runtime_.compute();
    reducer_.meter().time(ExposureMeter::Kind::wait, compute, [&] { compute.wait(*read_); });
    runtime_.ops().cast({.out = at(HostStatistics::kLossTotal, 2), .in = at(HostStatistics::kLossSum, 2)},
                        compute);
    // Ranks that share matrices have the losses of the same rows: one of them counts.
    if (!adds_loss_) runtime_.ops().fill({.x = at(HostStatistics::kLossTotal), .value = 0.0f}, compute);
}

void StepStatistics::combine(const std::vector<bool>& due) {
    Ops& ops = runtime_.ops();
    Stream& reduce = runtime_.reduce();
    const int64_t count = layout_.size();
    const Tensor terms = at(HostStatistics::kNormTerms, count);
    reduce.wait(*read_);
    for (const Bucket& bucket : layout_.all())
        if (!due[static_cast<size_t>(bucket.id)])
            ops.fill({.x = at(own_terms_ + bucket.id), .value = 0.0f}, reduce);
    ops.cast({.out = terms, .in = at(own_terms_, count)}, reduce);
    reducer_.reduce_over_all(at(HostStatistics::kLossTotal, 2), Reduction::sum, reduce);
    if (!reducer_.norm_axes().empty()) {
        for (const int bucket : counted_elsewhere_)
            ops.fill({.x = at(HostStatistics::kNormTerms + bucket), .value = 0.0f}, reduce);
        reducer_.reduce_over_shards(terms, norm_ == VectorNorm::infinity ? Reduction::max : Reduction::sum,
                                    reduce);
    }
    ops.clip_coefficient({.coefficient = coefficient(),
                          .norm = at(HostStatistics::kGradNorm),
                          .terms = terms,
                          .max_norm = static_cast<float>(clip_),
                          .kind = norm_},
                         reduce);
}

void StepStatistics::read(float* host, Stream& stream) {
    if (!runtime_.device().dry()) {
        // Excludes this rank's own terms, which the next step writes on compute.
        const int64_t first = HostStatistics::kLossTotal;
        const Tensor values = at(first, HostStatistics::kNormTerms + layout_.size() - first);
        runtime_.device().copy(host + first, values.data, values.bytes(), stream);
    }
    stream.record(*read_);
}

}  // namespace speedrun
