#include "train/model/build_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "kernels/device/error.h"
#include "train/config/whole_attention.h"
#include "train/model/attention_writer.h"
#include "train/model/graph/parameter_uses.h"
#include "train/model/layers.h"
#include "train/model/networks.h"
#include "train/model/nodes/gate.h"
#include "train/model/stream_input.h"

namespace speedrun {

namespace {

class Builder {
  public:
    Builder(const ModelConfig& config, const BatchShape& batch, const ModelOptions& options)
        : config_(config),
          options_(options),
          parts_(config.parts),
          whole_(whole_attention(parts_)),
          w_(config, parts_, batch) {}

    ModelGraph build() {
        ModelGraph& model = w_.model;
        w_.input(tokens_column());
        parts_.loss.add_columns(w_);
        w_.input(positions_column());
        w_.input(first_key_column());
        const NgramTable ngrams = parts_.ngram_table();
        for (const Column& column : ngram_columns(ngrams)) w_.input(column);
        if (ngrams.sign_rows > 0) w_.input(sign_rows_column(ngrams));
        const std::vector<std::optional<LayerConfig>> layers = parts_.layers.resolved();
        TokenTables tables(w_, parts_, value_columns(layers));
        Networks networks(w_, parts_);
        networks_ = &networks;
        AttentionWriter attention_writer(w_, parts_, tables, networks, whole_, options_);
        for (const int64_t layer : networks.layers_read()) kept_.insert(layer);
        for (const auto& layer : layers) {
            if (!layer) continue;
            if (layer->attention) keep(layer->attention->reads);
            for (const InjectedConfig* const injected : layer->injected()) keep(*injected);
        }
        for (const SkipConfig& skip : parts_.skips) kept_.insert(skip.from);
        for (const StreamPartConfig& part : parts_.output)
            if (part.type == StreamPart::backout)
                kept_.insert(part.layer);
            else if (part.type == StreamPart::add)
                keep(added_by(part));

        model.graph.name_unit("embeddings");
        stream_ = first_ = StreamInput(w_, parts_, tables).write();
        networks.write({StreamPlace::kFirst}, first_);
        tables_ = &tables;
        inject(layers);
        after_[StreamPlace::kFirst] = first_;
        after_[StreamPlace::kInput] = stream_;
        networks.write({StreamPlace::kInput}, stream_);
        for (size_t i = 0; i < layers.size(); ++i) {
            if (!layers[i]) continue;
            const auto number = static_cast<int64_t>(i);
            begin_unit(fmt::format("block {}", i), fmt::format("blocks.{}.", i));
            enter(*layers[i], number);
            if (layers[i]->attention) {
                const AttentionConfig& attention = *layers[i]->attention;
                const ValueId normed = attention_input(attention, whole_.layers.count(number) > 0);
                delta_ = attention_writer.write(number, attention,
                                                {normed, added(attention.add_to_values, "attn.value_", "v")});
                join("attn", attention.join, attention.out_scale);
            }
            if (layers[i]->mlp) {
                MlpLayer mlp{.w = w_, .normed = norm("mlp_norm")};
                layers[i]->mlp->build(mlp);
                delta_ = mlp.out;
                join("mlp", layers[i]->mlp->join);
            }
            last_ = number;
        }
        begin_unit("head", "");
        const std::string& tied = parts_.head.tied_to;
        HeadLayer head{.w = w_,
                       .config = config_,
                       .loss = parts_.loss,
                       .x = w_.into_matrices(output()),
                       .table = tied.empty() ? kNoParameter : tables[tied],
                       .logit_rows = options_.logit_rows};
        parts_.head.build(head);
        note_parameter_uses(model.graph, model.table);
        return std::move(model);
    }

  private:
    // By table whose rows are mixed into the values of attention: the columns that this rank has of it.
    std::map<std::string, Extent> value_columns(const std::vector<std::optional<LayerConfig>>& layers) const {
        std::map<std::string, Extent> columns;
        for (const auto& layer : layers) {
            if (!layer || !layer->attention || layer->attention->value_table.empty()) continue;
            const std::string& table = layer->attention->value_table;
            columns[table] = whole_.tables.count(table) > 0 ? w_.whole_head_width() : w_.head_width();
        }
        return columns;
    }
    void begin_unit(std::string name, const std::string& prefix) {
        w_.begin_unit(std::move(name), prefix);
        if (!kept_.count(last_)) return;
        after_[last_] = entered(fmt::format("output of block {}", last_));
        networks_->write({last_}, stream_);
    }

    // The residual stream, with what the last attention or MLP gave.
    ValueId entered(const std::string& name) {
        if (delta_ == kNoValue) return stream_;
        const ValueId sum = w_.real(name, w_.stream_tokens(), w_.width());
        w_.add<Add>({.sum = sum, .x = stream_, .delta = delta_});
        delta_ = kNoValue;
        stream_ = sum;
        return stream_;
    }
    void keep(const std::string& place) {
        if (!place.empty()) kept_.insert(stream_place("place", place).after);
    }
    void keep(const InjectedConfig& injected) {
        if (injected.table.empty() && !injected.is_stream()) keep(injected.of);
    }
    // What attention reads. Norms without parameters are written once for all layers that read a place, and so is the way to
    // all ranks: once for those that are whole, whose gradient is no term of a sum, and once for the others.
    ValueId attention_input(const AttentionConfig& config, bool whole) {
        const auto to_all = [&](ValueId x) { return whole ? w_.into_whole(x) : w_.into_matrices(x); };
        if (config.reads.empty()) return to_all(norm("attn_norm"));
        entered("attn_norm input");
        const int64_t place = stream_place("reads", config.reads).after;
        const auto write = [&] { return to_all(w_.norm("attn_norm", after_.at(place))); };
        if (parts_.norms.gain || parts_.norms.bias) return write();
        const auto [normed, is_new] = normed_.try_emplace({place, whole});
        if (is_new) normed->second = write();
        return normed->second;
    }
    ValueId norm(const std::string& name) { return w_.norm(name, entered(name + " input")); }
    // What the stream is, from here on.
    void combine(const std::string& name, const std::vector<WeightedSum::Term>& terms) {
        stream_ = w_.sum(name, w_.width(), terms);
    }

    // Adds tables to what enters the first layer, and looks up in the first unit what layers add as well.
    void inject(const std::vector<std::optional<LayerConfig>>& layers) {
        for (const StreamPartConfig& part : parts_.input) {
            if (part.type != StreamPart::inject) continue;
            const ValueId x = stream_, rows = tables_->in_stream(part.table);
            combine("with " + part.table,
                    {{.value = x},
                     times(rows, {"inject." + part.table, part.start, part.network,
                                  "h: x0 + h times the row of " + part.table + " enters the first layer"})});
        }
        for (const auto& layer : layers) {
            if (!layer) continue;
            for (const InjectedConfig* const injected : layer->injected())
                if (!injected->table.empty()) tables_->in_stream(injected->table);
        }
    }

    // A value times a factor that is learned, or that a network computes for each token.
    struct Factor {
        std::string name;
        double start;
        std::string network, meaning;
    };
    WeightedSum::Term times(ValueId value, const Factor& factor) {
        if (!factor.network.empty()) return {.value = value, .gate = networks_->number(factor.name)};
        return {.value = value, .parameter = w_.number(factor.name, factor.start, factor.meaning)};
    }

    // The term with one more factor, which numbers are multiplied by, and not what they weigh.
    WeightedSum::Term times_also(WeightedSum::Term term, ParameterId factor) {
        const std::vector<Extent> one(2, {Dimension::numbers, 1});
        ValueId number = term.gate;
        if (number == kNoValue) {
            number = w_.f32("number", one);
            w_.add<NumberGate>({.y = number, .one = w_.one(), .number = term.parameter},
                               GateActivation::identity);
        }
        const std::vector<Extent> extents = w_.model.graph[number].extents;
        const ValueId product = w_.f32("product of numbers", extents);
        w_.add<WeightedSum>({.y = product, .terms = {{.value = number, .parameter = factor}}},
                            extents[0].size);
        term.parameter = kNoParameter;
        term.gate = product;
        return term;
    }

    // What is added to `to` from other places, with factors whose names begin with the prefix.
    std::vector<WeightedSum::Term> added(const std::vector<InjectedConfig>& all, const std::string& prefix,
                                         const std::string& to) {
        std::vector<WeightedSum::Term> terms;
        for (const InjectedConfig& injected : all) terms.push_back(added(injected, prefix, to));
        return terms;
    }
    WeightedSum::Term added(const InjectedConfig& injected, const std::string& prefix,
                            const std::string& to) {
        const bool rows = !injected.table.empty();
        ValueId value = stream_;
        if (rows) value = tables_->in_stream(injected.table);
        if (!rows && !injected.is_stream()) value = after_.at(stream_place("of", injected.of).after);
        const std::string meaning = rows ? "h: + h times the row of " + injected.table
                                    : injected.of == InjectedConfig::kFirst
                                        ? "g: + g x0, x0 what the input gave"
                                        : "h: + h times the stream: " + injected.of;
        return times(value, {prefix + injected.factor_name(), injected.start, injected.network,
                             to.empty() ? meaning : to + ", " + meaning});
    }

    // The stream with what a sublayer gave, and what is injected behind it. out_scale: where another learned factor of
    // that starts; 0: there is none.
    void join(const std::string& sublayer, const std::optional<JoinConfig>& config, double out_scale = 0) {
        if (!config) return;
        const std::string own = sublayer + ".";
        std::vector<WeightedSum::Term> terms{
            times(stream_, {own + "stream_scale", config->stream, config->network,
                            "r: x becomes r x + p " + sublayer}),
            times(delta_, {own + "output_scale", config->output, config->network, "p, see stream_scale"})};
        if (out_scale != 0)
            terms[1] =
                times_also(terms[1], w_.number(own + "out_scale", out_scale,
                                               "s: a second factor of the output matrix, p becomes p s"));
        for (const WeightedSum::Term& term : added(config->inject, own, "")) terms.push_back(term);
        delta_ = kNoValue;
        combine("behind " + sublayer, terms);
    }

    // What a layer begins with: another layer's output added, mixed with what entered the first.
    void enter(const LayerConfig& layer, int64_t number) {
        for (const SkipConfig& skip : parts_.skips) {
            if (skip.to != number) continue;
            const ValueId x = entered("before the skip");
            const ValueId gate = w_.f32("skip gate", {{Dimension::numbers, 1}});
            w_.add<NumberGate>(
                {.y = gate,
                 .one = w_.one(),
                 .number = w_.number("skip", skip.start,
                                     fmt::format("s: sigmoid(s) x what block {} gave is added", skip.from))});
            combine("with the skip",
                    {{.value = x}, {.value = after_.at(skip.from), .gate = skip_factor(skip, gate)}});
        }
        if (!layer.mix) return;
        const ValueId x = entered("entered");
        if (!layer.mix->add.empty()) {
            std::vector<WeightedSum::Term> terms{times(
                x,
                {"mix.stream_scale", layer.mix->start, layer.mix->network, "a: the block begins from a x"})};
            for (const WeightedSum::Term& term : added(layer.mix->add, "mix.", "")) terms.push_back(term);
            return combine("attn_norm input", terms);
        }
        const ParameterId mix =
            w_.parameter("mix", {{Dimension::numbers, 2}},
                         {{InitRule::Kind::first_element, static_cast<float>(layer.mix->start)},
                          "a, b: the block begins from a x + b x0, x0 what entered the first"});
        combine("attn_norm input", {{.value = x, .parameter = mix, .element = 0},
                                    {.value = first_, .parameter = mix, .element = 1}});
    }

    // The sigmoid of a skip, times what a network says of each token.
    ValueId skip_factor(const SkipConfig& skip, ValueId gate) {
        if (skip.network.empty()) return gate;
        const ValueId of_token = networks_->number("skip_factor");
        const ValueId product = w_.f32("skip factor", {w_.stream_tokens(), {Dimension::numbers, 1}});
        w_.add<WeightedSum>({.y = product, .terms = {{.value = of_token, .gate = gate}}},
                            w_.stream_tokens().size);
        return product;
    }

    // What the head reads.
    ValueId output() {
        for (size_t i = 0; i < parts_.output.size(); ++i) {
            const StreamPartConfig& part = parts_.output[i];
            if (part.type == StreamPart::norm) {
                stream_ = norm("final_norm");
                continue;
            }
            if (part.type == StreamPart::add) {  // one sum for neighbours
                std::vector<WeightedSum::Term> terms{{.value = entered("before what is added")}};
                for (; i < parts_.output.size() && parts_.output[i].type == StreamPart::add; ++i)
                    terms.push_back(added(added_by(parts_.output[i]), "output.", ""));
                --i;
                combine(fmt::format("with {} added", terms.size() - 1), terms);
                continue;
            }
            const ValueId x = entered("before the backout");
            const ParameterId factor =
                w_.number(fmt::format("backout.{}", part.layer), part.start,
                          fmt::format("c: x becomes x - c times what block {} gave", part.layer));
            combine(fmt::format("without block {}", part.layer),
                    {{.value = x}, {.value = after_.at(part.layer), .parameter = factor, .factor = -1}});
        }
        return entered("final");
    }

    const ModelConfig& config_;
    const ModelOptions options_;
    const ModelParts parts_;
    const WholeAttention whole_;
    GraphWriter w_;
    Networks* networks_ = nullptr;
    TokenTables* tables_ = nullptr;
    std::set<int64_t> kept_;            // layers whose output is read elsewhere
    std::map<int64_t, ValueId> after_;  // those outputs, and other places (StreamPlace::after)
    std::map<std::pair<int64_t, bool>, ValueId> normed_;  // likewise, for attention, that is whole or not
    int64_t last_ = -1;                                   // the layer before the unit at hand
    ValueId first_ = kNoValue;                            // what entered the first layer
    ValueId stream_ = kNoValue, delta_ = kNoValue;  // residual stream, and what is still to be added to it
};

}  // namespace

ModelGraph build_model(const ModelConfig& config, const BatchShape& batch, const ModelOptions& options) {
    return Builder(config, batch, options).build();
}

ParameterTable parameters_of(const ModelConfig& config, int64_t longest_sequence, const TensorPart& tensor) {
    // There are as many rows as ranks, which can share them evenly.
    const BatchShape batch{
        .tokens = tensor.size * longest_sequence, .sequence_length = longest_sequence, .tensor = tensor};
    return build_model(config.in_stage(0), batch, {.logit_rows = batch.tokens}).table;
}

}  // namespace speedrun
