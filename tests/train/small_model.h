// Models with few parameters: a preset with settings, and optimizer groups for them.
#pragma once

#include <fmt/core.h>

#include <string>
#include <vector>

#include "train/config/config_json.h"

namespace speedrun::testing {

using ModelSettings = std::vector<std::string>;  // KEY=VALUE, as --set

inline ModelSettings together(const std::vector<ModelSettings>& lists) {
    ModelSettings all;
    for (const ModelSettings& list : lists) all.insert(all.end(), list.begin(), list.end());
    return all;
}

struct ModelSizes {
    int64_t layers = 2, width = 16, heads = 2, vocabulary = 40;
};

inline ModelConfig model_of(const std::string& preset, const ModelSizes& sizes,
                            const ModelSettings& more = {}) {
    return parse_config(
               R"({"optimizers": {"groups": [{"params": ["*"]}]}})", "model",
               together({{"model.preset=" + preset, fmt::format("model.layers.count={}", sizes.layers),
                          fmt::format("model.model_dim={}", sizes.width),
                          fmt::format("model.layers.each.attention.heads={}", sizes.heads),
                          fmt::format("model.vocab_size={}", sizes.vocabulary)},
                         more}))
        .model;
}

inline ModelConfig tiny_model(const std::string& preset = "modern", const ModelSettings& more = {}) {
    return model_of(preset, {}, more);
}

// Tables added to a preset: one of values for each of the last layers, and n-grams.
struct MoreTables {
    int64_t layers = 2;  // layers of the model
    int64_t values = 0;
    int64_t max_ngram = 0, ngram_rows = 8192;  // 0: no n-grams
};
inline ModelSettings with_tables(const MoreTables& more) {
    std::string tables, at, input = R"({"type": "table", "table": "embed"})";
    const auto add = [](std::string& list, const std::string& entry) {
        list += (list.empty() ? "" : ", ") + entry;
    };
    if (more.max_ngram > 0) {
        add(tables, fmt::format(R"("ngram_embed": {{"rows": "ngrams", "max_ngram": {}, "num_rows": {}}})",
                                more.max_ngram, more.ngram_rows));
        add(input, R"({"type": "table", "table": "ngram_embed"})");
    }
    for (int64_t i = 0; i < more.values; ++i) {
        add(tables, fmt::format(R"("value_embed.{}": {{"init": {{"type": "normal", "value": 1}}}})", i));
        add(at, fmt::format(R"("{}": {{"attention": {{"value_table": "value_embed.{}"}}}})",
                            more.layers - more.values + i, i));
    }
    add(input, R"({"type": "norm"})");
    return {"model.tables={" + tables + "}", "model.layers.at={" + at + "}", "model.input=[" + input + "]"};
}

// Layers start from a·x + b·x0.
inline const std::string kMix =
    R"(model.layers.each.enter=[{"terms": [{"of": "stream", "scale": 1, "name": "mix"},
                                           {"of": "first", "scale": 0, "name": "mix"}]}])";

// Output matrices and head that start as other matrices do, in place of zero.
inline ModelSettings nonzero_outputs() {
    const std::string init = R"(={"type": "uniform", "value": 0.5, "by_fan_in": true})";
    return {"model.layers.each.attention.out_init" + init, "model.layers.each.mlp.down_init" + init,
            "model.head.init" + init};
}

inline OptimizerGroupConfig optimizer_group(OptimizerKind type, const std::vector<std::string>& params) {
    OptimizerGroupConfig group;
    group.type = type;
    group.params = params;
    return group;
}

inline OptimizersConfig muon_and_adamw() {
    OptimizersConfig config;
    config.groups = {optimizer_group(OptimizerKind::muon, {"blocks.*.weight"}),
                     optimizer_group(OptimizerKind::adamw, {"*"})};
    return config;
}

}  // namespace speedrun::testing
