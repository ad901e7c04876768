// Head and loss: losses[t] = cross entropy of softcap(x Wᵀ) against targets[t], or a weighted sum of cross entropies
// against several targets. The logits of all tokens exceed all other memory, so they are computed in chunks of rows.
// Forward computes and reads each chunk once. Backward recomputes it, overwrites it with its gradient and consumes that
// immediately. Ranks that share the vocabulary exchange two scalars per row (op::CrossEntropyPart), never logits.
#pragma once

#include <optional>
#include <string>

#include "kernels/ops/loss.h"
#include "train/model/nodes/quantized.h"
#include "train/parameters/tensor_cut.h"

namespace speedrun {

struct HeadOptions {
    int64_t num_tokens = 0;
    int64_t logit_rows = 0;                         // per chunk; divides num_tokens
    int64_t vocab_size = 0, padded_vocab_size = 0;  // logit columns; columns from vocab_size on are padding
    Softcap softcap = {};
    std::string softcap_text = {};  // displayed form
    bool prefixes = false;          // the last target is the first one's prefix
    TensorSlice part = {};          // part of the vocabulary
    std::optional<HeadFp8Config> fp8 = {};
    int64_t width = 0;  // required with fp8
};

class Head final : public Node {
  public:
    struct Ports {
        ValueId losses;                   // f32 (tokens)
        ValueId x;                        // (tokens, width)
        ValueId targets;                  // ids (tokens), or (K, tokens)
        ParameterId weight;               // (vocabulary, width)
        ValueId loss_weights = kNoValue;  // f32 (K)
    };
    Head(const Ports& ports, const HeadOptions& options);
    const char* kind() const override { return "head, loss"; }
    std::string describe(const NodeGraph& graph) const override;
    std::vector<Sent> sent(const NodeGraph& graph, bool backward) const override;
    void forward(const Call& call) const override;
    void backward(const Call& call) const override;
    bool forward_in_backward() const override { return true; }
    // Returns the logits of one token, real [1, vocabulary], before the softcap; valid until the next call.
    Tensor logits_of(const Call& call, int64_t token) const;

    const Softcap& softcap() const { return options_.softcap; }

  private:
    // Rows of a chunk with computed logits.
    struct Chunk {
        Tensor x, losses, targets;
        int64_t first = 0;  // row
    };
    // Outputs for a chunk's logit gradients: absent, in the compute dtype (dlogits alone), or in 8 bits (all three).
    struct LogitGradients {
        Tensor dlogits, transposed, scale;
    };
    // logits_of(chunk): enqueues the matmul.
    template <class Multiply, class Consume>
    void in_chunks(const Call& call, const Multiply& logits_of, const Consume& consume) const;
    void need_fp8();
    // Enqueues the chunk's contribution to dw, and its dx, from the gradient of its logits.
    void backward_chunk(const Call& call, const Chunk& chunk, const ParameterGradient& dw,
                        const Tensor& dx) const;
    void backward_fp8(const Call& call, const ParameterGradient& dw, const Tensor& dx) const;
    void multiply(const Call& call, const Chunk& chunk) const;
    void multiply_by_fp8(const Call& call, const Chunk& chunk) const;
    // Enqueues the losses of a chunk and, if dlogits is present, the gradient of its logits.
    void cross_entropy(const Call& call, const Chunk& chunk, const LogitGradients& to) const;
    bool shared() const { return options_.part.size > 1; }
    int64_t columns() const {  // columns of this rank
        return (options_.padded_vocab_size + options_.part.size - 1) / options_.part.size;
    }

    const Out losses_;
    const In x_, targets_, loss_weights_;
    const Par weight_;
    const HeadOptions options_;
    const Tmp logits_;
    Quantized x8_, weight8_, logits8_;  // logits8_: gradients of logits
    Tmp part_, parts_;  // shared vocabulary: partial results of each row's loss, of this rank and of all
};

}  // namespace speedrun
