// Keys with some dimensions taken from the previous token.
#pragma once

#include <optional>

#include "train/model/nodes/chunk_borders.h"

namespace speedrun {

// Shifts the dimensions of k that rotary does not rotate by one row (op::OffsetKeysForward).
class KeyOffset final : public Node {
  public:
    struct Ports {
        ValueId y, k;  // (tokens, qk_width)
    };
    // borders: set for rows shared by ranks. The sequences of `options` are then chunks.
    KeyOffset(const Ports& ports, const KeyOffsetOptions& options,
              const std::optional<ChunkBorders::Options>& borders);
    const char* kind() const override { return "key offset"; }
    std::string describe(const NodeGraph& graph) const override;
    std::vector<Sent> sent(const NodeGraph& /*graph*/, bool /*backward*/) const override {
        return borders_ ? borders_->sent() : std::vector<Sent>{};
    }
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

  private:
    void forward_over_borders(const Call& call) const;
    void backward_over_borders(const Call& call) const;
    // Returns the options for sequences of `rows` rows.
    KeyOffsetOptions of_length(int64_t rows) const;

    std::optional<ChunkBorders> borders_;
    const Out y_;
    const In k_;
    const KeyOffsetOptions options_;
    Tmp before_, ends_, from_, to_;
};

}  // namespace speedrun
