// A model with gradients on the CPU, run one microbatch at a time with host vectors.
#pragma once

#include <memory>

#include "tests/train/fixture.h"
#include "train/model/transformer.h"

namespace speedrun::testing {

struct HostBatch {
    std::vector<int32_t> tokens, targets, positions, first_key;

    // Rows begin … begin+count as a separate batch.
    HostBatch rows(int64_t begin, int64_t count, int64_t sequence_length) const;
};
HostBatch batch_of(const ModelFixture& fixture);
// Random tokens and targets (one in eight is −1). With document_mask, documents end at random.
HostBatch random_batch(const ModelConfig& model, int64_t rows, int64_t sequence_length, bool document_mask,
                       uint64_t seed);

struct ModelHarness {
    // wgmma_attention: RuntimeOptions::wgmma_attention.
    ModelHarness(const ModelConfig& model, int64_t tokens, int64_t sequence_length,
                 DType precision = DType::f32, const BucketRules& rules = {}, const MemoryConfig& memory = {},
                 bool wgmma_attention = false);
    ~ModelHarness();  // a failed test may leave kernels running in memory freed here

    void set(const Parameter& p, const Values& values);  // sets the master and the compute copy
    void load(const ModelFixture& fixture);
    // Fills every parameter from a normal distribution (gains around 1, mixes around 0.7): zeros would hide errors.
    void randomize(double deviation, uint64_t seed);
    void upload(const HostBatch& batch);

    // Forward pass. Returns the sum of all tokens' losses, added in double.
    double forward_loss(const HostBatch& batch);
    // Forward and backward of one microbatch. Returns the same sum.
    double backward(const HostBatch& batch, float gradient_scale);

    Values read(const Tensor& tensor);  // f32 or bf16; waits for compute
    Values gradient(const Parameter& p) { return read(gradients.flat(p)); }
    const ParameterTable& table() const { return model.table(); }

    Runtime runtime;

  private:
    const std::vector<std::unique_ptr<Transformer>> models_;

  public:
    Transformer& model;
    GradientStore gradients;
    PassTracker tracker;            // attached to the model unless a test replaces it
    std::vector<int32_t> prefixes;  // per token, for a loss with prefix targets

  private:
    const LossConfig loss_;
    Buffer loss_sum_;
};

double norm_of(const Values& a);
double largest_of(const Values& a);  // largest absolute value; NaN if any is NaN
Values difference_of(const Values& a, const Values& b);

}  // namespace speedrun::testing
