// Gates computed from the first columns of two values.
#pragma once

#include "train/model/graph/call.h"

namespace speedrun {

// y = 2·sigmoid([x[:, 0:columns], z[:, 0:columns]] Wᵀ), equal to 1 for W = 0 (op::NarrowLinearForward).
class PairGate final : public Node {
  public:
    struct Ports {
        ValueId y;           // f32 (tokens, gates)
        ValueId x;           // (tokens, width)
        ValueId z;           // (tokens, another width)
        ParameterId weight;  // (gates, 2 × columns)
    };
    struct Options {
        int64_t tokens, columns;
    };
    PairGate(const Ports& ports, const Options& options);
    const char* kind() const override { return "gate of two"; }
    std::string describe(const NodeGraph& graph) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

  private:
    Tensor beside(const Call& call) const;  // columns of both, copied

    const Out y_;
    const In x_, z_;
    const Par weight_;
    const Options options_;
    const Tmp beside_, gradient_;
};

}  // namespace speedrun
