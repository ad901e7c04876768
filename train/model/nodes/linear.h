// y = x Wᵀ (+ b) (+ addend).
#pragma once

#include <optional>

#include "train/model/nodes/quantized.h"
#include "train/model/nodes/scaled_rows.h"

namespace speedrun {

class Linear final : public Node {
  public:
    struct Ports {
        ValueId y;                        // (tokens, outputs)
        ValueId x;                        // (tokens, inputs)
        ParameterId weight;               // (outputs, inputs)
        ParameterId bias = kNoParameter;  // (outputs)
        ValueId x_amax = kNoValue;        // f32 (1, 1): max|x|; with fp8
        // f32 (1): the last Options::scaled outputs are multiplied by it, as their rows of the weight.
        ParameterId factor = kNoParameter;
        ValueId addend = kNoValue;  // (tokens, outputs): the residual stream
    };
    struct Options {
        bool adds_bias =
            true;  // false: another rank adds it to the sum over ranks; all ranks compute its gradient
        std::optional<LinearFp8Config> fp8 = {};    // without bias; only in forward of training
        int64_t rows = 0, inputs = 0, outputs = 0;  // with fp8 or a factor
        int64_t scaled = 0;                         // with a factor
        int kept_x = -1, kept_weight = -1;          // index of delayed scales in the table; −1: none
    };
    explicit Linear(const Ports& ports) : Linear(ports, Options{}) {}
    Linear(const Ports& ports, const Options& options);
    const char* kind() const override { return "linear"; }
    std::string describe(const NodeGraph& graph) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;
    // forward() with an epilogue of its matmul, which has no addend.
    void forward_then(const op::Epilogue& epilogue, const Call& call) const;
    // Backward in two parts: the gradient of x, and the parameters' gradients.
    void backward_input(const Call& call) const;
    void backward_parameters(const Call& call) const;
    // dx = epilogue(dy W).
    void backward_input_then(const op::Epilogue& epilogue, const Tensor& dx, const Call& call) const;

    ValueId x() const { return value_of(x_); }
    ValueId y() const { return value_of(y_); }
    bool has_addend() const { return addend_.index >= 0; }
    bool in_fp8() const { return options_.fp8.has_value(); }
    // True if forward multiplies in FP8 and the scale of x is known before x.
    bool knows_scale(const Call& call) const;
    // With knows_scale(): the epilogue that writes relu² to x, and its FP8 form; then the rest of forward.
    op::Epilogue quantizing(const Call& call) const;
    void forward_of_quantized(const Call& call) const { multiply_by_fp8({}, call); }

  private:
    void multiply_by_fp8(const op::Epilogue& epilogue, const Call& call) const;
    // Return the operands of the product. With a factor they enqueue their computation.
    Tensor weight_of(const Call& call) const;
    Tensor bias_of(const Call& call) const;
    void backward_scaled(const Call& call) const;

    const Out y_;
    const In x_, x_amax_, addend_;
    const Par weight_, bias_, factor_;
    const Options options_;
    Quantized x8_, weight8_;
    ScaledRows scaled_weight_, scaled_bias_;
};

}  // namespace speedrun
