#include "train/model/build_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
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
        : config_(config),
          parts_(config.spelled_out()),
          layers_(parts_.layers.resolved()),
          batch_(batch),
          options_(options) {}

    ModelGraph build() {
        m_.tokens = ids("batch.tokens");
        m_.targets = ids("batch.targets");
        m_.positions = ids("batch.positions");
        m_.first_key = ids("batch.first_key");
        for (int64_t n = 2; n <= parts_.ngram_table().max_ngram; ++n)
            m_.ngrams.push_back(ids(fmt::format("batch.{}-grams", n)));
        note_what_is_read();
        declare_tables();

        g().name_unit("embeddings");
        stream_ = first_ = input();
        for (size_t i = 0; i < layers_.size(); ++i) {
            if (!layers_[i]) continue;
            begin_unit(fmt::format("block {}", i), fmt::format("blocks.{}.", i));
            layer(*layers_[i], static_cast<int64_t>(i));
        }
        begin_unit("head", "");
        head(output());
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

    // ---- parameters

    static InitRule constant(double value) { return {InitRule::Kind::constant, static_cast<float>(value)}; }
    InitRule rule(const InitConfig& init, int64_t fan_in) const {
        if (init.type == InitKind::constant) return constant(init.value);
        const bool uniform = init.type == InitKind::uniform;
        // A uniform distribution over ±b has the deviation b/√3.
        double scale = config_.init_scale * (uniform ? std::sqrt(3.0) : 1.0) * init.value;
        if (init.by_fan_in) scale /= std::sqrt(static_cast<double>(fan_in));
        return {uniform ? InitRule::Kind::uniform : InitRule::Kind::normal, static_cast<float>(scale)};
    }
    ParameterId parameter(const std::string& name, const std::vector<Extent>& extents, InitRule init,
                          int64_t matrices = 1) {
        return m_.table.declare(prefix_ + name, extents, init, matrices);
    }
    // The tables that tokens are looked up in, before all else: their place in the table of parameters.
    void declare_tables() {
        for (const auto& [name, table] : parts_.tables) {
            const bool of_values = value_tables_.count(name) > 0;
            Extent rows = vocabulary();
            if (table.rows == TableRows::positions) rows = {Dimension::positions, batch_.sequence_length};
            if (table.rows == TableRows::ngrams) rows = {Dimension::vocabulary, table.num_rows};
            tables_[name] = parameter(name + ".weight", {rows, of_values ? head_width() : width()},
                                      rule(table.init, config_.model_dim));
        }
    }

    // ---- before the first layer

    // Which layers' outputs and which tables are read elsewhere.
    void note_what_is_read() {
        for (const SkipConfig& skip : parts_.skips) kept_.insert(skip.from);
        for (const StreamPartConfig& part : parts_.output)
            if (part.type == StreamPart::backout) kept_.insert(part.layer);
        for (const auto& layer : layers_)
            if (layer && layer->attention && !layer->attention->value_table.empty())
                value_tables_.insert(layer->attention->value_table);
    }

    ValueId input() {
        ValueId x = kNoValue;
        for (size_t i = 0; i < parts_.input.size(); ++i) {
            const StreamPartConfig& part = parts_.input[i];
            if (part.type == StreamPart::norm) {
                const ValueId normed = real("first", width());
                add<Norm>({.y = normed, .statistics = statistics("embedding"), .x = x}, parts_.norms.type);
                x = normed;
                continue;
            }
            const TableConfig& table = *parts_.find_table(part.table);
            if (table.rows == TableRows::ngrams) {
                x = ngrams(x, part.table);
            } else if (i == 0) {
                // One operation looks up token and position.
                const bool then_position =
                    parts_.input.size() > 1 && parts_.input[1].type == StreamPart::table &&
                    parts_.find_table(parts_.input[1].table)->rows == TableRows::positions;
                x = lookup("embedding", part.table, then_position ? parts_.input[1].table : "");
                i += then_position ? 1 : 0;
            } else {
                const ValueId rows = lookup(part.table, part.table);
                const ValueId sum = real("embedding and " + part.table, width());
                add<Add>({.sum = sum, .x = x, .delta = rows});
                x = sum;
            }
        }
        return x;
    }

    ValueId lookup(const std::string& name, const std::string& table, const std::string& positions = "") {
        const bool of_values = value_tables_.count(table) > 0;
        const ValueId rows = real(name, of_values ? head_width() : width());
        const bool by_position = parts_.find_table(table)->rows == TableRows::positions;
        add<Embedding>({.out = rows,
                        .tokens = by_position ? m_.positions : m_.tokens,
                        .table = tables_.at(table),
                        .table_rows = by_position ? batch_.sequence_length : config_.padded_vocab_size(),
                        .positions = positions.empty() ? kNoValue : m_.positions,
                        .position_table = positions.empty() ? kNoParameter : tables_.at(positions),
                        .position_rows = batch_.sequence_length});
        return rows;
    }

    ValueId ngrams(ValueId x, const std::string& table) {
        const ValueId with = g().view(x, "embedding with n-grams", 0, config_.model_dim);
        add<NgramEmbedding>({.out = with,
                             .x = x,
                             .rows = m_.ngrams,
                             .table = tables_.at(table),
                             .table_rows = parts_.ngram_table().num_rows},
                            batch_.tokens, config_.model_dim);
        return with;
    }

    // ---- the stream

    void begin_unit(std::string name, const std::string& prefix) {
        prefix_ = prefix;
        g().begin_unit();
        g().name_unit(std::move(name), prefix);
        if (!kept_.count(last_)) return;
        stream_ = residual("entered");
        after_[last_] = stream_;
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
        const bool centred = parts_.norms.type == NormKind::layernorm;
        return {centred ? f32(name + "_mean", {tokens()}) : kNoValue, f32(name + "_rstd", {tokens()})};
    }
    NormParameters norm_parameters(const std::string& name) {
        NormParameters parameters;
        if (parts_.norms.gain) parameters.gain = parameter(name + ".gain", {width()}, constant(1));
        if (parts_.norms.bias) parameters.bias = parameter(name + ".bias", {width()}, constant(0));
        return parameters;
    }
    ValueId norm(const std::string& name) {
        stream_ = residual((name + " input").c_str());
        const ValueId y = real(name, width());
        add<Norm>({.y = y, .statistics = statistics(name), .x = stream_, .parameters = norm_parameters(name)},
                  parts_.norms.type);
        return y;
    }
    ValueId mixed_norm(const MixConfig& mix) {
        const ValueId entered = residual("entered");
        const ValueId y = real("attn_norm", width());
        stream_ = real("attn_norm input", width());
        const ParameterId coefficients = parameter(
            "mix", {{Dimension::numbers, 2}}, {InitRule::Kind::first_element, static_cast<float>(mix.start)});
        add<MixNorm>({.s = stream_,
                      .y = y,
                      .statistics = statistics("attn_norm"),
                      .x = entered,
                      .z = first_,
                      .coefficients = coefficients,
                      .parameters = norm_parameters("attn_norm")},
                     parts_.norms.type);
        return y;
    }

    // ---- layers

    void layer(const LayerConfig& layer, int64_t number) {
        if (layer.attention)
            delta_ =
                attention(*layer.attention, number, layer.mix ? mixed_norm(*layer.mix) : norm("attn_norm"));
        if (layer.mlp) delta_ = mlp(*layer.mlp, norm("mlp_norm"));
        last_ = number;
    }

    struct Weight {
        Extent outputs, inputs;
        InitConfig init;
        bool bias;
        int64_t matrices = 1;
    };
    ValueId linear(const std::string& name, ValueId x, const Weight& w) {
        const ParameterId weight =
            parameter(name + ".weight", {w.outputs, w.inputs}, rule(w.init, w.inputs.size), w.matrices);
        const ParameterId bias = w.bias ? parameter(name + ".bias", {w.outputs}, constant(0)) : kNoParameter;
        const ValueId y = real(name, w.outputs);
        add<Linear>({.y = y, .x = x, .weight = weight, .bias = bias});
        return y;
    }

    ValueId attention(const AttentionConfig& config, int64_t number, ValueId normed) {
        const int64_t C = config_.model_dim, H = config.heads, D = C / H;
        const ValueId qkv = linear("attn.qkv", normed,
                                   {.outputs = head_width(3),
                                    .inputs = width(),
                                    .init = config.init,
                                    .bias = config.bias,
                                    .matrices = 3});
        ValueId q = g().view(qkv, prefix_ + "projected q", 0, C);
        ValueId k = g().view(qkv, prefix_ + "projected k", C, C);
        ValueId v = g().view(qkv, prefix_ + "v", 2 * C, C);
        const ValueId embedded =
            config.value_table.empty() ? kNoValue : lookup("value_embedding", config.value_table);

        const RotaryOptions rotary{
            .num_heads = H, .head_dim = D, .normalize = config.qk_norm, .rotate = config.rotary.has_value()};
        if (rotary.normalize || rotary.rotate) {
            const ValueId turned_q = g().view(qkv, prefix_ + "q", 0, C);
            const ValueId turned_k = g().view(qkv, prefix_ + "k", C, C);
            add<QkNormRotary>(
                {.q = turned_q,
                 .k = turned_k,
                 .rstd = rotary.normalize ? f32("qk_rstd", {tokens(), {Dimension::heads, 2 * H}}) : kNoValue,
                 .projected_q = q,
                 .projected_k = k,
                 .tables = config.rotary ? rotary_tables({.base = config.rotary->base, .half = D / 2})
                                         : RotaryTables{}},
                rotary);
            q = turned_q;
            k = turned_k;
        }
        if (embedded != kNoValue) {
            const ParameterId mix =
                parameter("attn.value_mix", {{Dimension::numbers, 2}}, constant(config.value_start));
            const ValueId mixed = real("mixed v", head_width());
            add<MixValues>(
                {.mixed = mixed, .v = v, .embedded = embedded, .coefficients = mix, .q = q, .k = k}, rotary);
            v = mixed;
        }
        const ValueId out = real("attn_out", head_width());
        const double usual_scale = 1.0 / std::sqrt(static_cast<double>(D));
        add<Attention>(
            {.out = out,
             .lse = f32("lse", {{Dimension::heads, H}, tokens()}),
             .q = q,
             .k = k,
             .v = v,
             .first_key = m_.first_key},
            AttentionOptions{.sequence_length = batch_.sequence_length,
                             .num_heads = H,
                             .head_dim = D,
                             .window = parts_.window_of(config, number),
                             .scale = static_cast<float>(config.scale > 0 ? config.scale : usual_scale),
                             .documents = options_.documents});
        return linear(
            "attn.out", out,
            {.outputs = width(), .inputs = head_width(), .init = config.out_init, .bias = config.bias});
    }

    ValueId mlp(const MlpConfig& config, ValueId normed) {
        const Extent hidden_width{Dimension::hidden, config.ratio * config_.model_dim};
        const ValueId hidden =
            linear("mlp.up", normed,
                   {.outputs = hidden_width, .inputs = width(), .init = config.init, .bias = config.bias});
        const ValueId activated = real("activated", hidden_width);
        add<Activate>({.y = activated, .x = hidden}, config.activation);
        return linear(
            "mlp.down", activated,
            {.outputs = width(), .inputs = hidden_width, .init = config.down_init, .bias = config.bias});
    }

    // Su et al. 2021, eq. 15: θ_i = base^(−2i/D).
    struct RotaryKey {
        double base;
        int64_t half;  // frequencies, D/2
        auto operator<=>(const RotaryKey&) const = default;
    };
    const RotaryTables& rotary_tables(const RotaryKey& key) {
        const auto [at, is_new] = rotary_.try_emplace(key);
        if (!is_new) return at->second;
        const int64_t length = batch_.sequence_length;
        std::vector<float> cos, sin;
        for (int64_t position = 0; position < length; ++position) {
            for (int64_t i = 0; i < key.half; ++i) {
                const double angle =
                    static_cast<double>(position) *
                    std::pow(key.base, -static_cast<double>(i) / static_cast<double>(key.half));
                cos.push_back(static_cast<float>(std::cos(angle)));
                sin.push_back(static_cast<float>(std::sin(angle)));
            }
        }
        const std::vector<Extent> extents{{Dimension::positions, length}, {Dimension::half_head, key.half}};
        at->second = {.cos = g().constant("rotary cos", extents, std::move(cos)),
                      .sin = g().constant("rotary sin", extents, std::move(sin)),
                      .positions = m_.positions};
        return at->second;
    }

    // ---- behind the last layer

    ValueId output() {
        ValueId x = kNoValue;
        for (const StreamPartConfig& part : parts_.output)
            if (part.type == StreamPart::norm) x = stream_ = norm("final_norm");
        return x == kNoValue ? residual("final") : x;
    }

    void head(ValueId x) {
        const HeadConfig& config = parts_.head;
        const ParameterId weight = !config.tied_to.empty() ? tables_.at(config.tied_to)
                                                           : parameter("head.weight", {vocabulary(), width()},
                                                                       rule(config.init, config_.model_dim));
        m_.losses = g().value("losses", Element::f32, {tokens()}, Holder::model);
        const int64_t padded = config_.padded_vocab_size();
        m_.head = &g().add(std::make_unique<Head>(
            Head::Ports{.losses = m_.losses, .x = x, .targets = m_.targets, .weight = weight},
            HeadOptions{.num_tokens = batch_.tokens,
                        .logit_rows = options_.logit_rows,
                        .vocab_size = parts_.loss.padding ? padded : config_.vocab_size,
                        .padded_vocab_size = padded,
                        .softcap = config.softcap}));
    }

    const ModelConfig& config_;
    const ModelParts parts_;
    const std::vector<std::optional<LayerConfig>> layers_;
    const BatchShape batch_;
    const ModelOptions options_;
    ModelGraph m_{};
    std::map<RotaryKey, RotaryTables> rotary_;
    std::map<std::string, ParameterId> tables_;
    std::set<std::string> value_tables_;
    std::set<int64_t> kept_;                        // layers whose output is read elsewhere
    std::map<int64_t, ValueId> after_;              // those outputs
    std::string prefix_;                            // of the unit's names
    int64_t last_ = -1;                             // the layer before the unit at hand
    ValueId first_ = kNoValue;                      // what entered the first layer
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
