// Attention of ranks that share rows, over the keys of one rank after the other (Liu et al. 2023, "Ring attention with
// blockwise transformers for near-infinite context"): no rank ever has the keys of a whole row, and while it attends to
// those of one rank, those of the next are on their way.
#pragma once

#include "train/model/graph/call.h"
#include "train/model/nodes/key_travel.h"

namespace speedrun {

// In step d a rank attends to the keys of the rank d behind it, around the ring; step 0 has its own. Forward merges them by
// their log-sums, in f32 and in ascending order of ranks: those of this rank and above in one sum as they come, those below in
// another, which the first is added to at the end. Backward fetches the keys again; the gradients of a step's keys go home
// beside the attention of the next, and are summed in f32 in the order of steps.
class RingAttention final : public Node {
  public:
    // What a step's queries see, as ids (tokens) of its keys: the last of them, and the first.
    struct Seen {
        ValueId place, first_key;
    };
    struct Ports {
        ValueId out;             // (tokens, head_width)
        ValueId lse;             // f32 (heads, tokens)
        ValueId q, k, v;         // (tokens, head_width), of this rank's part
        std::vector<Seen> seen;  // by step; kNoValue where a step has no keys
    };
    struct Options {
        SharedKeys keys;
        int64_t num_heads, head_dim;
        float scale;
        bool documents;
    };
    // The keys of step d; those of step 0 lie among padding, as rows of the part's length.
    static KeptKeys keys_of_step(const SharedKeys& keys, int step);

    RingAttention(const Ports& ports, const Options& options);
    const char* kind() const override { return "ring attention"; }
    std::string describe(const NodeGraph& graph) const override;
    std::vector<Sent> sent(const NodeGraph& graph, bool backward) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;

  private:
    struct KeyStep {
        int64_t keys;  // of a row
        AttentionOptions attention;
        In place, first_key;
    };
    // What travels in each step of this microbatch.
    using Travels = std::vector<KeyTravel>;
    KeyStep make_step(int d, const Ports& ports);
    KeyTravel travel(int d, const std::vector<int32_t>& documents) const;
    Travels travels(const Call& call) const;
    // Does no query see a key of this step?
    static bool idle(const Travels& travels, int d);
    int steps() const { return static_cast<int>(steps_.size()); }
    // The buffer of a step's keys, those of step 0 being `own`, and of what is computed of them.
    Tensor keys(const Call& call, int d) const;
    Tensor key_gradients(const Call& call, int d) const;
    void pack_own(const Call& call) const;
    void fetch(const Call& call, const Travels& travels, int d, Stream& stream) const;
    void bring(const Call& call, const Travels& travels, int d, Stream& stream) const;
    void attend(const Call& call, int d, const Tensor& out, const Tensor& lse) const;
    // What a row of steps gave, merged.
    struct Merged {
        Tensor sum;      // f32 (tokens, head_width)
        Tensor lses[2];  // f32 (heads, tokens): one is read while the other is written
        int count = 0;

        const Tensor& lse() const { return lses[count % 2]; }
        const Tensor& next_lse() const { return lses[(count + 1) % 2]; }
    };
    void merge(const Call& call, Merged& into, const Tensor& out, const Tensor& lse) const;
    // Does step d have the keys of a lower rank, which comes after the last one?
    bool is_below(int d) const { return options_.keys.part.index + d >= options_.keys.part.size; }
    void attend_backward(const Call& call, int d) const;
    void add_home(const Call& call, const Travels& travels, int d) const;

    const Options options_;
    const int64_t tokens_;  // of the part
    const Out out_, lse_;
    const In q_, k_, v_;
    std::vector<KeyStep> steps_;
    Tmp own_, fetched_[2];  // keys beside values
    Tmp piece_, piece_lse_;
    Tmp query_sum_, key_sum_;  // f32; forward: of outputs, of ranks from this one on, in query_sum …
    Tmp below_sum_, upper_lse_[2], below_lse_[2];  // … and of ranks below
    Tmp key_gradients_[2], came_;
};

}  // namespace speedrun
