// Removes the component along a token's own value from the output of attention.
#pragma once

#include "train/model/graph/call.h"

namespace speedrun {

// y = o − tanh(alpha)·(o·v)/|v|²·v per head and token (op::ExcludeOwnValueForward).
class ExcludeOwnValue final : public Node {
  public:
    struct Ports {
        ValueId y;                         // (tokens, head_width)
        ValueId o;                         // (tokens, head_width)
        ValueId v;                         // (tokens, head_width), input of attention
        ParameterId alpha = kNoParameter;  // f32 (heads)
        ValueId token_alpha = kNoValue;    // or f32 (tokens, heads)
    };
    explicit ExcludeOwnValue(const Ports& ports);
    const char* kind() const override { return "exclude own value"; }
    std::string describe(const NodeGraph& graph) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

  private:
    Tensor alpha_of(const Call& call) const;

    const Out y_;
    const In o_, v_, token_alpha_;
    const Par alpha_;
};

}  // namespace speedrun
