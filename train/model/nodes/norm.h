// Norms over the width, and the residual sums before them.
#pragma once

#include "train/model/graph/call.h"

namespace speedrun {

// Gain and bias of a norm; kNoParameter if it has none.
struct NormParameters {
    ParameterId gain = kNoParameter;
    ParameterId bias = kNoParameter;
};

// Statistics stored for backward; RMSNorm does not read the mean.
struct NormStatistics {
    ValueId mean, rstd;  // f32 (tokens)
};

// Returns "" for the default epsilon, otherwise ", epsilon E".
std::string described_epsilon(float epsilon);

// sum = x + delta: the residual stream.
class Add final : public Node {
  public:
    struct Ports {
        ValueId sum, x, delta;  // (tokens, width)
    };
    explicit Add(const Ports& ports);
    const char* kind() const override { return "add"; }
    void forward(const Call& call) const override;
    void backward(const Call& /*call*/) const override {}  // both gradients equal that of the sum
    bool passes_through() const override { return true; }

    const Out sum;
    const In x, delta;
};

// y = norm(x) (· gain) (+ bias).
class Norm final : public Node {
  public:
    struct Ports {
        ValueId y;  // (tokens, width)
        NormStatistics statistics;
        ValueId x;  // (tokens, width)
        NormParameters parameters = {};
        ValueId amax = kNoValue;  // f32 (1, 1): max|y|, written in training
    };
    Norm(const Ports& ports, NormKind kind, float epsilon);
    const char* kind() const override { return "norm"; }
    std::string describe(const NodeGraph& graph) const override;
    void forward(const Call& call) const override { forward_of(call, nullptr); }
    // Enqueues the norm and the sum that it reads as one operation; null: the norm only.
    void forward_of(const Call& call, const Call* add_call, const Add* add = nullptr) const;
    void backward(const Call& call) const override;

    // Returns the tensor that receives max|y|, f32 [1], or none.
    Tensor amax_in(const Call& call) const {
        return call(amax).present() && call.pass.training ? call(amax).reshaped({1}) : Tensor{};
    }
    NormKind norm_kind() const { return kind_; }
    float epsilon() const { return epsilon_; }

    const Out y, mean, rstd, amax;
    const In x;
    const Par gain, bias;

  private:
    const NormKind kind_;
    const float epsilon_;
};

}  // namespace speedrun
