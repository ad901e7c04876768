// Head and loss: losses[t] = cross entropy of softcap(x W ᵀ) against targets[t], or the weighted sum of those against
// several targets. The logits of all tokens are larger than all else, so they are computed in chunks of rows: by forward
// to be read once, by backward once more, where they become their own gradient and are used up at once. Ranks that share the
// vocabulary tell each other two numbers of each row (op::CrossEntropyPart), never logits.
#pragma once

#include <optional>
#include <string>

#include "kernels/ops/loss.h"
#include "train/model/nodes/quantized.h"
#include "train/parameters/tensor_cut.h"

namespace speedrun {

struct HeadOptions {
    int64_t num_tokens = 0;
    int64_t logit_rows = 0;                         // of a chunk; divides num_tokens
    int64_t vocab_size = 0, padded_vocab_size = 0;  // columns of the logits beyond the first are padding
    Softcap softcap = {};
    std::string softcap_text = {};  // as people write it
    bool prefixes = false;          // the last of the targets is the first one's prefix
    TensorPart part = {};           // of the vocabulary
    std::optional<HeadFp8Config> fp8 = {};
    int64_t width = 0;  // with fp8
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
    // Logits of one token, real [1, vocabulary], before the softcap; good until the next call.
    Tensor logits_of(const Call& call, int64_t token) const;

    const Softcap& softcap() const { return options_.softcap; }

  private:
    // Rows of a chunk, after their product.
    struct Chunk {
        Tensor x, losses, targets;
        int64_t first = 0;  // row
    };
    // Where a chunk's go: absent, as logits are, or, with all three, in 8 bits.
    struct LogitGradients {
        Tensor dlogits, transposed, scale;
    };
    // logits_of(chunk): enqueues the product.
    template <class Multiply, class Consume>
    void in_chunks(const Call& call, const Multiply& logits_of, const Consume& consume) const;
    void need_fp8();
    // Contributions of a chunk, by the gradient of its logits, where `cross_entropy` has put it: to dw, and all of dx.
    void give(const Call& call, const Chunk& chunk, const ParameterGradient& dw, const Tensor& dx) const;
    void give_by_fp8(const Call& call, const ParameterGradient& dw, const Tensor& dx) const;
    void multiply(const Call& call, const Chunk& chunk) const;
    void multiply_by_fp8(const Call& call, const Chunk& chunk) const;
    // Losses of a chunk and, where there are dlogits, the gradient of its logits.
    void cross_entropy(const Call& call, const Chunk& chunk, const LogitGradients& to) const;
    bool shared() const { return options_.part.size > 1; }
    int64_t columns() const {  // of this rank
        return (options_.padded_vocab_size + options_.part.size - 1) / options_.part.size;
    }

    const Out losses_;
    const In x_, targets_, loss_weights_;
    const Par weight_;
    const HeadOptions options_;
    const Tmp logits_;
    Quantized x8_, weight8_, logits8_;  // those of gradients of logits
    Tmp part_, parts_;  // where the vocabulary is shared: what this rank has of each row's loss, and all have
};

}  // namespace speedrun
