// Values on their way between the ranks of the tensor axis (Shoeybi et al. 2019, "Megatron-LM"; with shares of the tokens
// Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models").
#pragma once

#include "train/model/graph/call.h"
#include "train/parameters/tensor_cut.h"
#include "train/sharding/placement.h"

namespace speedrun {

// How a value lies on these ranks before and after, and, the other way, its gradient: Replicate (all have all of it), Partial
// (each has a term of the sum), Shard(0) (each has its share of the rows). What is read by parts of matrices has a gradient
// that is Partial.
struct Redistribution {
    Placement from, to;
    Placement gradient_from, gradient_to;  // of what is written, of what is read

    static Redistribution enter();    // what parts of matrices read is what all have
    static Redistribution gather();   // … is what each has a share of
    static Redistribution whole();    // likewise, for what all compute alike: each has all of the gradient
    static Redistribution sum();      // terms become what all have
    static Redistribution scatter();  // terms become shares of the sum
    static Redistribution slice();    // what all have is shared out
    static Redistribution term();     // what all have becomes the first one's term of a sum
    // Are both of one shape? Then the value stays where it is.
    bool in_place() const { return (from == Placement::shard(0)) == (to == Placement::shard(0)); }
};

class Redistribute final : public Node {
  public:
    struct Ports {
        ValueId y, x;  // (tokens, width) each, or a rank's share of the rows
    };
    struct Options {
        TensorPart part;
        int64_t tokens, width;
        Element element = Element::real;
    };
    Redistribute(const Ports& ports, const Redistribution& how, const Options& options);
    const char* kind() const override { return "redistribution"; }
    std::string describe(const NodeGraph& graph) const override;
    std::vector<Sent> sent(const NodeGraph& graph, bool backward) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

    // True if backward sends the gradient to other ranks.
    bool sends_gradient() const { return collective(true).has_value(); }
    // backward() of such a node in two halves. What the compute stream does between them hides the collective.
    void begin_backward(const Call& call) const;
    void end_backward(const Call& call) const;
    ValueId y() const { return value_of(y_); }

  private:
    struct Move {
        Placement from, to;
    };
    Move move_of(bool backward) const;
    // The collective of a pass; nothing where no rank sends.
    std::optional<Collective> collective(bool backward) const;
    // A move without a collective.
    void move_here(const Call& call, const Tensor& into, const Tensor& out_of, const Move& move) const;
    void begin_send(const Call& call, const Tensor& into, const Tensor& out_of, Collective kind) const;
    void move(const Call& call, const Tensor& into, const Tensor& out_of, bool backward) const;

    const Redistribution how_;
    const Options options_;
    const Out y_;
    const In x_;
};

}  // namespace speedrun
