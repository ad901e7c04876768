// The row of the token before, where ranks share rows and another one may have it: zeros at the start of a row.
#pragma once

#include "data/kept_keys.h"
#include "train/comm/communicator.h"
#include "train/model/graph/call.h"

namespace speedrun {

class RowBefore final : public Node {
  public:
    struct Ports {
        ValueId y, x;  // (tokens, columns), of this rank's part
    };
    struct Options {
        ContextPart part;
        int64_t rows, sequence_length;  // of the microbatch
        int64_t columns;
    };
    RowBefore(const Ports& ports, const Options& options);
    const char* kind() const override { return "row before"; }
    std::vector<Sent> sent(const NodeGraph& graph, bool backward) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

  private:
    void plan();
    int64_t chunk_length() const { return options_.part.chunk_length(options_.sequence_length); }
    // The first token of each chunk, of these of all tokens.
    Tensor starts(const Tensor& tokens) const;

    const Options options_;
    const int64_t tokens_, chunks_;  // of the part
    Exchange fetch_, bring_;
    std::vector<int64_t> homes_;  // tokens whose rows were sent, as their gradients come back
    const Out y_;
    const In x_;
    Tmp starts_, came_;
};

}  // namespace speedrun
