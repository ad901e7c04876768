// Reads and writes the config.json of a GPT-2 in the transformers library's layout.

#include "train/hf/hf_config.h"
#include "data/durable_file.h"
#include "data/json_text.h"
#include "data/text_file.h"
#include "kernels/device/error.h"
#include "kernels/ops/ops.h"
#include "train/hf/hf_gpt2.h"

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

// Collects keys of the config with unsupported values.
class Problems {
  public:
    template <class T>
    void compare(const char* key, const T& here, const T& expected) {
        if (here != expected) add(fmt::format("{} is {}, expected {}", key, here, expected));
    }
    template <class E>
    void compare_words(const char* key, E here, E expected) {
        compare(key, std::string(word_of(here)), std::string(word_of(expected)));
    }
    void add(const std::string& text) { text_ += (text_.empty() ? "" : "; ") + text; }
    const std::string& text() const { return text_; }

  private:
    std::string text_;
};

// Accepts GELU in its tanh form, by both of the library's names.
void expect_activation(const KeyReader& reader) {
    const Json activation = reader.get("activation_function");
    if (activation.is_null() || activation == "gelu_new" || activation == "gelu_pytorch_tanh") return;
    reader.wrong("activation_function", "\"gelu_new\" or \"gelu_pytorch_tanh\" (GELU in its tanh form)");
}

}  // namespace

HfGpt2 read_hf_config(const std::string& folder) {
    const std::string path = folder + "/config.json";
    const Json root = parse_file(path);
    const KeyReader reader(path, root);
    reader.expect("model_type", "gpt2", Json());
    expect_activation(reader);
    reader.expect("scale_attn_weights", true, true);
    reader.expect("scale_attn_by_inverse_layer_idx", false, false);
    reader.expect("add_cross_attention", false, false);
    const Json epsilon = reader.get("layer_norm_epsilon");
    if (!epsilon.is_null() && !(epsilon.is_number() && epsilon.get<float>() == kNormEpsilon))
        reader.wrong("layer_norm_epsilon", fmt::format("{}", kNormEpsilon));

    HfGpt2 result;
    ModelConfig& model = result.model;
    model.preset = Family::gpt2;
    model.apply_preset();
    model.num_layers = reader.size("n_layer", 1, 1000);
    model.model_dim = reader.size("n_embd", 8, 65536);
    model.num_heads = reader.size("n_head", 1, 1024);
    model.vocab_size = reader.size("vocab_size", 2, 65536);
    model.tied_head = reader.flag("tie_word_embeddings", true);
    result.num_positions = reader.size("n_positions", 1, 1 << 20);
    if (model.model_dim % model.num_heads != 0)
        reader.wrong("n_embd", fmt::format("a multiple of n_head, {}", model.num_heads));
    if (!reader.get("n_inner").is_null()) {
        const int64_t inner = reader.size("n_inner", 1, 64 * model.model_dim);
        if (inner % model.model_dim != 0)
            reader.wrong("n_inner", fmt::format("null or a multiple of n_embd, {}", model.model_dim));
        model.mlp_ratio = inner / model.model_dim;
    }
    return result;
}

void expect_hf_fits(const std::string& folder, const ModelConfig& model, int64_t sequence_length) {
    const HfGpt2 there = read_hf_config(folder);
    Problems problems;
    if (const std::string other = gpt2_problems(model); !other.empty()) problems.add(other);
    problems.compare("model.num_layers", model.num_layers, there.model.num_layers);
    problems.compare("model.model_dim", model.model_dim, there.model.model_dim);
    problems.compare("model.num_heads", model.num_heads, there.model.num_heads);
    problems.compare("model.mlp_ratio", model.mlp_ratio, there.model.mlp_ratio);
    problems.compare("model.vocab_size", model.vocab_size, there.model.vocab_size);
    problems.compare("model.tied_head", model.tied_head, there.model.tied_head);
    if (sequence_length > there.num_positions) {
        problems.add(fmt::format("batch.sequence_length is {}, expected at most {}", sequence_length,
                                 there.num_positions));
    }
    if (!problems.text().empty()) throw_usage("{} does not fit the config: {}", folder, problems.text());
}

std::string gpt2_problems(const ModelConfig& model) {
    ModelConfig plain = model;
    plain.preset = Family::gpt2;
    plain.apply_preset();
    Problems problems;
    problems.compare_words("model.norm", model.norm, plain.norm);
    problems.compare("model.norm_parameters", model.norm_parameters, plain.norm_parameters);
    problems.compare_words("model.activation", model.activation, plain.activation);
    problems.compare_words("model.position", model.position, plain.position);
    problems.compare("model.qk_norm", model.qk_norm, plain.qk_norm);
    problems.compare("model.biases", model.biases, plain.biases);
    problems.compare("model.logit_softcap", model.logit_softcap, plain.logit_softcap);
    problems.compare("model.attention_scale", model.attention_scale, 0.0);
    for (const auto& entry : model.window.entries()) problems.compare("model.window", entry.from, int64_t{0});
    problems.compare("model.norm_embedding", model.norm_embedding, plain.norm_embedding);
    problems.compare("model.mix_first_embedding", model.mix_first_embedding, false);
    problems.compare("model.value_embeddings", model.value_embeddings, int64_t{0});
    problems.compare("model.max_ngram", model.max_ngram, int64_t{0});
    return problems.text();
}

void write_hf_config(const std::string& path, const ModelConfig& model, int64_t num_positions,
                     const HfExport& options) {
    const Json separator = options.separator < 0 ? Json() : Json(options.separator);
    const Json config = {{"architectures", {"GPT2LMHeadModel"}},
                         {"model_type", "gpt2"},
                         {"activation_function", "gelu_new"},
                         {"n_layer", model.num_layers},
                         {"n_embd", model.model_dim},
                         {"n_head", model.num_heads},
                         {"n_inner", model.mlp_ratio == 4 ? Json() : Json(model.mlp_ratio * model.model_dim)},
                         {"n_positions", num_positions},
                         {"vocab_size", model.vocab_size},
                         {"layer_norm_epsilon", 1e-5},
                         {"scale_attn_weights", true},
                         {"tie_word_embeddings", model.tied_head},
                         {"attn_pdrop", 0.0},
                         {"embd_pdrop", 0.0},
                         {"resid_pdrop", 0.0},
                         {"bos_token_id", separator},
                         {"eos_token_id", separator},
                         {"torch_dtype", options.dtype == DType::bf16 ? "bfloat16" : "float32"}};
    write_file(path, config.dump(2) + "\n");
}

}  // namespace speedrun
