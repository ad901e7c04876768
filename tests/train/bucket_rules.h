// Models and bucket rules of tests of buckets and owners.
#pragma once

#include "tests/train/small_model.h"
#include "train/model/build_model.h"
#include "train/sharding/bucket_layout.h"

namespace speedrun::testing {

inline ModelConfig odd_model() {
    return model_of("gpt2", {.layers = 3, .width = 48, .heads = 3, .vocabulary = 257});
}

inline ModelConfig gpt2_124m() {
    return model_of("gpt2", {.layers = 12, .width = 768, .heads = 12, .vocabulary = 50257});
}

constexpr int64_t kTarget = 20000;

// Group 0: the blocks' matrices. Its optimizer updates whole matrices.
inline BucketRules rules_for(const ParameterTable& table, int shards, int index = 0,
                             int64_t target = kTarget) {
    BucketRules rules;
    rules.num_shards = shards;
    rules.index = index;
    rules.target = target;
    for (const Parameter& p : table.all())
        rules.group_of.push_back(p.is_matrix() && p.unit() > 0 && p.unit() < 4 ? 0 : 1);
    rules.whole_matrix = {true, false};
    return rules;
}

}  // namespace speedrun::testing
