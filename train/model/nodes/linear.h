// y = x Wᵀ (+ b).
#pragma once

#include <optional>

#include "train/model/nodes/quantized.h"

namespace speedrun {

class Linear final : public Node {
  public:
    struct Ports {
        ValueId y;                        // (tokens, outputs)
        ValueId x;                        // (tokens, inputs)
        ParameterId weight;               // (outputs, inputs)
        ParameterId bias = kNoParameter;  // (outputs)
        ValueId x_amax = kNoValue;        // f32 (1, 1): max|x|; with fp8
    };
    struct Options {
        bool adds_bias =
            true;  // false: another rank adds it to the sum over ranks; all ranks compute its gradient
        std::optional<LinearFp8Config> fp8 = {};    // without bias; only in forward of training
        int64_t rows = 0, inputs = 0, outputs = 0;  // with fp8
        int kept_x = -1, kept_weight = -1;          // index of delayed scales in the table; −1: none
    };
    explicit Linear(const Ports& ports) : Linear(ports, Options{}) {}
    Linear(const Ports& ports, const Options& options);
    const char* kind() const override { return "linear"; }
    std::string describe(const NodeGraph& graph) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;
    // Backward in two parts: the gradient of x, and the parameters' gradients.
    void backward_input(const Call& call) const;
    void backward_parameters(const Call& call) const;

    ValueId x() const { return value_of(x_); }
    bool in_fp8() const { return options_.fp8.has_value(); }
    // True if a fusion with the activation before can quantize its output while computing it.
    bool fuses_quantisation(const Call& call) const;
    // Enqueues forward of the activation and this node.
    void forward_of_relu_squared(const Call& call, const Tensor& activated) const;

  private:
    void multiply_by_fp8(const Call& call) const;

    const Out y_;
    const In x_, x_amax_;
    const Par weight_, bias_;
    const Options options_;
    Quantized x8_, weight8_;
};

}  // namespace speedrun
