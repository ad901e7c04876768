#include "train/model/attention_writer.h"

#include <cmath>
#include <utility>

#include "data/columns/key_places.h"
#include "train/model/attention_layer.h"
#include "train/model/nodes/key_exchange.h"
#include "train/model/tensor_axis.h"

namespace speedrun {

ValueId AttentionWriter::write(int64_t layer, const AttentionConfig& config, const Input& x) {
    heads_ = whole_.layers.count(layer) > 0 ? Extent{Dimension::all_heads, config.heads}
                                            : w_.extents.cut({Dimension::heads, config.heads});
    const int64_t C = head_width().size, H = heads_.size, D = C / H;
    const ValueId normed = x.normed;
    AttentionLayer a(w_, networks_, tables_, parts_, config, heads_, normed);
    for (const auto& [key, part] : config.parts.all()) part->build(a);
    a.qkv = w_.linear("attn.qkv", normed,
                      {.outputs = head_width(3),
                       .inputs = w_.extents.width(),
                       .init = config.init,
                       .bias = config.bias,
                       .fan_in = w_.extents.width().size,
                       .meaning = "rows of q, then k, then v, each head by head: W x, x normed",
                       .matrices = 3,
                       .head_rows = {.stacks = 2, .heads = config.heads}});
    a.q = w_.view(a.qkv, "projected q", 0, C);
    a.k = w_.view(a.qkv, "projected k", C, C);
    a.v = w_.view(a.qkv, "v", 2 * C, C);
    const bool mixed = !config.value_table.empty() && !config.parts.value_rows();
    if (mixed) a.value_rows = tables_.lookup("value_embedding", config.value_table);

    a.scale = config.scale > 0 ? config.scale : 1.0 / std::sqrt(static_cast<double>(D));
    a.run(AttentionSlot::rotate);
    add_values(a, mixed, x.added_to_values);
    a.run(AttentionSlot::keys);
    a.options = {.sequence_length = w_.batch.sequence_length,
                 .num_heads = H,
                 .head_dim = D,
                 .window = parts_.window_of(config, layer),
                 .scale = static_cast<float>(a.scale),
                 .documents = options_.documents};
    a.run(AttentionSlot::layout);
    a.run(AttentionSlot::before);
    a.run(AttentionSlot::attend);
    if (a.out == kNoValue) a.out = attend({a.q, a.k, a.v}, a.options);
    a.run(AttentionSlot::attended);
    a.run(AttentionSlot::output);
    const ValueId out =
        w_.linear("attn.out", a.out,
                  {.outputs = w_.extents.width(),
                   .inputs = head_width(),
                   .init = config.out_init,
                   .bias = config.bias,
                   .fan_in = w_.extents.width().size,
                   .meaning = "W o is added to the stream, o the heads' outputs beside each other"});
    return is_whole() ? shared_out(w_, out) : into_stream(w_, out);
}

// With sequence parallelism, ranks exchange the sum of the terms instead of each term.
std::vector<WeightedSum::Term> AttentionWriter::of_all_tokens(const std::vector<WeightedSum::Term>& terms) {
    if (terms.empty() || !w_.batch.tensor.sequence) return terms;
    const ValueId sum = w_.sum("added to v", w_.extents.width(), terms);
    return {{.value = into_whole(w_, sum)}};
}

void AttentionWriter::add_values(AttentionLayer& a, bool mixed, const std::vector<WeightedSum::Term>& added) {
    const AttentionConfig& config = a.config;
    a.value_terms = {{.value = a.v, .is_view = true}};
    if (mixed) {
        const ParameterId mix = w_.parameter(
            "attn.value_mix", {{Dimension::numbers, 2}},
            {w_.filled(config.value_start), "a, b: v becomes a v + b row of " + config.value_table});
        a.value_terms = {{.value = a.v, .parameter = mix, .element = 0},
                         {.value = a.value_rows, .parameter = mix, .element = 1}};
    } else if (config.value_scale) {
        a.value_terms[0].parameter = w_.number("attn.value_scale", config.value_start, "a: v becomes a v");
    }
    a.run(AttentionSlot::values);
    const bool scaled = a.value_rows == kNoValue && config.value_scale && added.empty();
    for (const WeightedSum::Term& term : of_all_tokens(added)) a.value_terms.push_back(term);
    if (a.value_terms.size() > 1 || scaled)
        a.v = w_.sum(scaled ? "scaled v" : "mixed v", head_width(), a.value_terms);
}

ValueId AttentionWriter::attend(const Projected& x, AttentionOptions how) {
    const int64_t C = head_width().size;
    const ValueId out = w_.real("attn_out", w_.extents.tokens(), head_width()),
                  lse = w_.f32("lse", {{heads_.dimension, how.num_heads}, w_.extents.tokens()});
    const BatchShape& batch = w_.batch;
    Attention::Ports ports{
        .out = out, .lse = lse, .q = x.q, .k = x.k, .v = x.v, .first_key = w_.input(first_key_column())};
    if (batch.part.size > 1) {
        const SharedKeys shared{.part = batch.part,
                                .rows = batch.tokens / batch.sequence_length,
                                .row = {batch.sequence_length, how.window},
                                .columns = head_width(2).size};
        const KeyPlaces places{.window = how.window, .kept = KeptKeys(batch.part, shared.row)};
        ports.place = w_.input(last_key_column(places));
        ports.first_key = w_.input(first_kept_key_column(places));
        const ValueId kept =
            w_.model.graph.value(w_.name("keys and values"), Element::real,
                                 {{Dimension::keys, shared.rows * places.kept.count()}, head_width(2)});
        w_.add<KeyExchange>({.kept = kept, .k = x.k, .v = x.v}, shared);
        ports.k = w_.view(kept, "keys", 0, C);
        ports.v = w_.view(kept, "values", C, C);
        how.sequence_length = places.kept.count();
        how.visible_pairs = shared.rows * places.kept.visible_pairs();
    }
    w_.add<Attention>(ports, how);
    return out;
}

}  // namespace speedrun
