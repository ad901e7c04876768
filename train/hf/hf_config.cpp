// Reads and writes the config.json of a GPT-2 in the transformers library's layout.

#include "train/hf/hf_config.h"
#include "data/durable_file.h"
#include "data/json_text.h"
#include "data/text_file.h"
#include "kernels/device/error.h"
#include "kernels/ops/ops.h"
#include "train/config/config_json.h"
#include "train/config/config_keys.h"
#include "train/hf/hf_config.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

// Reads keys and reports errors; a missing key has the library's default.
class KeyReader {
  public:
    KeyReader(std::string path, const Json& root) : path_(std::move(path)), root_(root) {}

    int64_t size(const char* key, int64_t low, int64_t high) const {
        const Json value = get(key);
        const bool fits = value.is_number_integer() && value.get<double>() >= static_cast<double>(low) &&
                          value.get<double>() <= static_cast<double>(high);
        if (!fits) wrong(key, fmt::format("a whole number from {} to {}", low, high));
        return value.get<int64_t>();
    }
    void expect(const char* key, const Json& expected, const Json& by_default) const {
        const Json value = get(key);
        if ((value.is_null() ? by_default : value) != expected) wrong(key, shown(expected));
    }
    bool flag(const char* key, bool by_default) const {
        const Json value = get(key);
        if (value.is_null()) return by_default;
        if (!value.is_boolean()) wrong(key, "true or false");
        return value.get<bool>();
    }
    Json get(const char* key) const {
        const auto found = root_.find(key);
        return found == root_.end() ? Json() : *found;
    }
    [[noreturn]] void wrong(const char* key, const std::string& expected) const {
        const Json value = get(key);
        throw_data("{}: {}: expected {}, found {}", path_, key, expected,
                   value.is_null() ? "nothing" : shown(value));
    }

  private:
    const std::string path_;
    const Json& root_;
};

Json parse_file(const std::string& path) {
    try {
        Json root = parse_json<Json>(read_text_file(path));
        if (!root.is_object()) throw_data("{}: expected an object, found {}", path, shown(root));
        return root;
    } catch (const JsonError& error) {
        throw_data("{}: not valid JSON: {}", path, error.what());
    }
}

struct Gpt2Sizes {
    int64_t layers, width, heads, mlp_ratio, vocabulary;
    bool tied;
    Activation activation;
    double epsilon;
};

ModelConfig gpt2_of(const Gpt2Sizes& sizes) {
    ModelConfig model = preset_model("gpt2");
    model.model_dim = sizes.width;
    model.vocab_size = sizes.vocabulary;
    model.parts.layers.count = sizes.layers;
    LayerConfig& each = model.parts.layers.each;
    each.attention->heads = sizes.heads;
    each.mlp->ratio = sizes.mlp_ratio;
    each.mlp->activation = sizes.activation;
    model.parts.norms.epsilon = sizes.epsilon;
    if (!sizes.tied) model.parts.head.tied_to.clear();
    return model;
}

Gpt2Sizes sizes_of(const ModelConfig& model) {
    const LayerConfig& each = model.parts.layers.each;
    const MlpConfig mlp = each.mlp.value_or(MlpConfig{});
    // GPT-2's layers have one of two activations.
    const bool is_gelu = mlp.activation == Activation::gelu_erf || mlp.activation == Activation::gelu_tanh;
    return {.layers = model.parts.layers.count,
            .width = model.model_dim,
            .heads = each.attention.value_or(AttentionConfig{}).heads,
            .mlp_ratio = mlp.ratio,
            .vocabulary = model.vocab_size,
            .tied = !model.parts.head.tied_to.empty(),
            .activation = is_gelu ? mlp.activation : Activation::gelu_tanh,
            .epsilon = model.parts.norms.epsilon};
}

// Returns the keys of `model` that differ from `gpt2`, except initial values and the loss.
std::string differences(const ModelConfig& model, const ModelConfig& gpt2) {
    Config here, expected;
    here.model = model;
    expected.model = gpt2;
    std::string text;
    for (const KeyDifference& d : key_differences(config_to_json(expected), config_to_json(here)))
        if (d.key.find("init") == std::string::npos && !d.key.starts_with("model.loss."))
            text +=
                fmt::format("{}{} is {}, expected {}", text.empty() ? "" : "; ", d.key, d.after, d.before);
    return text;
}

// Returns the form of GELU: the library has two names for its tanh form.
Activation read_activation(const KeyReader& reader) {
    const Json activation = reader.get("activation_function");
    if (activation.is_null() || activation == "gelu_new" || activation == "gelu_pytorch_tanh")
        return Activation::gelu_tanh;
    if (activation == "gelu") return Activation::gelu_erf;
    reader.wrong("activation_function", "\"gelu_new\", \"gelu_pytorch_tanh\" or \"gelu\"");
}

double read_epsilon(const KeyReader& reader) {
    constexpr double kLeast = 1e-20;  // range of model.norms.epsilon
    const Json epsilon = reader.get("layer_norm_epsilon");
    if (epsilon.is_null()) return NormConfig{}.epsilon;
    if (!epsilon.is_number() || !(epsilon.get<double>() >= kLeast && epsilon.get<double>() <= 1))
        reader.wrong("layer_norm_epsilon", fmt::format("a number from {} to 1", kLeast));
    return epsilon.get<double>();
}

}  // namespace

HfGpt2 read_hf_config(const std::string& folder) {
    const std::string path = folder + "/config.json";
    const Json root = parse_file(path);
    const KeyReader reader(path, root);
    if (reader.get("model_type") == "speedrun")
        throw_data(
            "{}: model_type: expected \"gpt2\", found \"speedrun\": an export of a model that is no GPT-2 is not read back; use "
            "the run's folder instead",
            path);
    reader.expect("model_type", "gpt2", Json());
    reader.expect("scale_attn_weights", true, true);
    reader.expect("scale_attn_by_inverse_layer_idx", false, false);
    reader.expect("add_cross_attention", false, false);

    Gpt2Sizes sizes{.layers = reader.size("n_layer", 1, 1000),
                    .width = reader.size("n_embd", 8, 65536),
                    .heads = reader.size("n_head", 1, 1024),
                    .mlp_ratio = 4,
                    .vocabulary = reader.size("vocab_size", 2, 65536),
                    .tied = reader.flag("tie_word_embeddings", true),
                    .activation = read_activation(reader),
                    .epsilon = read_epsilon(reader)};
    const int64_t num_positions = reader.size("n_positions", 1, 1 << 20);
    if (sizes.width % sizes.heads != 0)
        reader.wrong("n_embd", fmt::format("a multiple of n_head, {}", sizes.heads));
    if (!reader.get("n_inner").is_null()) {
        const int64_t inner = reader.size("n_inner", 1, 64 * sizes.width);
        if (inner % sizes.width != 0)
            reader.wrong("n_inner", fmt::format("null or a multiple of n_embd, {}", sizes.width));
        sizes.mlp_ratio = inner / sizes.width;
    }
    return {.model = gpt2_of(sizes), .num_positions = num_positions};
}

void expect_hf_fits(const std::string& folder, const ModelConfig& model, int64_t sequence_length) {
    const HfGpt2 there = read_hf_config(folder);
    std::string problems = differences(model, there.model);
    if (sequence_length > there.num_positions) {
        problems += fmt::format("{}batch.sequence_length is {}, expected at most {}",
                                problems.empty() ? "" : "; ", sequence_length, there.num_positions);
    }
    if (!problems.empty()) throw_usage("{} does not fit the config: {}", folder, problems);
}

std::string gpt2_problems(const ModelConfig& model) {
    return differences(model, gpt2_of(sizes_of(model)));
}

void write_hf_config(const std::string& path, const ModelConfig& model, int64_t num_positions,
                     const HfExport& options) {
    const Gpt2Sizes sizes = sizes_of(model);
    const Json separator = options.separator < 0 ? Json() : Json(options.separator);
    const Json config = {
        {"architectures", {"GPT2LMHeadModel"}},
        {"model_type", "gpt2"},
        {"activation_function", sizes.activation == Activation::gelu_erf ? "gelu" : "gelu_new"},
        {"n_layer", sizes.layers},
        {"n_embd", sizes.width},
        {"n_head", sizes.heads},
        {"n_inner", sizes.mlp_ratio == 4 ? Json() : Json(sizes.mlp_ratio * sizes.width)},
        {"n_positions", num_positions},
        {"vocab_size", sizes.vocabulary},
        {"layer_norm_epsilon", sizes.epsilon},
        {"scale_attn_weights", true},
        {"tie_word_embeddings", sizes.tied},
        {"attn_pdrop", 0.0},
        {"embd_pdrop", 0.0},
        {"resid_pdrop", 0.0},
        {"bos_token_id", separator},
        {"eos_token_id", separator},
        {"torch_dtype", options.dtype == DType::bf16 ? "bfloat16" : "float32"}};
    write_file(path, config.dump(2) + "\n");
}

}  // namespace speedrun
