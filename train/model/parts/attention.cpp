#include "train/model/parts/attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "data/columns/key_positions.h"
#include "kernels/device/error.h"
#include "train/model/attention_layer.h"
#include "train/model/nodes/head_columns.h"
#include "train/model/nodes/key_exchange.h"
#include "train/model/nodes/key_routes.h"
#include "train/model/parts/paired_heads.h"
#include "train/model/tensor_axis.h"

namespace speedrun {

namespace {

// Returns the keys that need all heads, separated by commas.
std::string reason_of(const AttentionConfig& attention) {
    std::string reason;
    const auto add = [&](const std::string& name) { reason += (reason.empty() ? "" : ", ") + name; };
    for (const auto& [key, part] : attention.parts.all())
        if (part->needs_all_heads()) add(key);
    if (!attention.values.empty()) add("values");
    return reason;
}

// With sequence parallelism, ranks exchange the sum of the terms instead of each term.
std::vector<WeightedSum::Term> terms_of_all_tokens(const AttentionLayer& a) {
    const std::vector<WeightedSum::Term>& terms = a.added_to_values;
    if (terms.empty() || !a.w.batch.tensor.sequence) return terms;
    const ValueId sum = a.w.sum("added to v", a.w.extents.width(), terms);
    return {{.value = into_whole(a.w, sum)}};
}

void add_values(AttentionLayer& a, bool mixed) {
    const AttentionConfig& config = a.config;
    // Without a factor of v the sum replaces v in the memory of the projection, and its gradient is that of v.
    const bool in_place = !mixed && !config.parts.find<PairedHeadsPart>();
    a.value_terms = {{.value = a.v, .is_view = !in_place}};
    if (mixed) {
        const ParameterId mix = a.w.parameter(
            "attn.value_mix", {{Dimension::numbers, 2}},
            {a.w.filled(config.value_start), "a, b: v becomes a v + b row of " + config.value_table});
        a.value_terms = {{.value = a.v, .parameter = mix, .element = 0},
                         {.value = a.value_rows, .parameter = mix, .element = 1}};
    }
    a.run(AttentionSlot::values);
    for (const WeightedSum::Term& term : terms_of_all_tokens(a)) a.value_terms.push_back(term);
    if (a.value_terms.size() == 1) return;
    if (in_place)
        for (size_t i = 1; i < a.value_terms.size(); ++i) a.value_terms[i].is_view = true;
    const ValueId sum = in_place ? a.w.view(a.qkv, "mixed v", 2 * a.qk_width().size, a.head_width().size)
                                 : a.head_rows("mixed v");
    a.w.sum(sum, a.value_terms);
    a.v = sum;
}

ValueId plain_attention(AttentionLayer& a) {
    GraphWriter& w = a.w;
    AttentionOptions how = a.options;
    const ValueId out = a.head_rows("attn_out"),
                  lse = w.f32("lse", {{a.heads.dimension, how.num_heads}, w.extents.tokens()});
    const BatchShape& batch = w.batch;
    Attention::Ports ports{
        .out = out, .lse = lse, .q = a.q, .k = a.k, .v = a.v, .first_key = w.input(first_key_column())};
    if (batch.part.size > 1) {
        const int64_t qk = a.qk_width().size, v = a.head_width().size;
        const SharedKeys shared{.part = batch.part,
                                .rows = batch.tokens / batch.sequence_length,
                                .row = {batch.sequence_length, how.window},
                                .columns = qk + v};
        const KeyPositions places{.window = how.window, .kept = KeptKeys(batch.part, shared.row)};
        ports.place = w.input(last_key_column(places));
        ports.first_key = w.input(first_kept_key_column(places));
        const ValueId kept =
            w.model.graph.value(w.name("keys and values"), Element::compute_dtype,
                                {{Dimension::keys, shared.rows * places.kept.count()}, a.kv_width()});
        w.add<KeyExchange>({.kept = kept, .k = a.k, .v = a.v}, shared);
        ports.k = w.view(kept, "keys", 0, qk);
        ports.v = w.view(kept, "values", qk, v);
        how.sequence_length = places.kept.count();
        how.visible_pairs = shared.rows * places.kept.visible_pairs();
    }
    w.add<Attention>(ports, how);
    return out;
}

}  // namespace

ValueId AttentionLayer::rows_of_v(ValueId table_rows) const {
    if (w.model.graph.width_of(table_rows) == head_width().size) return table_rows;
    const ValueId rows = head_rows("value rows");
    w.add<HeadColumns>({.y = rows, .x = table_rows}, heads.size);
    return rows;
}

int64_t AttentionScope::head_pairs() const {
    return attention.qk_dim(model_dim) / 2;
}

void AttentionScope::check_columns(const std::string& field, int64_t columns) const {
    if (columns > model_dim)
        throw_usage("{}.{} {} exceeds model.model_dim {}", key, field, columns, model_dim);
}

void AttentionConfig::fields(FieldVisitor& v) {
    v.field("heads", heads, "number of heads; divides model.model_dim, unless both head sizes are given",
            {1, 1024});
    v.field("qk_head_dim", qk_head_dim, "head size of q and k; 0: model.model_dim / heads", {0, kMaxHeadDim});
    v.field("v_head_dim", v_head_dim, "head size of v and the output; 0: model.model_dim / heads",
            {0, kMaxHeadDim});
    v.field("reads", reads,
            "input of q, k and v, before its norm: \"after 3\" (output of layer 3), \"input\" or \"first\" "
            "(model.networks.NAME.input); empty: the stream");
    v.field("bias", bias, "biases of the linear layers");
    v.field("scale", scale, "factor of q.k; 0: 1/sqrt(head size of q)", {0, 100});
    v.field("window", window,
            "largest number of keys per query, itself included: a number, 0 for all, or a name "
            "in model.windows");
    v.field("value_table", value_table,
            "table of tokens with value embeddings; v becomes a*v + b*row with learned a and b; empty: none");
    v.field("value_start", value_start, "initial factors of value_table and value_scale", {-1e6, 1e6});
    v.field(
        "value_scale", value_scale,
        "learned factor of v, without a value_table or with a value_gate; a value_table without a gate always has this "
        "factor");
    v.objects("values", values,
              "terms added to v; \"stream\" is the stream before attention and before its norm");
    v.retired("add_to_values", {"[]", "\"values\": [{\"of\": \"input\", \"scale\": 0}]"});
    parts.fields(v);
    init_field(v, "init", init, "initial matrix of q, k and v");
    init_field(v, "out_init", out_init, "initial output matrix");
    v.objects("after", after, kAfterHelp);
    v.retired("out_scale",
              {"0.0", "gain of a term of after: {\"of\": \"output\", \"scale\": 1, \"gain\": 1}"});
    v.retired("join", kJoinRetired);
}

void AttentionConfig::check_widths(const std::string& key, const ModelParts& model, int64_t model_dim) const {
    if ((qk_head_dim == 0 || v_head_dim == 0) && model_dim % heads != 0)
        throw_usage(
            "{}.heads {} does not divide model.model_dim {}: set another number of heads, or both qk_head_dim and v_head_dim",
            key, heads, model_dim);
    const int64_t width = heads * v_dim(model_dim);
    const std::string of_v = fmt::format("v has {} heads of {} dimensions", heads, v_dim(model_dim));
    if (!values.empty() && width != model_dim)
        throw_usage(
            "{}.values: the terms have model.model_dim {} columns, but {}: set heads and v_head_dim to a product of {}, or remove "
            "the terms",
            key, model_dim, of_v, model_dim);
    if (value_table.empty()) return;
    const int64_t columns = value_table_columns(model, value_table, model_dim);
    if (columns % heads != 0 || columns < width)
        throw_usage(
            "{}.value_table: rows of \"{}\" have {} columns (model.model_dim if model.output adds them, otherwise the widest v of "
            "its layers), but {}, which read the first columns of equal shares of a row: set heads to a divisor of {}, and "
            "v_head_dim to at most {} / heads",
            key, value_table, columns, of_v, columns, columns);
}

void AttentionConfig::check(int64_t layer, const ModelParts& model, int64_t model_dim) const {
    const std::string key = fmt::format("model.layers, layer {}: attention", layer);
    check_widths(key, model, model_dim);
    for (const auto& [name, part] : parts.all())
        part->check({.key = key + "." + name, .attention = *this, .model = model, .model_dim = model_dim});
    model.window_of(*this, layer);
    if (!reads.empty()) earlier_place(key + ".reads", reads, layer, model.layers.resolved());
}

void AttentionConfig::build(AttentionLayer& a) const {
    GraphWriter& w = a.w;
    const int64_t qk = a.qk_width().size, v = a.head_width().size;
    for (const auto& [key, part] : parts.all()) part->build(a);
    const bool mixed = !value_table.empty() && !parts.value_rows();
    using Factor = GraphWriter::Weight::Factor;
    a.qkv = w.linear("attn.qkv", a.normed,
                     {.outputs = a.qkv_width(),
                      .inputs = w.extents.width(),
                      .init = init,
                      .bias = bias,
                      .fan_in = w.extents.width().size,
                      .meaning = "rows of q, then k, then v, each head by head: W x, x normed",
                      .head_rows = {.stacks = 2, .heads = heads},
                      .factor = value_scale && !mixed ? std::optional<Factor>({.name = "attn.value_scale",
                                                                               .start = value_start,
                                                                               .meaning = "a: v becomes a v",
                                                                               .outputs = v})
                                                      : std::nullopt});
    a.q = w.view(a.qkv, "projected q", 0, qk);
    a.k = w.view(a.qkv, "projected k", qk, qk);
    a.v = w.view(a.qkv, "v", 2 * qk, v);
    if (mixed) a.value_rows = a.rows_of_v(a.tables.lookup("value_embedding", value_table));

    a.scale = scale > 0 ? scale : 1.0 / std::sqrt(static_cast<double>(a.qk_dim()));
    add_values(a, mixed);
    a.run(AttentionSlot::rotate);  // next to attention, with which its backward may be one operation
    a.run(AttentionSlot::keys);
    a.options = {.sequence_length = w.batch.sequence_length,
                 .num_heads = a.heads.size,
                 .head_dim = a.qk_dim(),
                 .window = a.model.window_of(*this, a.layer),
                 .scale = static_cast<float>(a.scale),
                 .documents = a.documents};
    a.run(AttentionSlot::layout);
    a.run(AttentionSlot::before);
    a.run(AttentionSlot::attend);
    if (a.out == kNoValue) a.out = plain_attention(a);
    a.run(AttentionSlot::attended);
    a.run(AttentionSlot::output);
    const ValueId out =
        w.linear("attn.out", a.out,
                 {.outputs = w.extents.width(),
                  .inputs = a.head_width(),
                  .init = out_init,
                  .bias = bias,
                  .fan_in = heads * a.v_dim(),
                  .meaning = "W o is added to the stream, o the heads' outputs beside each other",
                  .addend = a.addend});
    a.out = a.is_whole() ? shared_out(w, out) : into_stream(w, out);
}

int64_t value_table_columns(const ModelParts& parts, const std::string& table, int64_t model_dim) {
    for (const StreamPartConfig& part : parts.output)
        for (const SumTerm& term : part.terms)
            if (term.table == table) return model_dim;
    int64_t columns = 0;
    for (const std::optional<LayerConfig>& layer : parts.layers.resolved())
        if (layer && layer->attention && layer->attention->value_table == table)
            columns = std::max(columns, layer->attention->heads * layer->attention->v_dim(model_dim));
    return columns;
}

WholeAttention whole_attention(const ModelParts& parts) {
    WholeAttention whole;
    const std::vector<std::optional<LayerConfig>> layers = parts.layers.resolved();
    std::set<std::string> added;
    for (const StreamPartConfig& part : parts.output)
        for (const SumTerm& term : part.terms)
            if (!term.table.empty()) added.insert(term.table);
    // Iterates to a fixed point: a whole table makes all attention that reads it whole.
    for (bool found = true; found;) {
        found = false;
        for (size_t i = 0; i < layers.size(); ++i) {
            const auto number = static_cast<int64_t>(i);
            if (!layers[i] || !layers[i]->attention || whole.layers.count(number)) continue;
            const AttentionConfig& attention = *layers[i]->attention;
            const std::string& table = attention.value_table;
            std::string reason = reason_of(attention);
            if (reason.empty() && (added.count(table) || whole.tables.count(table)))
                reason = "rows of " + table;
            if (reason.empty()) continue;
            whole.layers[number] = std::move(reason);
            if (!table.empty()) whole.tables.insert(table);
            found = true;
        }
    }
    return whole;
}

std::string WholeAttention::describe() const {
    std::vector<std::pair<std::string, std::string>> numbers;  // reason -> layers, by first layer
    for (const auto& [layer, reason] : layers) {
        const auto at = std::find_if(numbers.begin(), numbers.end(),
                                     [&, why = reason](const auto& known) { return known.first == why; });
        if (at == numbers.end())
            numbers.emplace_back(reason, std::to_string(layer));
        else
            at->second += ", " + std::to_string(layer);
    }
    std::string text = layers.size() == 1 ? "attention of layer" : "attention of layers";
    for (const auto& [reason, those] : numbers)
        text += fmt::format("{} {} ({})", text.back() == ')' ? "," : "", those, reason);
    for (const std::string& table : tables) text += ", table " + table;
    return text;
}

}  // namespace speedrun
