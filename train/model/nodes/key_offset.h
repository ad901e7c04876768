// Keys that have some of their dimensions from the token before.
#pragma once

#include "train/model/graph/call.h"

namespace speedrun {

// The dimensions of k that rotary does not turn, a row later (op::OffsetKeysForward).
class KeyOffset final : public Node {
  public:
    struct Ports {
        ValueId y, k;  // (tokens, head_width)
    };
    KeyOffset(const Ports& ports, const KeyOffsetOptions& options);
    const char* kind() const override { return "key offset"; }
    std::string describe(const NodeGraph& graph) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

  private:
    const Out y_;
    const In k_;
    const KeyOffsetOptions options_;
};

}  // namespace speedrun
