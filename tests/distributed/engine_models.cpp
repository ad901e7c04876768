#include "tests/distributed/engine_models.h"

#include <map>

namespace speedrun::testing {

namespace {

// A value table in layers that are not neighbours, a smear, n-grams, gates, a skip and a backout. Some outputs have
// no value of their own, and some layers no attention or no MLP.
constexpr const char* kParts = R"(model={
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
            "loss": {"weights": [1, 0.5]}})";

// Bigrams with signs, injected at the input and after sublayers.
constexpr const char* kInjected = R"(model={
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
            "loss": {"weights": [1, 0.5], "prefix_weight": 0.25}})";

// Networks on the input and on a layer's output compute numbers of each token, for heads and for the stream.
// Attention reads an earlier layer's output.
constexpr const char* kNetworks = R"(model={
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
            "head": {"init": {"type": "uniform", "value": 0.5, "by_fan_in": true}}})";

// The parts of the newest recipes together. Tensor ranks compute attention of layers 0, 1, 4 and 5 whole, and divide
// the attention of layers 2 and 6. Layers 4, 5 and 6 read one norm.
constexpr const char* kNewest = R"(model={
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
                "each": {"attention": {"heads": 6, "value_scale": true, "out_init": {"type": "uniform", "value": 0.5, "by_fan_in": true},
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
            "loss": {"weights": [1, 0.5], "prefix_weight": 0.25}})";

const ModelSettings kOffset = {kNewest, "model.layers.at.0.attention.paired=false",
                               "model.layers.at.4.attention.paired=false",
                               "model.layers.at.5.attention.compose_heads=null"};
// Sizes of heads of q and k, and of v, for six heads. The layers without them have 8 and 8.
const ModelSettings kWidths = {
    "model.layers.at.0.attention.qk_head_dim=4",  "model.layers.at.1.attention.qk_head_dim=4",
    "model.layers.at.1.attention.v_head_dim=4",   "model.layers.at.2.attention.qk_head_dim=12",
    "model.layers.at.4.attention.qk_head_dim=4",  "model.layers.at.4.attention.v_head_dim=6",
    "model.layers.at.6.attention.qk_head_dim=10", "model.layers.at.6.attention.v_head_dim=12"};

// FP8 in the head and in the MLPs of layers 0 and 1. Constant scales do not depend on the number of ranks.
constexpr const char* kConstant =
    R"({"x": {"by": "constant", "value": 0.015625}, "weight": {"by": "constant", "value": 0.001953125}})";
// No exact step: exact scales depend on a rank's rows.
constexpr const char* kKept =
    R"({"x": {"by": "last_step", "value": 1.25, "exact_steps": 0}, "weight": {"by": "last_step", "value": 1.25, "exact_steps": 0}})";
// Current scales in the first steps, of x in two and of weights in four; then delayed ones.
constexpr const char* kCurrent =
    R"({"x": {"by": "last_step", "value": 1.25, "exact_steps": 2}, "weight": {"by": "last_step", "value": 1.25, "exact_steps": 4}})";
ModelSettings in_fp8(const std::string& scales) {
    const std::string each = "model.layers.each.mlp.", last = "model.layers.at.3.mlp.";
    return {kParts,
            "model.head.fp8={}",
            each + "up_fp8=" + scales,
            each + "down_fp8=" + scales,
            last + "up_fp8=null",
            last + "down_fp8=null"};
}

const std::map<std::string, ModelSettings>& models() {
    static const std::map<std::string, ModelSettings> all = {
        {"gpt2", {"model.preset=gpt2"}},
        {"modern", nonzero_outputs()},
        {"recipe", together({nonzero_outputs(),
                             {kMix},
                             with_tables({.layers = 3, .values = 1, .max_ngram = 3, .ngram_rows = 101})})},
        {"parts", {kParts}},
        {"fp8", in_fp8(kConstant)},
        {"scales", in_fp8(kKept)},
        {"current", in_fp8(kCurrent)},
        // Mixes of attention maps across heads in all layers but the last.
        {"composed",
         {kParts,
          R"(model.layers.each.attention.compose_heads={"keys": 6, "maps_start": 0.5, "output_start": 0.4})",
          "model.layers.at.3.attention.compose_heads=null"}},
        {"injected", {kInjected}},
        {"networks", {kNetworks}},
        // Values read from the stream at other positions, and from gated rows of a table.
        {"places",
         {kNetworks, R"(model.tables.values={"init": {"type": "normal", "value": 1}})",
          "model.layers.each.attention.value_table=values", "model.layers.each.attention.value_gate={}",
          "model.layers.at.2.attention.value_table=", "model.layers.at.2.attention.value_gate=null",
          "model.layers.at.3.attention.value_table=", "model.layers.at.3.attention.value_gate=null",
          R"(model.layers.at.3.attention.values=[{"of": "input", "scale": 0.2, "network": "late"},
              {"of": "after 1", "scale": -0.3, "network": "late"}, {"of": "stream", "scale": 0.1}])"}},
        {"newest", {kNewest}},
        // Heads of q and k, and heads of v, of several sizes. Layers 1 and 4 read the first columns of each head of a row.
        {"widths", together({{kNewest}, kWidths})},
        {"narrow",
         {kParts, "model.layers.each.attention.qk_head_dim=8", "model.layers.at.3.attention.v_head_dim=10"}},
        // Without the parts that tensor ranks refuse: paired heads, and mixes of attention maps across heads.
        {"offset", kOffset},
        {"offset_widths", together({kOffset, kWidths})}};
    return all;
}

}  // namespace

ModelSettings model_settings(const std::string& name) {
    return models().at(name);
}

ModelSettings stage_settings(const std::string& name) {
    const std::string& first = models().at(name).front();
    if (name == "parts") return {"model.loss.weights=[1, [[0.5, 0.25], [0.25, 0], 0]]"};
    if (first == kNewest) return {"model.head.untied_after=0"};
    if (!first.starts_with("model={")) return {"model.windows.window=[4, 0, 8]"};
    return {};
}

}  // namespace speedrun::testing
