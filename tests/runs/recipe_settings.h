// A model with the parts of speedrun recipes.
#pragma once

#include "tests/runs/rank_run_fixture.h"

namespace speedrun::testing {

// Value embeddings in layer 2 only. No matrix is initialised to zero, so that every part has an effect from the first step.
inline Settings recipe_settings() {
    return {
        R"(model={"preset": "none", "model_dim": 32, "vocab_size": 32,
                "tables": {"embed": {"init": {"type": "normal", "value": 1}},
                           "values": {"init": {"type": "normal", "value": 1}}},
                "norms": {"epsilon": 0.001},
                "windows": {"short": [4, 5, 9], "long": [7, 9, 17]},
                "input": [{"type": "table", "table": "embed"}, {"type": "norm"}],
                "layers": {"count": 3,
                    "each": {"attention": {"heads": 2, "window": "short", "value_scale": true,
                                           "rotary": {"base": 64, "fraction": 0.5, "endpoint": true,
                                                      "yarn": {"window": "long", "beta": 4}},
                                           "out_init": {"type": "normal", "value": 0.2}},
                             "mlp": {"ratio": 2, "down_init": {"type": "normal", "value": 0.2}}},
                    "at": {"0": {"attention": {"exclude_own_value": {"start": 0.5}}},
                           "1": {"attention": {"window": "long"}},
                           "2": {"attention": {"value_table": "values", "exclude_own_value": {"start": -0.5}}}}},
                "output": [{"type": "norm"}],
                "head": {"init": {"type": "normal", "value": 0.1}, "softcap": 23, "softcap_function": "sigmoid",
                         "logit_shift": 5, "logit_scale": 7.5},
                "loss": {"gradient_divisor": 4}})",
        kSanitized ? "schedule.steps=3" : "schedule.steps=12",
        kSanitized ? "schedule.stages=[1, 2, 3]" : "schedule.stages=[4, 8, 12]",
        "eval.windows={\"long\": 25}",
        "batch.sequence_length=32",
        "batch.microbatch_tokens=128",
        "batch.tokens_per_step=512",
        "eval.every=5",
        "threads=1"};
}

}  // namespace speedrun::testing
