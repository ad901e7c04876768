#include "train/model/build_model.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "kernels/device/error.h"
#include "train/model/attention_layer.h"
#include "train/model/graph/parameter_uses.h"
#include "train/model/layers.h"
#include "train/model/tensor_axis.h"

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
        for (const int64_t layer : networks.layers_read()) kept_.insert(layer);
        for (const auto& layer : layers)
            if (layer && layer->attention) keep(layer->attention->reads);
        const std::vector<Sum> sums = sums_of(parts_);
        for (const Sum& sum : sums)
            for (const SumTerm& term : sum.terms)
                if (term.is_place()) keep(term.of);

        model.graph.name_unit("embeddings");
        stream_ = places_[StreamPlace::kFirst] = write_stream_input(w_, parts_, tables);
        networks.write({StreamPlace::kFirst}, stream_);
        tables_ = &tables;
        for (const StreamPartConfig& part : parts_.input)
            if (part.type == StreamPart::sum) combine(SumSlot::input, "input", part.terms);
        // The first unit looks up rows for the sums of all layers.
        for (const Sum& sum : sums)
            for (const SumTerm& term : sum.terms)
                if (sum.slot != SumSlot::output && !term.table.empty()) tables.in_stream(term.table);
        places_[StreamPlace::kInput] = stream_;
        networks.write({StreamPlace::kInput}, stream_);
        for (size_t i = 0; i < layers.size(); ++i) {
            if (!layers[i]) continue;
            const auto number = static_cast<int64_t>(i);
            begin_unit(fmt::format("block {}", i), fmt::format("blocks.{}.", i));
            for (const SumConfig& sum : layers[i]->enter) {
                entered("entered");
                combine(SumSlot::enter, "attn_norm input", sum.terms);
            }
            if (layers[i]->attention) {
                const AttentionConfig& attention = *layers[i]->attention;
                const bool whole = whole_.layers.count(number) > 0;
                AttentionLayer layer({.w = w_,
                                      .networks = networks,
                                      .tables = tables,
                                      .model = parts_,
                                      .config = attention,
                                      .layer = number,
                                      .heads = whole ? Extent{Dimension::all_heads, attention.heads}
                                                     : w_.extents.cut({Dimension::heads, attention.heads}),
                                      .normed = attention_input(attention, whole),
                                      .addend = addend(attention.after),
                                      .added_to_values = terms(SumSlot::values, attention.values),
                                      .documents = options_.documents});
                attention.build(layer);
                leave(layer.out, layer.addend);
                if (!attention.after.empty()) combine(SumSlot::attention, "after attn", attention.after);
            }
            if (layers[i]->mlp) {
                // Redistributed rows have another maximum.
                const bool needs_amax = layers[i]->mlp->scales_by_amax() && w_.batch.tensor.size == 1;
                const ValueId normed = norm("mlp_norm", needs_amax);
                MlpLayer mlp{.w = w_, .normed = normed, .addend = addend(layers[i]->mlp->after)};
                layers[i]->mlp->build(mlp);
                leave(mlp.out, mlp.addend);
                if (!layers[i]->mlp->after.empty()) combine(SumSlot::mlp, "after mlp", layers[i]->mlp->after);
            }
            last_ = number;
        }
        begin_unit("head", "");
        const std::string& tied = parts_.head.tied_to;
        HeadLayer head{.w = w_,
                       .config = config_,
                       .loss = parts_.loss,
                       .x = into_matrices(w_, output()),
                       .table = tied.empty() ? kNoParameter : tables[tied],
                       .logit_rows = options_.logit_rows};
        parts_.head.build(head);
        note_parameter_uses(model.graph, model.table);
        return std::move(model);
    }

  private:
    // Returns the columns of this rank for each table that attention adds to its values.
    std::map<std::string, Extent> value_columns(const std::vector<std::optional<LayerConfig>>& layers) const {
        std::map<std::string, Extent> columns;
        for (const auto& layer : layers) {
            if (!layer || !layer->attention || layer->attention->value_table.empty()) continue;
            const std::string& table = layer->attention->value_table;
            columns[table] = w_.extents.head_width({value_table_columns(parts_, table, config_.model_dim)},
                                                   whole_.tables.count(table) > 0);
        }
        return columns;
    }
    void begin_unit(std::string name, const std::string& prefix) {
        w_.begin_unit(std::move(name), prefix);
        if (!kept_.count(last_)) return;
        places_[last_] = entered(fmt::format("output of block {}", last_));
        networks_->write({last_}, stream_);
    }

    // Adds the output of the last sublayer to the stream and returns it.
    ValueId entered(const std::string& name) {
        if (delta_ == kNoValue) return stream_;
        const ValueId sum = w_.compute_value(name, w_.extents.stream_tokens(), w_.extents.width());
        w_.add<Add>({.sum = sum, .x = stream_, .delta = delta_});
        delta_ = kNoValue;
        stream_ = sum;
        return stream_;
    }
    // Returns the stream, if the last matmul of the open sublayer adds it. With tensor parallelism that matmul is a term of a sum over
    // ranks.
    ValueId addend(const std::vector<SumTerm>& after) const {
        return after.empty() && w_.batch.tensor.size == 1 ? stream_ : kNoValue;
    }
    // Ends a sublayer: out is the new stream if it has the addend, otherwise the term to add.
    void leave(ValueId out, ValueId addend) { (addend == kNoValue ? delta_ : stream_) = out; }
    void keep(const std::string& place) {
        if (!place.empty()) kept_.insert(stream_place("place", place).after);
    }
    // Returns the input of attention. Layers that read one place share a norm without parameters and its redistribution. Whole
    // attention has its own: its gradient is not a term of a sum over ranks.
    ValueId attention_input(const AttentionConfig& config, bool whole) {
        const auto to_all = [&](ValueId x) { return whole ? into_whole(w_, x) : into_matrices(w_, x); };
        if (config.reads.empty()) return to_all(norm("attn_norm"));
        entered("attn_norm input");
        const int64_t place = stream_place("reads", config.reads).after;
        const auto write = [&] { return to_all(w_.norm("attn_norm", places_.at(place))); };
        if (parts_.norms.gain || parts_.norms.bias) return write();
        const auto [normed, is_new] = normed_.try_emplace({place, whole});
        if (is_new) normed->second = write();
        return normed->second;
    }
    ValueId norm(const std::string& name, bool needs_amax = false) {
        return w_.norm(name, entered(name + " input"), needs_amax);
    }
    std::vector<WeightedSum::Term> terms(SumSlot slot, const std::vector<SumTerm>& sum) {
        SumLayer layer{.w = w_,
                       .networks = *networks_,
                       .tables = *tables_,
                       .places = places_,
                       .stream = stream_,
                       .output = delta_};
        build_sum(layer, slot, sum);
        return std::move(layer.terms);
    }
    // The sum is the new stream.
    void combine(SumSlot slot, const std::string& name, const std::vector<SumTerm>& sum) {
        stream_ = w_.sum(name, w_.extents.width(), terms(slot, sum));
        delta_ = kNoValue;
    }

    // Returns the input of the head.
    ValueId output() {
        for (const StreamPartConfig& part : parts_.output) {
            if (part.type == StreamPart::norm) {
                stream_ = norm("final_norm");
                continue;
            }
            entered("last");
            combine(SumSlot::output, "output", part.terms);
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
    std::set<int64_t> kept_;                              // layers with outputs that other nodes read
    std::map<int64_t, ValueId> places_;                   // values by StreamPlace::after
    std::map<std::pair<int64_t, bool>, ValueId> normed_;  // inputs of attention by place and `whole`
    int64_t last_ = -1;                                   // layer before the current unit
    ValueId stream_ = kNoValue, delta_ = kNoValue;        // residual stream; sublayer output to add
};

}  // namespace

ModelGraph build_model(const ModelConfig& config, const BatchShape& batch, const ModelOptions& options) {
    return Builder(config, batch, options).build();
}

ParameterTable parameters_of(const ModelConfig& config, int64_t longest_sequence, const TensorSlice& tensor) {
    // One row per rank, so that ranks can share the rows evenly.
    const BatchShape batch{
        .tokens = tensor.size * longest_sequence, .sequence_length = longest_sequence, .tensor = tensor};
    return build_model(config.in_stage(0), batch, {.logit_rows = batch.tokens}).table;
}

}  // namespace speedrun
