// The two timed models, at full size (124M, 32,768 tokens) and at a small size for dry runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace speedrun::bench {

struct ModelShape {
    std::string name;
    int64_t tokens, sequence_length;  // T, S
    int64_t width, num_heads, head_dim, mlp_width;
    int64_t vocab_size, padded_vocab;
    int64_t window;         // visible keys per query; 0: all
    int64_t mean_document;  // mean document length in tokens; 0: a document is a sequence
    int64_t value_dim = 0;  // columns of a head of v; 0: head_dim
};

struct Shapes {
    ModelShape recipe, gpt2;
    // Causal attention with constant total work per token, as published.
    int64_t attention_tokens, attention_width;
    std::vector<int64_t> attention_sequences;
};

Shapes full_shapes();
Shapes small_shapes();

struct Documents {
    std::vector<int32_t> first_key;  // first visible key of each token
    std::vector<int32_t> position;   // position within its document
    double visible_keys = 0;         // sum over all tokens, with causality and window
};
// Documents of exponentially distributed length (at least 16 tokens, cut at 2048 and at the sequence).
Documents documents_of(const ModelShape& shape);

}  // namespace speedrun::bench
