// Keys and values that attention of a part of rows can see, from the ranks that have them (context parallel): forward
// fetches them, backward brings their gradients home and sums them.
#pragma once

#include "data/kept_keys.h"
#include "train/comm/communicator.h"
#include "train/model/graph/call.h"

namespace speedrun {

class KeyExchange final : public Node {
  public:
    struct Ports {
        ValueId kept;  // (keys, 2 × head_width): keys, and beside them values; of each row those of KeptKeys
        ValueId k, v;  // (tokens, head_width), of this rank's part
    };
    struct Options {
        ContextPart part;
        int64_t rows;  // of the microbatch
        AttendedRow row;
        int64_t columns;  // of k
    };
    KeyExchange(const Ports& ports, const Options& options);
    const char* kind() const override { return "exchange of keys, values"; }
    std::string describe(const NodeGraph& graph) const override;
    std::vector<Sent> sent(const NodeGraph& graph, bool backward) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

  private:
    // The gradients of these tokens of the part, at `from` in what came home from some rank.
    struct Home {
        int64_t token, from, count;
    };
    void plan();
    void add_home(const Call& call, const Tensor& sum, const Tensor& came) const;

    const Options options_;
    const KeptKeys kept_keys_;
    const int64_t tokens_;  // of the part
    Exchange fetch_, bring_;
    std::vector<std::vector<Home>> homes_;  // by rank that they come from
    int64_t came_rows_ = 0;
    const Out kept_;
    const In k_, v_;
    Tmp own_, came_;
};

}  // namespace speedrun
