// Context parallelism: forward fetches the keys and values that this rank's queries can see from the ranks that hold
// them. Backward returns their gradients and sums them.
#pragma once

#include "train/model/graph/call.h"
#include "train/model/nodes/key_routes.h"

namespace speedrun {

class KeyExchange final : public Node {
  public:
    struct Ports {
        ValueId kept;  // (keys, columns of k and of v); per row the keys of KeptKeys
        ValueId k, v;  // (tokens, columns), this rank's part
    };
    KeyExchange(const Ports& ports, const SharedKeys& keys);
    const char* kind() const override { return "exchange of keys, values"; }
    std::string describe(const NodeGraph& graph) const override;
    std::vector<Sent> sent(const NodeGraph& graph, bool backward) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

  private:
    KeyRoutes routes(const std::vector<int32_t>& documents) const;
    void add_gradients(const Call& call, const KeyRoutes& routes, const Tensor& sum,
                       const Tensor& received) const;

    const SharedKeys keys_;
    const KeptKeys kept_keys_;
    const int64_t tokens_;  // tokens of this rank's part
    const Out kept_;
    const In k_, v_;
    Tmp own_, received_;
};

}  // namespace speedrun
