// Copy of a value into its own memory.
#pragma once

#include "train/model/graph/call.h"

namespace speedrun {

// y = x: copies the strided rows of a view into contiguous rows.
class Copy final : public Node {
  public:
    struct Ports {
        ValueId y, x;  // (tokens, columns)
    };
    explicit Copy(const Ports& ports);
    const char* kind() const override { return "copy"; }
    std::string describe(const NodeGraph& graph) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

  private:
    const Out y_;
    const In x_;
};

}  // namespace speedrun
