// Narrower heads of a wider row.
#pragma once

#include "train/model/graph/call.h"

namespace speedrun {

// y has the first columns of each head of x.
class HeadColumns final : public Node {
  public:
    struct Ports {
        ValueId y;  // (tokens, heads × fewer columns)
        ValueId x;  // (tokens, heads × columns), without gaps
    };
    HeadColumns(const Ports& ports, int64_t heads);
    const char* kind() const override { return "columns of heads"; }
    std::string describe(const NodeGraph& graph) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

  private:
    Tensor by_head(const Tensor& rows) const;

    const Out y_;
    const In x_;
    const int64_t heads_;
};

}  // namespace speedrun
