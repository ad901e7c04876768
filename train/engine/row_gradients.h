// Loss and raw gradients of one row of tokens, for comparison with another implementation of the model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/checkpoint/safetensors.h"
#include "train/config/config.h"

namespace speedrun {

// A row: each token but the last is followed by its target.
struct TokenRow {
    std::vector<int32_t> tokens;
    int64_t separator = -1;  // token that starts a document; -1: the row is one document
};

// Reads the first `length` + 1 tokens of a shard or of a file of 16-bit little-endian tokens; length 0: all tokens.
// Throws a data error that names the file if it is missing, too short, or ends in half a token.
std::vector<int32_t> read_token_row(const std::string& path, int64_t length);

struct RowGradients {
    int64_t targets = 0;
    double loss_sum = 0;  // nats, sum over all targets
    double loss_mean() const { return loss_sum / static_cast<double>(targets); }
    float gradient_scale = 0;  // gradients are of gradient_scale * loss_sum
    double gradient_norm = 0;
    // f32: loss.mean and loss.sum [1], losses [T] per token, and each parameter's gradient under its name and in its
    // shape.
    std::vector<NamedTensor> tensors;
};

// Computes loss and gradients with the f32 weights of a safetensors file, which contains each parameter by name.
// `stage` of the config's schedule selects windows and loss weights. Gradients are scaled as in a step of this row
// alone (LossConfig::gradient_scale), and neither reduced nor clipped.
// Throws a data error that lists every tensor that is missing, unknown or of another shape, or every token outside the
// vocabulary. Throws a usage error for a row that is too short or exceeds the model's position table.
RowGradients row_gradients(const Config& config, int64_t stage, const std::string& weights,
                           const TokenRow& row);

}  // namespace speedrun
