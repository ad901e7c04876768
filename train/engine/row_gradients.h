// Loss and raw gradients of one row of tokens, for comparing a model with another implementation of it.
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
    int64_t separator = -1;  // the token that documents start with; -1: the row is one document
};

// Reads the first `length` + 1 tokens of a file of 16-bit little-endian tokens, or all of them for length 0; of a shard (its
// header tells) likewise. Throws a data error that names the file for one that is not there, has fewer tokens or half a one.
std::vector<int32_t> read_token_row(const std::string& path, int64_t length);

struct RowGradients {
    int64_t targets = 0;
    double loss_sum = 0;  // nats, over all targets
    double loss_mean() const { return loss_sum / static_cast<double>(targets); }
    float gradient_scale = 0;  // gradients are those of this times the sum
    double gradient_norm = 0;
    // f32: loss.mean and loss.sum [1], losses [T] of each token, and each parameter's gradient under its name and in its shape.
    std::vector<NamedTensor> tensors;
};

// Loss and gradients with the weights of a safetensors file, which has each parameter by its name, f32. `stage` of config's schedule
// says windows and weights of the loss; gradients are scaled as those of a step that has this row alone
// (LossConfig::gradient_scale), and neither reduced nor clipped. Throws a data error naming every tensor that is missing,
// unknown or of another shape, and every token outside of the vocabulary; a usage error for a row that is too short, or longer
// than the model's table of positions.
RowGradients row_gradients(const Config& config, int64_t stage, const std::string& weights,
                           const TokenRow& row);

}  // namespace speedrun
