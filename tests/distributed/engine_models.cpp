#include "tests/distributed/engine_models.h"

#include <utility>

#include "train/config/config_json.h"
#include "train/model/parts/compose_heads.h"
#include "train/model/parts/paired_heads.h"
#include "train/model/parts/value_gate.h"

namespace speedrun::testing {

namespace {

ModelConfig with_heads(ModelConfig model, int64_t heads) {
    model.parts.layers.each.attention->heads = heads;
    for (LayersAt& at : model.parts.layers.at)
        if (at.layer && at.layer->attention) at.layer->attention->heads = heads;
    return model;
}

}  // namespace

// What no preset has: a table of values in two layers that are no neighbours, a smear, n-grams behind it, gates, a skip, a backout,
// outputs without what lies along own values, and layers without attention or MLP.
ModelConfig model_in_parts(int64_t heads) {
    ModelConfig model = parse_config(R"({
        "model": {
            "preset": "none", "model_dim": 48, "vocab_size": 257,
            "tables": {"embed": {"init": {"type": "normal", "value": 1}},
                       "grams": {"rows": "ngrams", "max_ngram": 3, "num_rows": 101, "init": {"type": "normal", "value": 0.5}},
                       "values": {"init": {"type": "normal", "value": 1}}},
            "input": [{"type": "table", "table": "embed"}, {"type": "smear", "start": 0.5},
                      {"type": "table", "table": "grams"}, {"type": "norm"}],
            "layers": {
                "count": 4,
                "each": {"enter": [{"terms": [{"of": "stream", "scale": 1, "name": "mix"}, {"of": "first", "scale": 0, "name": "mix"}]}],
                         "attention": {"heads": 3, "gate": {}, "value_table": "values",
                                       "out_init": {"type": "uniform", "value": 0.5, "by_fan_in": true}},
                         "mlp": {"down_init": {"type": "uniform", "value": 0.5, "by_fan_in": true}}},
                "at": {"1": {"attention": null},
                       "2": {"mlp": null, "attention": {"value_table": "", "exclude_own_value": {"start": 0.25}}},
                       "3": {"enter": [{"terms": [{"of": "stream"}, {"of": "after 0", "gate": 0.5}]},
                                       {"terms": [{"of": "stream", "scale": 1, "name": "mix"}, {"of": "first", "scale": 0, "name": "mix"}]}],
                             "attention": {"exclude_own_value": {"start": -0.75}}}}},
            "output": [{"type": "sum", "terms": [{"of": "stream"}, {"of": "after 1", "constant": -1, "scale": 0.2}]}, {"type": "norm"}],
            "head": {"init": {"type": "uniform", "value": 0.5, "by_fan_in": true}},
            "loss": {"weights": [1, 0.5]}},
        "batch": {"sequence_length": 16},
        "optimizers": {"groups": [{"params": ["*"]}]}})",
                                     "test", {})
                            .model;
    return with_heads(std::move(model), heads);
}

ModelConfig model_in_eight_bits(int64_t heads) {
    ModelConfig model = model_in_parts(heads);
    model.parts.head.fp8 = HeadFp8Config{};
    // Constants: what ranks round does not depend on how many there are.
    constexpr Fp8ScaleConfig kNormed{Fp8ScaleBy::constant, 1.0 / 64},
        kMatrix{Fp8ScaleBy::constant, 1.0 / 512};
    for (std::optional<MlpConfig>* mlp : {&model.parts.layers.each.mlp, &model.parts.layers.at[0].layer->mlp})
        (*mlp)->up_fp8 = (*mlp)->down_fp8 = {kNormed, kMatrix};
    return model;
}

ModelConfig model_with_kept_scales(int64_t heads) {
    ModelConfig model = model_in_eight_bits(heads);
    // No step is exact: those are by what a rank has.
    constexpr Fp8ScaleConfig kKept{.by = Fp8ScaleBy::last_step, .value = 1.25, .exact_steps = 0};
    for (std::optional<MlpConfig>* mlp : {&model.parts.layers.each.mlp, &model.parts.layers.at[0].layer->mlp})
        (*mlp)->up_fp8 = (*mlp)->down_fp8 = {kKept, kKept};
    return model;
}

ModelConfig injected_model(int64_t heads) {
    ModelConfig model = parse_config(R"({
        "model": {
            "preset": "none", "model_dim": 48, "vocab_size": 257,
            "tables": {"embed": {"init": {"type": "normal", "value": 1}},
                       "pairs": {"rows": "ngrams", "hash": "products", "num_rows": 101, "sign_rows": 60,
                                 "init": {"type": "normal", "value": 0.5}}},
            "input": [{"type": "table", "table": "embed"}, {"type": "norm"}, {"type": "sum", "terms": [{"of": "stream"}, {"table": "pairs", "scale": 0.3}]}],
            "layers": {
                "count": 3,
                "each": {"attention": {"out_init": {"type": "uniform", "value": 0.5, "by_fan_in": true},
                                       "after": [{"of": "stream", "scale": 1.05}, {"of": "output", "scale": 1}, {"of": "first", "scale": 0.1},
                                                 {"table": "pairs", "scale": 0.2}]},
                         "mlp": {"down_init": {"type": "uniform", "value": 0.5, "by_fan_in": true}, "after": [{"of": "stream", "scale": 1}, {"of": "output", "scale": 0.9}]}},
                "at": {"1": {"attention": null}}},
            "output": [{"type": "norm"}],
            "head": {"init": {"type": "uniform", "value": 0.5, "by_fan_in": true}},
            "loss": {"weights": [1, 0.5], "prefix_weight": 0.25}},
        "batch": {"sequence_length": 16},
        "optimizers": {"groups": [{"params": ["*"]}]}})",
                                     "test", {})
                            .model;
    return with_heads(std::move(model), heads);
}

// Numbers of each token from networks of what the input gave and of what a layer gave, for heads and for the stream; attention
// that reads what an earlier layer gave.
ModelConfig model_with_networks(int64_t heads) {
    ModelConfig model = parse_config(R"({
        "model": {
            "preset": "none", "model_dim": 48, "vocab_size": 257,
            "tables": {"embed": {"init": {"type": "normal", "value": 1}}},
            "networks": {"early": {"hidden": 20, "learned_scale": "gates", "init": {"type": "normal", "value": 0.3}},
                         "late": {"input": "after 1", "hidden": 20, "learned_scale": "gates"}},
            "input": [{"type": "table", "table": "embed"}, {"type": "norm"}],
            "layers": {
                "count": 4,
                "each": {"attention": {"out_init": {"type": "uniform", "value": 0.5, "by_fan_in": true},
                                       "exclude_own_value": {"network": "early", "start": 0.2},
                                       "gate": {"network": "early", "start": 0.7}},
                         "mlp": {"down_init": {"type": "uniform", "value": 0.5, "by_fan_in": true},
                                 "after": [{"of": "stream", "scale": 1.05, "network": "early"}, {"of": "output", "scale": 1, "network": "early"}]}},
                "at": {"1": {"attention": null},
                       "2": {"attention": {"reads": "after 0"}},
                       "3": {"attention": {"reads": "after 0", "exclude_own_value": {"network": "late"}, "gate": {"network": "late"},
                                           "after": [{"of": "stream", "scale": 1}, {"of": "output", "scale": 1},
                                                     {"of": "first", "scale": 0.1, "network": "late"}, {"of": "after 1", "scale": 0.1}]},
                             "enter": [{"terms": [{"of": "stream"}, {"of": "after 0", "scale": 0.5, "network": "late", "gate": 0.5, "name": "skip"}]},
                                       {"terms": [{"of": "stream", "scale": 1, "network": "late"}, {"of": "input", "network": "late"}]}],
                             "mlp": {"after": []}}}},
            "output": [{"type": "sum", "terms": [{"of": "stream"}, {"of": "input", "scale": 0.1}, {"of": "after 1", "network": "late"}]}, {"type": "norm"}],
            "head": {"init": {"type": "uniform", "value": 0.5, "by_fan_in": true}}},
        "batch": {"sequence_length": 16},
        "optimizers": {"groups": [{"params": ["*"]}]}})",
                                     "test", {})
                            .model;
    return with_heads(std::move(model), heads);
}

// Values with what other places of the stream give, and with gated rows of a table.
ModelConfig model_with_places(int64_t heads) {
    ModelConfig model = model_with_networks(heads);
    model.parts.tables.emplace_back("values", model.parts.tables.front().second);
    model.parts.layers.each.attention->value_table = "values";
    model.parts.layers.each.attention->parts.set(ValueGatePart{});
    for (LayersAt& at : model.parts.layers.at)
        if (at.numbers == "3")
            at.layer->attention->values = {{.of = "input", .scale = 0.2, .network = "late"},
                                           {.of = "after 1", .scale = -0.3, .network = "late"},
                                           {.of = "stream", .scale = 0.1}};
    return model;
}

// The last layer stays as it was, so that both kinds are there.
ModelConfig with_composed_heads(ModelConfig model) {
    ComposeHeadsPart composed;
    composed.keys = 6;
    composed.maps_start = 0.5;
    composed.output_start = 0.4;
    for (std::optional<AttentionConfig>* attention :
         {&model.parts.layers.each.attention, &model.parts.layers.at[1].layer->attention})
        (*attention)->parts.set(composed);
    return model;
}

// All that the newest recipes have at once. Where ranks share matrices, attention of layers 0, 1, 4 and 5 is whole, and 2 and
// 6 are divided; 4, 5 and 6 read one norm.
ModelConfig newest_model(int64_t heads, bool untied) {
    ModelConfig model = parse_config(R"({
        "model": {
            "preset": "none", "model_dim": 48, "vocab_size": 257,
            "tables": {"embed": {"init": {"type": "normal", "value": 0.5}},
                       "pairs": {"rows": "ngrams", "hash": "products", "num_rows": 101, "sign_rows": 60,
                                 "init": {"type": "normal", "value": 0.5}},
                       "values": {"init": {"type": "normal", "value": 1}},
                       "late": {"init": {"type": "normal", "value": 1}}},
            "networks": {"early": {"hidden": 20, "learned_scale": "gates", "init": {"type": "normal", "value": 0.3}},
                         "late": {"input": "after 1", "hidden": 20, "learned_scale": "gates"},
                         "last": {"input": "after 4", "hidden": 20}},
            "input": [{"type": "table", "table": "embed"}, {"type": "smear", "start": 0.5}, {"type": "norm"},
                      {"type": "sum", "terms": [{"of": "stream"}, {"table": "pairs", "scale": 0.3}]}],
            "layers": {
                "count": 7,
                "each": {"attention": {"heads": 6, "out_init": {"type": "uniform", "value": 0.5, "by_fan_in": true},
                                       "exclude_own_value": {"network": "early", "start": 0.2},
                                       "after": [{"of": "stream", "scale": 1.05}, {"of": "output", "scale": 1}, {"of": "first", "scale": 0.1},
                                                 {"table": "pairs", "scale": 0.2}]},
                         "mlp": {"down_init": {"type": "uniform", "value": 0.5, "by_fan_in": true}, "after": [{"of": "stream", "scale": 1}, {"of": "output", "scale": 0.9}]}},
                "at": {"0": {"attention": {"paired": true, "exclude_own_value": null, "window": "7"}},
                       "1": {"attention": {"value_table": "values", "value_gate": {}}},
                       "2": {"attention": {"key_offset": true, "rotary": {"fraction": 0.5}, "gate": {"network": "early", "start": 0.7}}},
                       "3": {"enter": [{"terms": [{"of": "stream"}, {"of": "after 0", "scale": 0.5, "network": "late", "gate": 0.5}]}],
                             "attention": null},
                       "4": {"attention": {"paired": true, "value_table": "late", "value_gate": {"network": "late"}, "reads": "after 1",
                                           "exclude_own_value": {"network": "late"}}},
                       "5": {"attention": {"key_offset": true, "rotary": {"fraction": 0.5}, "reads": "after 1",
                                           "value_table": "late", "value_gate": {"network": "last"},
                                           "compose_heads": {"keys": 6, "maps_start": 0.5, "output_start": 0.4},
                                           "gate": {"network": "last", "start": 0.7},
                                           "values": [{"of": "input", "scale": 0.2, "network": "last"},
                                                      {"of": "after 1", "scale": -0.3}, {"of": "stream", "scale": 0.1}],
                                           "after": [{"of": "stream", "scale": 1.05, "network": "last"}, {"of": "output", "scale": 1, "network": "last"},
                                                     {"of": "after 1", "scale": 0.1}, {"table": "pairs", "scale": 0.1}]}},
                       "6": {"attention": {"reads": "after 1", "exclude_own_value": {"network": "late"}, "gate": {}, "after": []},
                             "mlp": {"after": []}}}},
            "output": [{"type": "sum", "terms": [{"of": "stream"}, {"of": "input", "scale": 0.1}, {"of": "after 1", "network": "last"},
                                                 {"table": "values", "scale": 0.2}]}, {"type": "norm"}],
            "head": {"tied_to": "embed", "softcap": 15},
            "loss": {"weights": [1, 0.5], "prefix_weight": 0.25}},
        "batch": {"sequence_length": 16},
        "optimizers": {"groups": [{"params": ["*"]}]}})",
                                     "test", {})
                            .model;
    if (untied) model.parts.head.untied_after = 0;
    return with_heads(std::move(model), heads);
}

ModelConfig newest_model_for_shared_rows(int64_t heads, bool untied) {
    ModelConfig model = newest_model(heads, untied);
    for (LayersAt& at : model.parts.layers.at) {
        if (!at.layer->attention) continue;
        at.layer->attention->parts.remove<PairedHeadsPart>();
        at.layer->attention->parts.remove<ComposeHeadsPart>();
    }
    return model;
}

}  // namespace speedrun::testing
