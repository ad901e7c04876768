#include "train/model/build_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/device/error.h"
#include "train/model/nodes/activation.h"
#include "train/model/nodes/attention.h"
#include "train/model/nodes/embedding.h"
#include "train/model/nodes/linear.h"
#include "train/model/nodes/norm.h"

namespace speedrun {

namespace {

// Which units read each parameter, and in which pass.
void note_uses(const NodeGraph& graph, ParameterTable& table) {
    for (const Parameter& p : table.all()) {
        int first = graph.num_units(), last = 0;
        bool by_backward = false;
        for (const auto& node : graph.nodes()) {
            for (const Node::Use& use : node->uses()) {
                if (use.parameter != p.id) continue;
                const int unit = graph.unit_of(*node);
                // What backward may compute again, it reads again. A unit later than the first is noted apart.
                const bool read = use.in_backward || node->cost() != Cost::input;
                if (unit < first) by_backward = false;
                if (unit <= first) by_backward |= read;
                first = std::min(first, unit);
                last = std::max(last, unit);
            }
        }
        if (last > first && last != graph.num_units() - 1)
            throw_internal("{} is read by units {} and {}", p.name, first, last);
        table.set_use(p.id, {.unit = first, .read_by_backward = by_backward, .also_head = last > first});
    }
    table.set_num_units(graph.num_units());
}

class Builder {
  public:
    Builder(const ModelConfig& config, const BatchShape& batch, const ModelOptions& options)
        : config_(config), batch_(batch), options_(options) {}

    ModelGraph build() {
        m_.tokens = ids("batch.tokens");
        m_.targets = ids("batch.targets");
        m_.positions = ids("batch.positions");
        m_.first_key = ids("batch.first_key");
        for (int64_t n = 2; n <= config_.max_ngram; ++n)
            m_.ngrams.push_back(ids(fmt::format("batch.{}-grams", n)));
        if (config_.position == PositionKind::rotary) make_rotary_tables();

        declare_tables();

        g().name_unit("embeddings");
        first_ = stream_ = embed();
        for (int64_t i = 0; i < config_.num_layers; ++i) {
            g().begin_unit();
            prefix_ = fmt::format("blocks.{}.", i);
            g().name_unit(fmt::format("block {}", i), prefix_);
            block_ = i;
            delta_ = attention(attention_norm());
            delta_ = mlp(norm("mlp_norm"));
        }
        g().begin_unit();
        prefix_ = "";
        g().name_unit("head");
        head(norm("final_norm"));
        note_uses(m_.graph, m_.table);
        return std::move(m_);
    }

  private:
    NodeGraph& g() { return m_.graph; }
    Extent tokens() const { return {Dimension::tokens, batch_.tokens}; }
    Extent width() const { return {Dimension::width, config_.model_dim}; }
    Extent vocabulary() const { return {Dimension::vocabulary, config_.padded_vocab_size()}; }
    Extent head_width(int64_t times = 1) const { return {Dimension::head_width, times * config_.model_dim}; }
    ValueId ids(std::string name) {
        return g().value(std::move(name), Element::ids, {tokens()}, Holder::batch);
    }
    ValueId real(const std::string& name, Extent columns) {
        return g().value(prefix_ + name, Element::real, {tokens(), columns});
    }
    ValueId f32(const std::string& name, std::vector<Extent> extents) {
        return g().value(prefix_ + name, Element::f32, std::move(extents));
    }
    template <class T, class... Options>
    void add(const typename T::Ports& ports, const Options&... options) {
        g().add(std::make_unique<T>(ports, options...));
    }

    // ---- parameters. GPT-2: deviation 0.02, residual projections divided by √(2L) (Radford et al. 2019,
    // section 2.3). Modern: uniform with half the deviation of 1/√fan-in, projections zero, embeddings of
    // deviation 1 because a norm follows.
    static InitRule constant(double value) { return {InitRule::Kind::constant, static_cast<float>(value)}; }
    InitRule normal(double deviation) const {
        return {InitRule::Kind::normal, static_cast<float>(deviation * config_.init_scale)};
    }
    InitRule inner(int64_t fan_in) const {
        if (config_.preset == Family::gpt2) return normal(0.02);
        const double bound =
            config_.init_scale * std::sqrt(3.0) * 0.5 / std::sqrt(static_cast<double>(fan_in));
        return {InitRule::Kind::uniform, static_cast<float>(bound)};
    }
    InitRule projection(int64_t fan_in) const {
        if (config_.zero_init_projections) return constant(0);
        if (config_.preset != Family::gpt2) return inner(fan_in);
        return {InitRule::Kind::normal,
                static_cast<float>(0.02 * config_.init_scale /
                                   std::sqrt(2.0 * static_cast<double>(config_.num_layers)))};
    }
    ParameterId parameter(const std::string& name, const std::vector<Extent>& extents, InitRule init,
                          int64_t matrices = 1) {
        return m_.table.declare(prefix_ + name, extents, init, matrices);
    }
    // The tables that tokens are looked up in, before all else: their place in the table of parameters.
    void declare_tables() {
        embed_ =
            parameter("embed.weight", {vocabulary(), width()}, normal(config_.norm_embedding ? 1.0 : 0.02));
        if (config_.position == PositionKind::learned)
            position_ = parameter("position.weight",
                                  {{Dimension::positions, batch_.sequence_length}, width()}, normal(0.02));
        // Zero: the model begins without n-grams, and rows that no text has reached add nothing.
        if (config_.max_ngram >= 2)
            ngram_ = parameter("ngram_embed.weight", {{Dimension::vocabulary, config_.ngram_rows}, width()},
                               constant(0));
        for (int64_t i = 0; i < config_.value_embeddings; ++i)
            value_tables_.push_back(
                parameter(fmt::format("value_embed.{}.weight", i), {vocabulary(), head_width()}, normal(1)));
    }

    ValueId embed() {
        ValueId sum = real("embedding", width());
        add<Embedding>({.out = sum,
                        .tokens = m_.tokens,
                        .table = embed_,
                        .table_rows = config_.padded_vocab_size(),
                        .positions = position_ != kNoParameter ? m_.positions : kNoValue,
                        .position_table = position_,
                        .position_rows = batch_.sequence_length});
        if (!m_.ngrams.empty()) {
            const ValueId with = g().view(sum, "embedding with n-grams", 0, config_.model_dim);
            add<NgramEmbedding>(
                {.out = with, .x = sum, .rows = m_.ngrams, .table = ngram_, .table_rows = config_.ngram_rows},
                batch_.tokens, config_.model_dim);
            sum = with;
        }
        if (!config_.norm_embedding) return sum;
        const ValueId first = real("first", width());
        add<Norm>({.y = first, .statistics = statistics("embedding"), .x = sum}, config_.norm);
        return first;
    }

    // The residual stream with what the last attention or MLP gave.
    ValueId residual(const char* name) {
        if (delta_ == kNoValue) return stream_;
        const ValueId sum = real(name, width());
        add<Add>({.sum = sum, .x = stream_, .delta = delta_});
        delta_ = kNoValue;
        return sum;
    }

    NormStatistics statistics(const std::string& name) {
        const bool centred = config_.norm == NormKind::layernorm;
        return {centred ? f32(name + "_mean", {tokens()}) : kNoValue, f32(name + "_rstd", {tokens()})};
    }
    NormParameters norm_parameters(const std::string& name) {
        NormParameters parameters;
        if (!config_.norm_parameters) return parameters;
        parameters.gain = parameter(name + ".gain", {width()}, constant(1));
        if (config_.biases) parameters.bias = parameter(name + ".bias", {width()}, constant(0));
        return parameters;
    }
    ValueId norm(const std::string& name) {
        stream_ = residual((name + " input").c_str());
        const ValueId y = real(name, width());
        add<Norm>({.y = y, .statistics = statistics(name), .x = stream_, .parameters = norm_parameters(name)},
                  config_.norm);
        return y;
    }
    ValueId attention_norm() {
        if (!config_.mix_first_embedding) return norm("attn_norm");
        const ValueId entered = residual("entered");
        const ValueId y = real("attn_norm", width());
        stream_ = real("attn_norm input", width());
        const ParameterId mix =
            parameter("mix", {{Dimension::numbers, 2}}, {InitRule::Kind::first_element, 1});
        add<MixNorm>({.s = stream_,
                      .y = y,
                      .statistics = statistics("attn_norm"),
                      .x = entered,
                      .z = first_,
                      .coefficients = mix,
                      .parameters = norm_parameters("attn_norm")},
                     config_.norm);
        return y;
    }

    struct Weight {
        Extent outputs, inputs;
        InitRule init;
        int64_t matrices = 1;
    };
    ValueId linear(const std::string& name, ValueId x, const Weight& w) {
        const ParameterId weight = parameter(name + ".weight", {w.outputs, w.inputs}, w.init, w.matrices);
        const ParameterId bias =
            config_.biases ? parameter(name + ".bias", {w.outputs}, constant(0)) : kNoParameter;
        const ValueId y = real(name, w.outputs);
        add<Linear>({.y = y, .x = x, .weight = weight, .bias = bias});
        return y;
    }

    ValueId attention(ValueId normed) {
        const int64_t C = config_.model_dim, H = config_.num_heads, D = config_.head_dim();
        const ValueId qkv =
            linear("attn.qkv", normed,
                   {.outputs = head_width(3), .inputs = width(), .init = inner(C), .matrices = 3});
        ValueId q = g().view(qkv, prefix_ + "projected q", 0, C);
        ValueId k = g().view(qkv, prefix_ + "projected k", C, C);
        ValueId v = g().view(qkv, prefix_ + "v", 2 * C, C);
        const int64_t table = block_ - (config_.num_layers - config_.value_embeddings);
        const ValueId embedded = table < 0 ? kNoValue : value_embedding(table);

        const RotaryOptions rotary{.num_heads = H,
                                   .head_dim = D,
                                   .normalize = config_.qk_norm,
                                   .rotate = config_.position == PositionKind::rotary};
        if (rotary.normalize || rotary.rotate) {
            const ValueId turned_q = g().view(qkv, prefix_ + "q", 0, C);
            const ValueId turned_k = g().view(qkv, prefix_ + "k", C, C);
            add<QkNormRotary>(
                {.q = turned_q,
                 .k = turned_k,
                 .rstd = rotary.normalize ? f32("qk_rstd", {tokens(), {Dimension::heads, 2 * H}}) : kNoValue,
                 .projected_q = q,
                 .projected_k = k,
                 .tables = rotary_},
                rotary);
            q = turned_q;
            k = turned_k;
        }
        if (embedded != kNoValue) {
            const ParameterId mix = parameter("attn.value_mix", {{Dimension::numbers, 2}}, constant(0.5));
            const ValueId mixed = real("mixed v", head_width());
            add<MixValues>(
                {.mixed = mixed, .v = v, .embedded = embedded, .coefficients = mix, .q = q, .k = k}, rotary);
            v = mixed;
        }
        const ValueId out = real("attn_out", head_width());
        add<Attention>({.out = out,
                        .lse = f32("lse", {{Dimension::heads, H}, tokens()}),
                        .q = q,
                        .k = k,
                        .v = v,
                        .first_key = m_.first_key},
                       AttentionOptions{.sequence_length = batch_.sequence_length,
                                        .num_heads = H,
                                        .head_dim = D,
                                        .window = config_.window,
                                        .scale = static_cast<float>(config_.resolved_attention_scale()),
                                        .documents = options_.documents});
        return linear("attn.out", out, {.outputs = width(), .inputs = head_width(), .init = projection(C)});
    }

    ValueId value_embedding(int64_t index) {
        const ValueId rows = real("value_embedding", head_width());
        add<Embedding>({.out = rows,
                        .tokens = m_.tokens,
                        .table = value_tables_[static_cast<size_t>(index)],
                        .table_rows = config_.padded_vocab_size()});
        return rows;
    }

    ValueId mlp(ValueId normed) {
        const Extent hidden_width{Dimension::hidden, config_.mlp_ratio * config_.model_dim};
        const ValueId hidden = linear(
            "mlp.up", normed, {.outputs = hidden_width, .inputs = width(), .init = inner(config_.model_dim)});
        const ValueId activated = real("activated", hidden_width);
        add<Activate>({.y = activated, .x = hidden}, config_.activation);
        return linear("mlp.down", activated,
                      {.outputs = width(), .inputs = hidden_width, .init = projection(hidden_width.size)});
    }

    void head(ValueId normed) {
        const ParameterId weight = config_.tied_head ? embed_
                                                     : parameter("head.weight", {vocabulary(), width()},
                                                                 projection(config_.model_dim));
        m_.losses = g().value("losses", Element::f32, {tokens()}, Holder::model);
        m_.head = &g().add(std::make_unique<Head>(
            Head::Ports{.losses = m_.losses, .x = normed, .targets = m_.targets, .weight = weight},
            HeadOptions{.num_tokens = batch_.tokens,
                        .logit_rows = options_.logit_rows,
                        .vocab_size = config_.vocab_size,
                        .padded_vocab_size = config_.padded_vocab_size(),
                        .softcap = config_.logit_softcap}));
    }

    // Su et al. 2021, eq. 15: θ_i = base^(−2i/D).
    void make_rotary_tables() {
        const int64_t half = config_.head_dim() / 2, length = batch_.sequence_length;
        std::vector<float> cos, sin;
        for (int64_t position = 0; position < length; ++position) {
            for (int64_t i = 0; i < half; ++i) {
                const double angle =
                    static_cast<double>(position) *
                    std::pow(config_.rotary_base, -static_cast<double>(i) / static_cast<double>(half));
                cos.push_back(static_cast<float>(std::cos(angle)));
                sin.push_back(static_cast<float>(std::sin(angle)));
            }
        }
        const std::vector<Extent> extents{{Dimension::positions, length}, {Dimension::half_head, half}};
        rotary_ = {.cos = g().constant("rotary cos", extents, std::move(cos)),
                   .sin = g().constant("rotary sin", extents, std::move(sin)),
                   .positions = m_.positions};
    }

    const ModelConfig& config_;
    const BatchShape batch_;
    const ModelOptions options_;
    ModelGraph m_{};
    RotaryTables rotary_;
    ParameterId embed_ = kNoParameter, position_ = kNoParameter, ngram_ = kNoParameter;
    std::vector<ParameterId> value_tables_;
    int64_t block_ = 0;                             // the one at hand
    std::string prefix_;                            // of the unit's names
    ValueId first_ = kNoValue;                      // the normed embedding: what enters block 0
    ValueId stream_ = kNoValue, delta_ = kNoValue;  // residual stream, and what is still to be added to it
};

}  // namespace

ModelGraph build_model(const ModelConfig& config, const BatchShape& batch, const ModelOptions& options) {
    return Builder(config, batch, options).build();
}

ParameterTable parameters_of(const ModelConfig& config, int64_t sequence_length) {
    return build_model(config, {.tokens = sequence_length, .sequence_length = sequence_length},
                       {.logit_rows = sequence_length})
        .table;
}

}  // namespace speedrun
