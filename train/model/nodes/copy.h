// A value in memory of its own.
#pragma once

#include "train/model/graph/call.h"

namespace speedrun {

// y = x: rows that lie among others, as they do in a view, without gaps.
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
