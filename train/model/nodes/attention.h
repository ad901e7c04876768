// Attention, and the norm and rotation of queries and keys before it.
#pragma once

#include "train/model/graph/call.h"

namespace speedrun {

struct RotaryTables {
    ValueId cos = kNoValue, sin = kNoValue;  // constants (positions, half_head)
    ValueId positions = kNoValue;            // ids (tokens), or (tokens, n): head h uses column h mod n
    std::string described = {};              // deviations from the default, for describe()
};

// RMS-normalizes queries and keys per head and rotates them by position (op::QkNormRotaryForward).
class QkNormRotary final : public Node {
  public:
    struct Ports {
        ValueId q, k;  // views of projected_q and projected_k, or values with memory of their own
        ValueId rstd;  // f32 (tokens, 2 × heads)
        ValueId projected_q, projected_k;
        RotaryTables tables = {};
    };
    // apart: q and k have memory of their own.
    QkNormRotary(const Ports& ports, const RotaryOptions& options, bool apart);
    const char* kind() const override { return "QK-norm, rotary"; }
    std::string describe(const NodeGraph& graph) const override;
    void forward(const Call& call) const override { enqueue(call, {}); }
    // Enqueues this node and a mix of values as one operation.
    void enqueue(const Call& call, const ValueMix& value) const;
    void backward(const Call& call) const override;
    ValueId q() const { return value_of(q_); }
    ValueId k() const { return value_of(k_); }
    bool is_in_place() const { return !apart_; }
    // True if enqueue() can mix values of this width.
    bool fits_mix_of(int64_t columns) const { return columns % (2 * options_.num_heads) == 0; }
    // Operands of backward, for an operation that includes it.
    RotaryOfInputs of_inputs(const Call& call) const;

  private:
    const Out q_, k_, rstd_;
    const In projected_q_, projected_k_, cos_, sin_, positions_;
    const RotaryOptions options_;
    const bool apart_;
    const std::string angles_;
};

class Attention final : public Node {
  public:
    struct Ports {
        ValueId out;               // (tokens, head_width)
        ValueId lse;               // f32 (heads, tokens)
        ValueId q, k;              // (tokens, qk_width); with place, k (keys, qk_width)
        ValueId v;                 // (tokens, head_width); with place (keys, head_width)
        ValueId first_key;         // ids (tokens)
        ValueId place = kNoValue;  // ids (tokens): index of each query among the keys of its row
    };
    // rows_of_token: 2 if each token has two rows, each with half of its heads, in values without gaps. The options
    // then describe such rows, and first_key is (tokens, 2).
    Attention(const Ports& ports, const AttentionOptions& options, int64_t rows_of_token = 1);
    const char* kind() const override { return "attention"; }
    std::string describe(const NodeGraph& graph) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override { backward_of(call, {}); }
    void backward_of(const Call& call, const RotaryOfInputs& rotary) const;
    ValueId q() const { return value_of(q_); }
    ValueId k() const { return value_of(k_); }
    HeadWidths widths(const NodeGraph& graph) const;

  private:
    // Returns a value with rows_of_token_ rows per token.
    Tensor rows_of(const Tensor& x) const;

    const Out out_, lse_;
    const In q_, k_, v_, first_key_, place_;
    const AttentionOptions options_;
    const int64_t rows_of_token_;
};

}  // namespace speedrun
