#include "train/parameters/parameter_table.h"

#include <fmt/format.h>

#include <cmath>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

InitRule constant(float value) {
    return {InitRule::Kind::constant, value};
}
InitRule normal(double deviation) {
    return {InitRule::Kind::normal, static_cast<float>(deviation)};
}
InitRule uniform(double bound) {
    return {InitRule::Kind::uniform, static_cast<float>(bound)};
}

}  // namespace

int64_t Parameter::numel() const {
    int64_t product = 1;
    for (int64_t dim : shape) product *= dim;
    return product;
}

ParameterTable::ParameterTable(const ModelConfig& model, int64_t sequence_length) {
    const int64_t width = model.model_dim, hidden = model.mlp_ratio * width,
                  vocab = model.padded_vocab_size();
    const double scale = model.init_scale;
    // GPT-2: deviation 0.02, residual projections divided by √(2L) (Radford et al. 2019, section 2.3).
    // Modern: uniform with half the deviation of 1/√fan-in, projections zero, embeddings of deviation 1
    // because a norm follows.
    const bool classic = model.preset == Family::gpt2;
    const auto linear = [&](int64_t fan_in) {
        return classic ? normal(0.02 * scale)
                       : uniform(scale * std::sqrt(3.0) * 0.5 / std::sqrt(static_cast<double>(fan_in)));
    };
    const auto projection = [&](int64_t fan_in) {
        if (model.zero_init_projections) return constant(0);
        return classic ? normal(0.02 * scale / std::sqrt(2.0 * static_cast<double>(model.num_layers)))
                       : linear(fan_in);
    };
    const InitRule embedding = normal((model.norm_embedding ? 1.0 : 0.02) * scale);

    Parameter& embed = declare_table("embed.weight", vocab, width, embedding, 0);
    embed.tensor_parallel_dim = 0;
    embed.also_head = model.tied_head;
    if (model.position == PositionKind::learned)
        declare_table("position.weight", sequence_length, width, normal(0.02 * scale), 0);
    // Zero: the model begins without n-grams, and rows that no text has reached add nothing.
    if (model.max_ngram >= 2)
        declare_table("ngram_embed.weight", model.ngram_rows, width, constant(0), 0).tensor_parallel_dim = 1;
    for (int64_t i = 0; i < model.value_embeddings; ++i) {
        const auto block = static_cast<int>(model.num_layers - model.value_embeddings + i);
        declare_table(fmt::format("value_embed.{}.weight", i), vocab, width, normal(scale), block + 1)
            .tensor_parallel_dim = 1;
    }
    for (int64_t i = 0; i < model.num_layers; ++i) {
        const std::string block = fmt::format("blocks.{}.", i);
        const int unit = static_cast<int>(i) + 1;
        if (model.mix_first_embedding) declare(block + "mix", {2}, {InitRule::Kind::first_element, 1}, unit);
        declare_norm(block + "attn_norm", model, unit);
        declare_linear(block + "attn.qkv", 3 * width, width, linear(width), unit, model.biases,
                       {.tensor_parallel_dim = 0, .matrices = 3});
        if (i >= model.num_layers - model.value_embeddings)
            declare(block + "attn.value_mix", {2}, constant(0.5f), unit);
        declare_linear(block + "attn.out", width, width, projection(width), unit, model.biases,
                       {.tensor_parallel_dim = 1});
        declare_norm(block + "mlp_norm", model, unit);
        declare_linear(block + "mlp.up", hidden, width, linear(width), unit, model.biases,
                       {.tensor_parallel_dim = 0});
        declare_linear(block + "mlp.down", width, hidden, projection(hidden), unit, model.biases,
                       {.tensor_parallel_dim = 1});
    }
    const int last = static_cast<int>(model.num_layers) + 1;
    declare_norm("final_norm", model, last);
    if (!model.tied_head)
        declare_linear("head", vocab, width, projection(width), last, false, {.tensor_parallel_dim = 0});
    num_units_ = last + 1;
}

Parameter& ParameterTable::declare(std::string name, std::vector<int64_t> shape, InitRule init, int unit) {
    if (contains(name)) throw_internal("parameter {} is declared twice", name);
    Parameter parameter;
    parameter.id = size();
    parameter.name = std::move(name);
    parameter.full_precision = shape.size() == 1;
    parameter.shape = std::move(shape);
    parameter.init = init;
    parameter.unit = unit;
    parameters_.push_back(std::move(parameter));
    return parameters_.back();
}

Parameter& ParameterTable::declare_table(std::string name, int64_t rows, int64_t width, InitRule init,
                                         int unit) {
    Parameter& table = declare(std::move(name), {rows, width}, init, unit);
    table.read_by_backward = false;
    return table;
}

void ParameterTable::declare_linear(const std::string& name, int64_t outputs, int64_t inputs, InitRule init,
                                    int unit, bool bias, Cut cut) {
    Parameter& weight = declare(name + ".weight", {outputs, inputs}, init, unit);
    weight.tensor_parallel_dim = cut.tensor_parallel_dim;
    weight.matrices = cut.matrices;
    if (bias)
        declare(name + ".bias", {outputs}, constant(0), unit).tensor_parallel_dim =
            cut.tensor_parallel_dim == 0 ? 0 : -1;
}

void ParameterTable::declare_norm(const std::string& name, const ModelConfig& model, int unit) {
    if (!model.norm_parameters) return;
    declare(name + ".gain", {model.model_dim}, constant(1), unit);
    if (model.biases) declare(name + ".bias", {model.model_dim}, constant(0), unit);
}

int64_t ParameterTable::numel() const {
    int64_t sum = 0;
    for (const Parameter& parameter : parameters_) sum += parameter.numel();
    return sum;
}

bool ParameterTable::contains(const std::string& name) const {
    for (const Parameter& parameter : parameters_) {
        if (parameter.name == name) return true;
    }
    return false;
}

const Parameter& ParameterTable::find(const std::string& name) const {
    for (const Parameter& parameter : parameters_) {
        if (parameter.name == name) return parameter;
    }
    throw_internal("the model has no parameter named {}", name);
}

}  // namespace speedrun
