// Attention with maps that are composed over the heads.
#pragma once

#include "train/model/graph/call.h"

namespace speedrun {

// op::ComposeHeadsForward. Each weight is either a parameter, equal for all tokens, or a value per token.
class ComposeHeads final : public Node {
  public:
    struct Ports {
        ValueId c;                                         // (tokens, head_width)
        ValueId q, k, v;                                   // (tokens, head_width), inputs of attention
        ValueId first_key;                                 // ids (tokens)
        ParameterId w1 = kNoParameter, w2 = kNoParameter;  // f32 (heads)
        ValueId token_w1 = kNoValue, token_w2 = kNoValue;  // or f32 (tokens, heads)
    };
    ComposeHeads(const Ports& ports, const ComposeHeadsOptions& options);
    const char* kind() const override { return "compose heads"; }
    std::string describe(const NodeGraph& graph) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

  private:
    // Returns the parameter if there is one, otherwise the value.
    static Tensor weight(const Call& call, Par parameter, In value) {
        return parameter.index >= 0 ? call(parameter) : call(value);
    }

    const Out c_;
    const In q_, k_, v_, first_key_, token_w1_, token_w2_;
    const Par w1_, w2_;
    const ComposeHeadsOptions options_;
};

}  // namespace speedrun
