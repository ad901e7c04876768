// The loss: weighted cross entropies of the next tokens, and of the longest prefix of the next token.
#pragma once

#include <cstdint>
#include <vector>

#include "train/fields/field_visitor.h"
#include "train/fields/scheduled.h"

namespace speedrun {

class GraphWriter;

struct LossConfig {
    bool padding = false;
    std::vector<Scheduled<double>> weights{1.0};  // for the next token, the one after it, …
    Scheduled<double> prefix_weight = 0;          // for the longest token that the next one begins with
    double gradient_divisor = 0;  // divisor of the sum of a step's losses; 0: the number of its targets

    void fields(FieldVisitor& v);
    // Throws a usage error for a number of targets that the operation refuses, and for a first weight of 0.
    void check() const;
    int64_t num_tokens() const { return static_cast<int64_t>(weights.size()); }  // targets without the prefix
    bool counts_prefixes() const;  // true in all stages if in any
    int64_t num_targets() const { return num_tokens() + (counts_prefixes() ? 1 : 0); }
    LossConfig in_stage(int64_t stage) const;
    // Returns the weights of all targets at this point of a run, the prefix last if it counts. For a config of one stage.
    std::vector<float> numbers_at(const StagePoint& point) const;
    // Returns the factor of gradients for a sum of a step's losses over all ranks and microbatches.
    float gradient_scale(int64_t step_targets) const {
        return static_cast<float>(
            1.0 / (gradient_divisor > 0 ? gradient_divisor : static_cast<double>(step_targets)));
    }
    // True if the next token is the only target in every stage.
    bool is_plain() const { return weights == std::vector<Scheduled<double>>{1.0} && !counts_prefixes(); }
    // Declares the batch columns: targets, and their weights unless the loss is plain.
    void add_columns(GraphWriter& w) const;
};

}  // namespace speedrun
