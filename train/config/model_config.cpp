#include "kernels/device/error.h"
#include "train/config/config.h"
#include "train/config/presets.h"

namespace speedrun {

namespace {

// Removed keys of `model`.
struct Replacement {
    const char *key, *instead;
};
constexpr Replacement kReplacements[] = {
    {"num_layers", "model.layers.count"},
    {"num_heads", "model.layers.each.attention.heads"},
    {"mlp_ratio", "model.layers.each.mlp.ratio"},
    {"norm", "model.norms.type"},
    {"norm_parameters", "model.norms.gain and model.norms.bias"},
    {"activation", "model.layers.each.mlp.activation"},
    {"position",
     "model.layers.each.attention.rotary, or a table of positions in model.tables and model.input"},
    {"rotary_base", "model.layers.each.attention.rotary.base"},
    {"qk_norm", "model.layers.each.attention.qk_norm"},
    {"tied_head", "model.head.tied_to, the name of a table such as \"embed\""},
    {"biases", "model.layers.each.attention.bias, model.layers.each.mlp.bias and model.norms.bias"},
    {"logit_softcap", "model.head.softcap"},
    {"attention_scale", "model.layers.each.attention.scale"},
    {"window",
     "model.layers.each.attention.window: a number, or a name in model.windows with a list by stage"},
    {"zero_init_projections",
     "model.layers.each.attention.out_init, model.layers.each.mlp.down_init and model.head.init"},
    {"norm_embedding", "{\"type\": \"norm\"} in model.input"},
    {"mix_first_embedding", "a sum in model.layers.each.enter"},
    {"value_embeddings",
     "attention.value_table in model.layers.at: \"tables\": {\"values\": {\"init\": {\"type\": "
     "\"normal\", \"value\": 1}}}, \"layers\": {\"at\": {\"3\": {\"attention\": {\"value_table\": "
     "\"values\"}}}}"},
    {"max_ngram",
     "model.tables: {\"ngram_embed\": {\"rows\": \"ngrams\", \"max_ngram\": 3}}, which model.input names"},
    {"ngram_rows", "model.tables.NAME.num_rows"},
    {"ngram_tables", "nothing: n-grams of all lengths share a table"},
};

// Logits or gradients are divided by it: an f32 below 1e-38 would make them infinite.
void check_divisor(const char* key, double value) {
    constexpr double kMin = 1e-6;
    if (value > 0 && value < kMin)
        throw_usage("{} is {}: set it to 0, which leaves it out, or to {} or more", key, value, kMin);
}

}  // namespace

void ModelConfig::fields(FieldVisitor& v) {
    std::vector<std::string> words = {kNoPreset};
    for (const auto& [name, text] : presets()) words.push_back(name);
    v.one_of(
        "preset", preset, words,
        "parts that the other keys of the section change: objects merge by key, lists and other values replace; none: no parts");
    for (const Replacement& r : kReplacements) v.refused(r.key, r.instead);
    v.field(
        "model_dim", model_dim,
        "width of the residual stream; a multiple of the number of heads, unless layers give their head sizes",
        {8, 65536});
    v.field("vocab_size", vocab_size, "tokens of the tokenizer; matrices are padded to a multiple of 64",
            {2, 65536});
    v.field("init_scale", init_scale, "factor of the initial deviation of weights", {0, 100});
    v.field(
        "init_from", init_from,
        "weights to start from: a run's folder (its newest checkpoint or final weights), a checkpoint, or a GPT-2 in the "
        "transformers library's layout; parameters are matched by name and shape; empty: random weights");
    parts.fields(v);
}

void ModelConfig::validate() const {
    check_divisor("model.head.softcap", parts.head.softcap);
    check_divisor("model.head.logit_scale", parts.head.logit_scale);
    check_divisor("model.loss.gradient_divisor", parts.loss.gradient_divisor);
    parts.validate(model_dim);
}

}  // namespace speedrun
