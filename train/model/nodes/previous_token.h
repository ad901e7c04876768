// The previous token's row, for rows shared by ranks, where another rank may hold it; zero at the start of a row.
#pragma once

#include "train/model/nodes/chunk_borders.h"

namespace speedrun {

class PreviousToken final : public Node {
  public:
    struct Ports {
        ValueId y, x;  // (tokens, columns), this rank's part
    };
    PreviousToken(const Ports& ports, const ChunkBorders::Options& options);
    const char* kind() const override { return "row before"; }
    std::vector<Sent> sent(const NodeGraph& /*graph*/, bool /*backward*/) const override {
        return borders_.sent();
    }
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

  private:
    const ChunkBorders borders_;
    const Out y_;
    const In x_;
    Tmp before_, ends_;
};

}  // namespace speedrun
