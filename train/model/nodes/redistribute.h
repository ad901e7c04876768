// Redistribution of values over the tensor axis (Shoeybi et al. 2019, "Megatron-LM"; with sequence parallelism
// Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models").
#pragma once

#include "train/model/graph/call.h"
#include "train/parameters/tensor_cut.h"
#include "train/sharding/placement.h"

namespace speedrun {

// Placement of a value before and after, and of its gradient in the reverse direction. Replicate: all ranks hold the
// value. Partial: each rank holds a term of the sum. Shard(0): each rank holds a share of the rows. Inputs of
// column-parallel matrices have Partial gradients.
struct Redistribution {
    Placement from, to;
    Placement gradient_from, gradient_to;  // gradient of the output, of the input

    static Redistribution enter();    // Replicate to Replicate; the output feeds a column-parallel matrix
    static Redistribution gather();   // Shard to Replicate; the output feeds a column-parallel matrix
    static Redistribution whole();    // as gather(), for replicated compute: the gradient is already complete
    static Redistribution sum();      // Partial to Replicate
    static Redistribution scatter();  // Partial to Shard
    static Redistribution slice();    // Replicate to Shard
    static Redistribution term();     // Replicate to Partial: zero on all ranks but the first
    // True if the local shape does not change: the value stays in its memory.
    bool in_place() const { return (from == Placement::shard(0)) == (to == Placement::shard(0)); }
};

class Redistribute final : public Node {
  public:
    struct Ports {
        ValueId y, x;  // (tokens, width) each, or a rank's share of the rows
    };
    struct Options {
        TensorSlice part;
        int64_t tokens, width;
        Element element = Element::compute_dtype;
    };
    Redistribute(const Ports& ports, const Redistribution& how, const Options& options);
    const char* kind() const override { return "redistribution"; }
    std::string describe(const NodeGraph& graph) const override;
    std::vector<Sent> sent(const NodeGraph& graph, bool backward) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

    // True if backward sends the gradient to other ranks.
    bool sends_gradient() const { return collective(true).has_value(); }
    // backward() of such a node in two parts. Compute work between them overlaps with the collective.
    void begin_backward(const Call& call) const;
    void end_backward(const Call& call) const;
    ValueId y() const { return value_of(y_); }

  private:
    struct Move {
        Placement from, to;
    };
    Move move_of(bool backward) const;
    // Returns the collective of a pass; nullopt if it needs no communication.
    std::optional<Collective> collective(bool backward) const;
    // Performs a move without communication.
    void move_here(const Call& call, const Tensor& into, const Tensor& out_of, const Move& move) const;
    void begin_send(const Call& call, const Tensor& into, const Tensor& out_of, Collective kind) const;
    void move(const Call& call, const Tensor& into, const Tensor& out_of, bool backward) const;

    const Redistribution how_;
    const Options options_;
    const Out y_;
    const In x_;
};

}  // namespace speedrun
