#include <cmath>

#include "kernels/device/error.h"
#include "train/config/config.h"

namespace speedrun {

namespace {

// Switches of the presets and where a model in parts says the same.
struct Replacement {
    const char* key;
    const char* instead;
};
constexpr Replacement kReplacements[] = {
    {"num_layers", "model.layers.count"},
    {"num_heads", "model.layers.each.attention.heads"},
    {"mlp_ratio", "model.layers.each.mlp.ratio"},
    {"norm_parameters", "model.norms.gain"},
    {"activation", "model.layers.each.mlp.activation"},
    {"position", "model.layers.each.attention.rotary, or a table of positions"},
    {"rotary_base", "model.layers.each.attention.rotary.base"},
    {"qk_norm", "model.layers.each.attention.qk_norm"},
    {"tied_head", "model.head.tied_to"},
    {"biases", "attention.bias, mlp.bias and model.norms.bias"},
    {"logit_softcap", "model.head.softcap"},
    {"attention_scale", "model.layers.each.attention.scale"},
    {"window", "model.layers.each.attention.window"},
    {"zero_init_projections", "out_init, down_init and head.init"},
    {"norm_embedding", "{\"type\": \"norm\"} in model.input"},
    {"mix_first_embedding", "a sum in model.layers.each.enter"},
    {"value_embeddings", "attention.value_table in model.layers.at"},
    {"max_ngram", "a table of ngrams in model.tables"},
    {"ngram_rows", "num_rows of a table of ngrams"},
    {"init_from", "nothing: a GPT-2 of the transformers library is preset gpt2"},
};
constexpr const char* kPartKeys[] = {"tables", "windows", "networks", "norms", "input",
                                     "layers", "output",  "head",     "loss"};

// Fields of both.
constexpr const char* kModelDim = "width of the residual stream, a multiple of the number of heads";
constexpr const char* kVocabSize = "tokens of the tokenizer; matrices are padded to a multiple of 64";
constexpr const char* kInitScale = "factor of the initial deviation of weights";
constexpr Limits kModelDims{8, 65536}, kVocabSizes{2, 65536}, kInitScales{0, 100};

// Logits or gradients are divided by it: an f32 below 1e-38 would make them infinite.
void check_divisor(const char* key, double value) {
    constexpr double kLeast = 1e-6;
    if (value > 0 && value < kLeast)
        throw_usage("{} is {}: set it to 0, which leaves it out, or to {} or more", key, value, kLeast);
}

}  // namespace

void ModelConfig::apply_preset() {
    const bool modern = preset == Family::modern;
    norm = modern ? NormKind::rmsnorm : NormKind::layernorm;
    norm_parameters = !modern;
    activation = modern ? Activation::relu_squared : Activation::gelu_tanh;
    position = modern ? PositionKind::rotary : PositionKind::learned;
    qk_norm = modern;
    tied_head = !modern;
    biases = !modern;
    logit_softcap = modern ? 15 : 0;
    zero_init_projections = modern;
    norm_embedding = modern;
}

// What presets are said in. The order is that of every resolved config there is.
void ModelConfig::switch_fields(FieldVisitor& v) {
    v.field("num_layers", num_layers, "number of blocks", {1, 1000});
    v.field("model_dim", model_dim, kModelDim, kModelDims);
    v.field("num_heads", num_heads, "attention heads", {1, 1024});
    v.field("mlp_ratio", mlp_ratio, "width of the MLP as a multiple of model_dim", {1, 64});
    v.field("vocab_size", vocab_size, kVocabSize, kVocabSizes);
    v.choice("norm", norm, "normalisation before attention, MLP and head");
    v.field("norm_parameters", norm_parameters, "norms have a learned gain (and a bias, if biases)");
    v.choice("activation", activation, "nonlinearity of the MLP");
    v.choice("position", position, "rotary angles on q and k, or a learned embedding");
    v.field("rotary_base", rotary_base, "base of the rotary frequencies", {1, 1e9});
    v.field("qk_norm", qk_norm, "RMS-normalise each head's q and k");
    v.field("tied_head", tied_head, "the head shares the embedding's matrix");
    v.field("biases", biases, "linear layers have biases");
    v.field("logit_softcap", logit_softcap, "c > 0: logits become c*tanh(logits/c); 0: off", {0, 1e6});
    v.field("attention_scale", attention_scale, "factor of q*k; 0: 1/sqrt(head size)", {0, 100});
    v.field("window", window, "keys that a query sees at most, itself included; 0: all", {0, 1e9});
    v.field("zero_init_projections", zero_init_projections,
            "output projections (and an untied head) start at zero");
    v.field("norm_embedding", norm_embedding, "normalise the embedding before the first block");
    v.field("mix_first_embedding", mix_first_embedding,
            "each block starts from a*x + b*x0 with learned a, b");
    v.field("value_embeddings", value_embeddings, "number of last blocks that mix an embedding table into v",
            {0, 1000});
    v.field("max_ngram", max_ngram,
            "n: the last 2, 3, ... n tokens are embedded too, hashed into rows of one table; 0: none",
            {0, 16});
    v.field("ngram_rows", ngram_rows, "rows of that table; n-grams that hash to one row share it",
            {1, 1 << 24});
    v.retired("ngram_tables", {.off = "0", .why = "n-grams of all lengths share the table of max_ngram"});
    v.field("init_scale", init_scale, kInitScale, kInitScales);
    v.field("init_from", init_from,
            "folder of a GPT-2 in the transformers library's layout to start from; empty: random weights");
}

void ModelConfig::fields(FieldVisitor& v) {
    v.choice(
        "preset", preset,
        "family that sets the switches below; keys given beside it win; none: the model is spelled out "
        "by tables, networks, input, layers, output, head and loss (speedrun plan --spell-out shows a preset so)");
    if (preset != Family::none || v.wants_all()) switch_fields(v);
    if (preset != Family::none && !v.wants_all()) {
        for (const char* key : kPartKeys)
            v.refused(key, "a preset says the parts; with \"preset\": \"none\" they are yours");
        return;
    }
    if (!v.wants_all()) {
        for (const Replacement& r : kReplacements) v.refused(r.key, r.instead);
        v.field("model_dim", model_dim, kModelDim, kModelDims);
        v.field("vocab_size", vocab_size, kVocabSize, kVocabSizes);
        v.field("init_scale", init_scale, kInitScale, kInitScales);
    }
    parts.fields(v);
}

void ModelConfig::validate() const {
    if (preset == Family::none) {
        check_divisor("model.head.softcap", parts.head.softcap);
        check_divisor("model.head.logit_scale", parts.head.logit_scale);
        check_divisor("model.loss.gradient_divisor", parts.loss.gradient_divisor);
        return parts.validate(model_dim);
    }
    check_divisor("model.logit_softcap", logit_softcap);
    if (model_dim % num_heads != 0) {
        throw_usage("model.model_dim {} is not a multiple of model.num_heads {}", model_dim, num_heads);
    }
    if (position == PositionKind::rotary && head_dim() % 2 != 0) {
        throw_usage("model: rotary positions need an even head size, not {} (= model_dim {} / num_heads {})",
                    head_dim(), model_dim, num_heads);
    }
    if (value_embeddings > num_layers) {
        throw_usage("model.value_embeddings {} exceeds model.num_layers {}", value_embeddings, num_layers);
    }
    if (max_ngram == 1) {
        throw_usage("model.max_ngram 1: single tokens are embedded anyway; 0 for no n-grams, or 2 and more");
    }
}

}  // namespace speedrun
