#include "train/hf/hf_speedrun.h"

#include <fmt/ranges.h>

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "data/durable_file.h"
#include "data/json_text.h"
#include "kernels/device/error.h"
#include "train/checkpoint/safetensors.h"
#include "train/hf/hf_files.h"
#include "train/model/parts/compose_heads.h"
#include "train/model/parts/exclude_own_value.h"
#include "train/model/parts/head_gate.h"
#include "train/model/parts/key_offset.h"
#include "train/model/parts/paired_heads.h"
#include "train/model/parts/qk_norm.h"
#include "train/model/parts/rotary.h"
#include "train/model/parts/value_gate.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

// Names the learned numbers of sums as their graph does (build_sum).
class SumJson {
  public:
    // prefix: of the layer's parameters; empty outside of layers
    SumJson(SumSlot slot, std::string prefix) : slot_(slot), prefix_(std::move(prefix)) {}

    Json terms(const std::vector<SumTerm>& all) const {
        std::map<std::string, int64_t> used;  // elements of a vector of scales, by its name
        Json list = Json::array();
        for (const SumTerm& term : all) {
            const auto number = [&](bool is_there, const char* suffix, int64_t element) {
                return is_there ? Json::array({name(term, suffix), element}) : Json();
            };
            const int64_t element = term.scale && !term.name.empty() ? used[term.name]++ : 0;
            list.push_back({{"of", term.of},
                            {"table", term.table},
                            {"constant", term.constant},
                            {"scale", number(term.scale.has_value(), "_scale", element)},
                            {"gain", number(term.gain.has_value(), "_gain", 0)},
                            {"gate", number(term.gate.has_value(), "_gate", 0)}});
        }
        return list;
    }

  private:
    std::string name(const SumTerm& term, const std::string& suffix) const {
        if (!term.name.empty()) return prefix_ + term.name;
        const std::string scale = scale_name(slot_, term);
        return prefix_ + scale.substr(0, scale.size() - std::string("_scale").size()) + suffix;
    }

    const SumSlot slot_;
    const std::string prefix_;
};

Json stream_json(const std::vector<StreamPartConfig>& parts, SumSlot slot) {
    Json list = Json::array();
    for (const StreamPartConfig& part : parts) {
        Json json = {{"type", word_of(part.type)}};
        if (part.type == StreamPart::table) json["table"] = part.table;
        if (part.type == StreamPart::smear) json["columns"] = part.smear.columns;
        if (part.type == StreamPart::sum) json["terms"] = SumJson(slot, "").terms(part.terms);
        list.push_back(std::move(json));
    }
    return list;
}

Json attention_json(const ModelConfig& model, const AttentionConfig& attention, int64_t number) {
    const ModelParts& parts = model.parts;
    const AttentionParts& own = attention.parts;
    const std::string prefix = fmt::format("blocks.{}.", number);
    const int64_t size = attention.qk_dim(model.model_dim);
    double scale = attention.scale > 0 ? attention.scale : 1.0 / std::sqrt(static_cast<double>(size));
    Json frequencies;
    const auto* const rotary = own.find<RotaryPart>();
    if (rotary) {
        const std::vector<int64_t> past = parts.past_of(rotary->followed_window());
        frequencies = rotary_frequencies(*rotary, size / 2, past);
        scale *= yarn_scale(*rotary, past);
    }
    const auto* const gate = own.find<HeadGatePart>();
    const auto* const value_gate = own.find<ValueGatePart>();
    const bool offset = own.find<KeyOffsetPart>() != nullptr;
    return {{"heads", attention.heads},
            {"qk_columns", attention.heads * size},
            {"reads", attention.reads},
            {"window", parts.window_of(attention, number)},
            {"scale", scale},
            {"qk_norm", own.find<QkNormPart>() != nullptr},
            {"frequencies", std::move(frequencies)},
            {"offset_from", offset ? Json(rotary->rotated_pairs(size / 2)) : Json()},
            {"paired", own.find<PairedHeadsPart>() != nullptr},
            {"value_table", attention.value_table},
            {"value_mix", !attention.value_table.empty() && !own.value_rows()},
            {"value_scale", attention.value_scale},
            {"value_gate_columns", value_gate ? value_gate->columns : 0},
            {"values", SumJson(SumSlot::values, prefix).terms(attention.values)},
            {"exclude_own_value", own.find<ExcludeOwnValuePart>() != nullptr},
            {"gate_columns", gate ? gate->columns : 0},
            {"after", SumJson(SumSlot::attention, prefix).terms(attention.after)}};
}

Json layers_json(const ModelConfig& model) {
    Json list = Json::array();
    const std::vector<std::optional<LayerConfig>> layers = model.parts.layers.resolved();
    for (size_t i = 0; i < layers.size(); ++i) {
        if (!layers[i]) continue;
        const LayerConfig& layer = *layers[i];
        const auto number = static_cast<int64_t>(i);
        const std::string prefix = fmt::format("blocks.{}.", number);
        Json json = {{"number", number}, {"enter", Json::array()}, {"attention", nullptr}, {"mlp", nullptr}};
        for (const SumConfig& sum : layer.enter)
            json["enter"].push_back(SumJson(SumSlot::enter, prefix).terms(sum.terms));
        if (layer.attention) json["attention"] = attention_json(model, *layer.attention, number);
        if (layer.mlp)
            json["mlp"] = {{"activation", word_of(layer.mlp->activation)},
                           {"swiglu", layer.mlp->swiglu},
                           {"after", SumJson(SumSlot::mlp, prefix).terms(layer.mlp->after)}};
        list.push_back(std::move(json));
    }
    return list;
}

Json model_json(const Config& config, int64_t separator) {
    const ModelConfig& model = config.model;
    const ModelParts& parts = model.parts;
    Json tables = Json::object();
    for (const auto& [name, table] : parts.tables) {
        tables[name] = {{"rows", word_of(table.rows)}};
        if (table.rows != TableRows::ngrams) continue;
        tables[name]["hash"] = word_of(table.ngrams.hash);
        tables[name]["max_ngram"] = table.ngrams.max_ngram;
        tables[name]["num_rows"] = table.ngrams.num_rows;
    }
    const Softcap cap = parts.head.cap();
    const bool masks = config.data.document_mask && separator >= 0;
    return {{"norm", {{"type", word_of(parts.norms.type)}, {"epsilon", parts.norms.epsilon}}},
            {"separator", masks ? Json(separator) : Json()},
            {"tables", std::move(tables)},
            {"input", stream_json(parts.input, SumSlot::input)},
            {"layers", layers_json(model)},
            {"output", stream_json(parts.output, SumSlot::output)},
            {"head",
             {{"weight", parts.head.tied() ? parts.head.tied_to + ".weight" : "head.weight"},
              {"softcap", cap.present() ? Json({{"cap", cap.cap},
                                                {"shift", cap.shift},
                                                {"scale", cap.scale > 0 ? cap.scale : cap.cap}})
                                        : Json()}}}};
}

// The matrices with a row per token are padded.
bool has_padding(const ModelParts& parts, const Parameter& p) {
    if (p.name == "head.weight") return true;
    for (const auto& [name, table] : parts.tables)
        if (p.name == name + ".weight") return table.rows == TableRows::tokens;
    return false;
}

}  // namespace

std::string hf_speedrun_problems(const ModelConfig& model) {
    const ModelParts& parts = model.parts;
    std::vector<std::string> found;
    if (!parts.networks.empty()) found.emplace_back("model.networks");
    for (const auto& [name, table] : parts.tables)
        if (table.ngrams.sign_rows > 0) found.push_back(fmt::format("model.tables.{}.sign_rows", name));
    const std::vector<std::optional<LayerConfig>> layers = parts.layers.resolved();
    for (size_t i = 0; i < layers.size(); ++i)
        if (layers[i] && layers[i]->attention && layers[i]->attention->parts.find<ComposeHeadsPart>())
            found.push_back(fmt::format("attention.compose_heads of layer {}", i));
    return fmt::format("{}", fmt::join(found, ", "));
}

void write_hf_speedrun(const std::string& folder, const Config& config, const ParameterTable& table,
                       const ReadMaster& read, const HfExport& options) {
    const ModelConfig& model = config.model;
    if (const std::string problems = hf_speedrun_problems(model); !problems.empty())
        throw_usage("this model cannot be exported: the library's code has no {}", problems);
    Json shapes = Json::object();
    std::vector<NamedTensor> tensors;
    for (const Parameter& p : table.all()) {
        if (p.name == "head.weight" && model.parts.head.tied()) continue;
        std::vector<int64_t> shape = p.shape;
        if (has_padding(model.parts, p)) shape[0] = model.vocab_size;
        shapes[p.name] = shape;
        tensors.push_back(
            stored_tensor({"model." + p.name, std::move(shape), finite_values(p, read)}, options.dtype));
    }
    const AttentionConfig each = model.parts.layers.each.attention.value_or(AttentionConfig{});
    const Json separator = options.separator < 0 ? Json() : Json(options.separator);
    const Json root = {{"architectures", {"SpeedrunForCausalLM"}},
                       {"model_type", "speedrun"},
                       {"auto_map",
                        {{"AutoConfig", "configuration_speedrun.SpeedrunConfig"},
                         {"AutoModelForCausalLM", "modeling_speedrun.SpeedrunForCausalLM"}}},
                       {"vocab_size", model.vocab_size},
                       {"hidden_size", model.model_dim},
                       {"num_hidden_layers", model.parts.num_layers()},
                       {"num_attention_heads", each.heads},
                       {"max_position_embeddings", static_cast<int64_t>(config.batch.sequence_length)},
                       {"tie_word_embeddings", false},
                       {"use_cache", false},
                       {"bos_token_id", separator},
                       {"eos_token_id", separator},
                       {"torch_dtype", options.dtype == DType::bf16 ? "bfloat16" : "float32"},
                       {"model", model_json(config, options.separator)},
                       {"parameters", std::move(shapes)}};
    make_hf_folder(folder);
    write_file(folder + "/config.json", root.dump(2) + "\n");
    for (const auto& [name, text] : hf_python_files()) write_file(folder + "/" + name, text);
    write_safetensors(folder + "/model.safetensors", tensors);
}

}  // namespace speedrun
