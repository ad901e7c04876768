// A model with its gradients on the CPU, driven microbatch by microbatch with host vectors.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/train/fixture.h"
#include "train/model/transformer.h"

namespace speedrun::testing {

struct HostBatch {
    std::vector<int32_t> tokens, targets, positions, first_key;

    // Rows begin … begin+count of it, as a batch of its own.
    HostBatch rows(int64_t begin, int64_t count, int64_t sequence_length) const;
};
HostBatch batch_of(const ModelFixture& fixture);
// Random tokens and targets (one in eight is −1); documents end at random where the mask is asked for.
HostBatch random_batch(const ModelConfig& model, int64_t rows, int64_t sequence_length, bool document_mask,
                       uint64_t seed);

struct ModelHarness {
    ModelHarness(const ModelConfig& model, int64_t tokens, int64_t sequence_length,
                 DType precision = DType::f32, const BucketRules& rules = {},
                 const MemoryConfig& memory = {});
    ~ModelHarness();  // after a failure the stream may still be at work in the memory that ends here

    void set(const Parameter& p, const Values& values);  // the master, and what compute reads
    void load(const ModelFixture& fixture);
    // Every parameter normal with this deviation (gains around 1, mixes around 0.7): nothing hides behind a
    // zero.
    void randomize(double deviation, uint64_t seed);
    void upload(const HostBatch& batch);

    // Forward; the sum of the losses of all tokens, added up in double.
    double forward_loss(const HostBatch& batch);
    // Forward and backward of one microbatch; the same sum.
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
    PassTracker tracker;            // the model's, unless a test replaces it
    std::vector<int32_t> prefixes;  // by token, for a loss that counts them

  private:
    const LossConfig loss_;
    Buffer loss_sum_;
};

double norm_of(const Values& a);
double largest_of(const Values& a);  // of the absolute values; NaN if one is
Values difference_of(const Values& a, const Values& b);

}  // namespace speedrun::testing
