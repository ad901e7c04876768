#include "train/model/sublayers.h"

#include <cmath>
#include <utility>

#include "train/model/nodes/activation.h"
#include "train/model/nodes/compose_heads.h"
#include "train/model/nodes/copy.h"
#include "train/model/nodes/key_exchange.h"
#include "train/model/nodes/key_offset.h"
#include "train/model/nodes/own_value.h"
#include "train/model/nodes/pair_gate.h"
#include "train/model/rotary_frequencies.h"

namespace speedrun {

ValueId Sublayers::attention(int64_t layer, const AttentionConfig& config, const AttentionInput& x) {
    heads_ = whole_.layers.count(layer) > 0 ? Extent{Dimension::all_heads, config.heads}
                                            : w_.cut({Dimension::heads, config.heads});
    const int64_t C = head_width().size, H = heads_.size, D = C / H;
    const ValueId normed = x.normed;
    // Before the product: its backward gives the gradient of `normed` whole, and the gate's adds some columns.
    const bool computed = config.gate && !config.gate->network.empty();
    const ValueId gates =
        computed ? networks_.by_heads("attn.gate", heads_)
        : config.gate
            ? w_.gate("attn.gate", normed, heads_, config.gate->columns,
                      "W: the output of head h is multiplied by sigmoid(W[h] . x[0:columns]), x normed")
            : kNoValue;
    ValueId embedded = kNoValue, row_gates = kNoValue;
    if (config.value_gate) {
        embedded = tables_.lookup("value_embedding", config.value_table);
        row_gates = value_gate(*config.value_gate, normed, embedded);
    }
    const ValueId qkv = w_.linear("attn.qkv", normed,
                                  {.outputs = head_width(3),
                                   .inputs = w_.width(),
                                   .init = config.init,
                                   .bias = config.bias,
                                   .fan_in = w_.width().size,
                                   .meaning = "rows of q, then k, then v, each head by head: W x, x normed",
                                   .matrices = 3,
                                   .head_rows = {.stacks = 2, .heads = config.heads}});
    ValueId q = w_.view(qkv, "projected q", 0, C);
    ValueId k = w_.view(qkv, "projected k", C, C);
    ValueId v = w_.view(qkv, "v", 2 * C, C);
    if (!config.value_table.empty() && !config.value_gate)
        embedded = tables_.lookup("value_embedding", config.value_table);

    const bool follows = config.rotary && config.rotary->yarn;
    const std::vector<int64_t> past =
        follows ? parts_.past_of(config.rotary->yarn->window) : std::vector<int64_t>{};
    const RotaryOptions rotary{.num_heads = H,
                               .head_dim = D,
                               .normalize = config.qk_norm,
                               .rotate = config.rotary.has_value(),
                               .epsilon = static_cast<float>(parts_.norms.epsilon)};
    if (rotary.normalize || rotary.rotate) {
        const ValueId turned_q = w_.view(qkv, "q", 0, C), turned_k = w_.view(qkv, "k", C, C);
        const ValueId rstd =
            rotary.normalize ? w_.f32("qk_rstd", {w_.tokens(), {heads_.dimension, 2 * H}}) : kNoValue;
        RotaryTables angles;
        if (config.rotary) {
            angles = rotary_tables(rotary_frequencies(*config.rotary, D / 2, past), config.paired);
            angles.described = described_rotary(*config.rotary, D / 2, past);
        }
        w_.add<QkNormRotary>({.q = turned_q,
                              .k = turned_k,
                              .rstd = rstd,
                              .projected_q = q,
                              .projected_k = k,
                              .tables = angles},
                             rotary);
        q = turned_q;
        k = turned_k;
    }
    std::vector<WeightedSum::Term> terms{{.value = v, .is_view = true}};
    if (embedded != kNoValue && !config.value_gate) {
        const ParameterId mix = w_.parameter(
            "attn.value_mix", {{Dimension::numbers, 2}},
            {w_.filled(config.value_start), "a, b: v becomes a v + b row of " + config.value_table});
        terms = {{.value = v, .parameter = mix, .element = 0},
                 {.value = embedded, .parameter = mix, .element = 1}};
    } else if (config.value_scale) {
        terms[0].parameter = w_.number("attn.value_scale", config.value_start, "a: v becomes a v");
    }
    if (config.value_gate) terms.push_back({.value = embedded, .gate = row_gates});
    const bool scaled = embedded == kNoValue && config.value_scale && x.added_to_values.empty();
    for (const WeightedSum::Term& term : of_all_tokens(x.added_to_values)) terms.push_back(term);
    if (terms.size() > 1 || scaled) v = w_.sum(scaled ? "scaled v" : "mixed v", head_width(), terms);
    if (config.key_offset) k = with_key_offset(k, config.rotary->turning_pairs(D / 2));
    double scale = config.scale > 0 ? config.scale : 1.0 / std::sqrt(static_cast<double>(D));
    if (follows) scale *= yarn_scale(*config.rotary, past);
    const AttentionOptions how{.sequence_length = w_.batch.sequence_length,
                               .num_heads = H,
                               .head_dim = D,
                               .window = parts_.window_of(config, layer),
                               .scale = static_cast<float>(scale),
                               .documents = options_.documents};
    if (config.paired)
        for (ValueId* const x : {&q, &k, &v}) *x = without_gaps(*x);
    // Before attention, so that backward adds to the gradients of q, k and v that attention has written.
    const ValueId composed =
        config.compose_heads ? compose_heads(*config.compose_heads, {q, k, v}, how) : kNoValue;
    ValueId out = config.paired ? attend_in_pairs({q, k, v}, how) : attend({q, k, v}, how);
    if (config.compose_heads)
        out = w_.sum("attn_out with composed heads", head_width(), {{.value = out}, {.value = composed}});
    if (config.exclude_own_value) out = without_own_value(*config.exclude_own_value, {out, v});
    if (gates != kNoValue) out = w_.sum("gated attn_out", head_width(), {{.value = out, .gate = gates}});
    out = w_.linear("attn.out", out,
                    {.outputs = w_.width(),
                     .inputs = head_width(),
                     .init = config.out_init,
                     .bias = config.bias,
                     .fan_in = w_.width().size,
                     .meaning = "W o is added to the stream, o the heads' outputs beside each other"});
    return is_whole() ? w_.shared_out(out) : w_.into_stream(out);
}

// Ranks that share the stream's tokens send one another the sum.
std::vector<WeightedSum::Term> Sublayers::of_all_tokens(const std::vector<WeightedSum::Term>& terms) {
    if (terms.empty() || !w_.batch.tensor.sequence) return terms;
    const ValueId sum = w_.sum("added to v", w_.width(), terms);
    return {{.value = w_.into_whole(sum)}};
}

ValueId Sublayers::without_gaps(ValueId x) {
    if (!w_.model.graph[x].is_view) return x;
    const ValueId y = w_.real("copied " + w_.model.graph.local_name(x), w_.tokens(), head_width());
    w_.add<Copy>({.y = y, .x = x});
    return y;
}

ValueId Sublayers::attend_in_pairs(const Projected& x, AttentionOptions how) {
    const ValueId out = w_.real("attn_out", w_.tokens(), head_width()),
                  lse = w_.f32("lse", {{heads_.dimension, how.num_heads}, w_.tokens()});
    how.sequence_length *= 2;
    how.num_heads /= 2;
    w_.add<Attention>(
        {.out = out, .lse = lse, .q = x.q, .k = x.k, .v = x.v, .first_key = paired_rows().first_key}, how,
        int64_t{2});
    return out;
}

const PairedRows& Sublayers::paired_rows() {
    const auto ids = [&](const char* name) {
        return w_.model.graph.value(name, Element::ids, {w_.tokens(), {Dimension::numbers, 2}},
                                    Holder::batch);
    };
    if (!w_.model.paired)
        w_.model.paired = {.positions = ids("batch.positions of pairs"),
                           .first_key = ids("batch.first_key of pairs")};
    return *w_.model.paired;
}

ValueId Sublayers::with_key_offset(ValueId k, int64_t turning_pairs) {
    const ValueId y = w_.real("offset k", w_.tokens(), head_width());
    w_.add<KeyOffset>({.y = y, .k = k},
                      KeyOffsetOptions{.num_heads = heads_.size,
                                       .head_dim = head_width().size / heads_.size,
                                       .turning_pairs = turning_pairs,
                                       .sequence_length = w_.batch.sequence_length},
                      w_.chunk_borders(head_width()));
    return y;
}

ValueId Sublayers::compose_heads(const ComposeHeadsConfig& config, const Projected& x,
                                 const AttentionOptions& how) {
    const ValueId c = w_.real("composed heads", w_.tokens(), head_width());
    ComposeHeads::Ports ports{.c = c, .q = x.q, .k = x.k, .v = x.v, .first_key = w_.model.first_key};
    if (config.network.empty()) {
        ports.w1 =
            w_.parameter("attn.composed_maps", {heads_},
                         {w_.filled(config.maps_start),
                          "a: the heads' maps of attention are mixed by a, RMS-normalised over heads"});
        ports.w2 =
            w_.parameter("attn.composed_output", {heads_},
                         {w_.filled(config.output_start),
                          "b: to the output of a head is added b times its values, seen through that mix"});
    } else {
        ports.token_w1 = networks_.by_heads("attn.composed_maps", heads_);
        ports.token_w2 = networks_.by_heads("attn.composed_output", heads_);
    }
    w_.add<ComposeHeads>(ports, ComposeHeadsOptions{.sequence_length = how.sequence_length,
                                                    .num_heads = how.num_heads,
                                                    .head_dim = how.head_dim,
                                                    .keys = config.keys,
                                                    .scale = how.scale,
                                                    .epsilon = static_cast<float>(parts_.norms.epsilon)});
    return c;
}

ValueId Sublayers::without_own_value(const ExcludeOwnValueConfig& config, const OutputAndValue& x) {
    const ValueId y = w_.real("attn_out without own value", w_.tokens(), head_width());
    ExcludeOwnValue::Ports ports{.y = y, .o = x.out, .v = x.v};
    if (config.network.empty())
        ports.alpha = w_.parameter(
            "attn.own_value", {heads_},
            {w_.filled(config.start),
             "a: from the output y of a head is taken tanh(a) (y.v)/(v.v) v, v the token's own"});
    else
        ports.token_alpha = networks_.by_heads("attn.own_value", heads_);
    w_.add<ExcludeOwnValue>(ports);
    return y;
}

ValueId Sublayers::value_gate(const ValueGateConfig& config, ValueId normed, ValueId rows) {
    if (!config.network.empty()) return networks_.number("attn.value_gate");
    const ValueId gates = w_.f32("attn.value_gate", {w_.tokens(), heads_});
    w_.add<PairGate>(
        {.y = gates,
         .x = normed,
         .z = rows,
         .weight = w_.parameter(
             "attn.value_gate.weight", {heads_, {Dimension::numbers, 2 * config.columns}},
             {w_.filled(0),
              "W: to head h of v is added 2 sigmoid(W[h] . [x[0:columns], row[0:columns]]) row"})},
        PairGate::Options{.tokens = w_.tokens().size, .columns = config.columns});
    return gates;
}

ValueId Sublayers::attend(const Projected& x, AttentionOptions how) {
    const int64_t C = head_width().size;
    const ValueId out = w_.real("attn_out", w_.tokens(), head_width()),
                  lse = w_.f32("lse", {{heads_.dimension, how.num_heads}, w_.tokens()});
    const BatchShape& batch = w_.batch;
    Attention::Ports ports{
        .out = out, .lse = lse, .q = x.q, .k = x.k, .v = x.v, .first_key = w_.model.first_key};
    if (batch.part.size > 1) {
        const SharedKeys shared{.part = batch.part,
                                .rows = batch.tokens / batch.sequence_length,
                                .row = {batch.sequence_length, how.window},
                                .columns = head_width(2).size};
        const KeyPlaces& places = key_places(how.window);
        const ValueId kept =
            w_.model.graph.value(w_.name("keys and values"), Element::real,
                                 {{Dimension::keys, shared.rows * places.kept.count()}, head_width(2)});
        w_.add<KeyExchange>({.kept = kept, .k = x.k, .v = x.v}, shared);
        ports.k = w_.view(kept, "keys", 0, C);
        ports.v = w_.view(kept, "values", C, C);
        ports.place = places.place;
        ports.first_key = places.first_key;
        how.sequence_length = places.kept.count();
        how.visible_pairs = shared.rows * places.kept.visible_pairs();
    }
    w_.add<Attention>(ports, how);
    return out;
}

const KeyPlaces& Sublayers::key_places(int64_t window) {
    std::vector<KeyPlaces>& known = w_.model.key_places;
    for (const KeyPlaces& places : known)
        if (places.window == window) return places;
    const std::string where = fmt::format(" in window {}", window);
    return known.emplace_back(KeyPlaces{.window = window,
                                        .kept = KeptKeys(w_.batch.part, {w_.batch.sequence_length, window}),
                                        .place = w_.ids("batch.place" + where),
                                        .first_key = w_.ids("batch.first_key" + where)});
}

ValueId Sublayers::mlp(const MlpConfig& config, ValueId normed) {
    const int64_t width = w_.width().size, hidden_size = config.ratio * width;
    const Extent hidden_width = w_.cut({Dimension::hidden, hidden_size});
    const ValueId hidden = w_.linear("mlp.up", w_.into_matrices(normed),
                                     {.outputs = hidden_width,
                                      .inputs = w_.width(),
                                      .init = config.init,
                                      .bias = config.bias,
                                      .fan_in = width,
                                      .meaning = "h = f(W x), x normed",
                                      .fp8 = config.up_fp8});
    const ValueId activated = w_.real("activated", w_.tokens(), hidden_width);
    w_.add<Activate>({.y = activated, .x = hidden}, config.activation);
    return w_.into_stream(w_.linear("mlp.down", activated,
                                    {.outputs = w_.width(),
                                     .inputs = hidden_width,
                                     .init = config.down_init,
                                     .bias = config.bias,
                                     .fan_in = hidden_size,
                                     .meaning = "W h is added to the stream",
                                     .fp8 = config.down_fp8}));
}

const RotaryTables& Sublayers::rotary_tables(const std::vector<double>& frequencies, bool paired) {
    const auto [at, is_new] = rotary_.try_emplace({frequencies, paired});
    if (!is_new) return at->second;
    const int64_t length = w_.batch.sequence_length * (paired ? 2 : 1);
    std::vector<float> cos, sin;
    for (int64_t position = 0; position < length; ++position) {
        for (const double frequency : frequencies) {
            const double angle = static_cast<double>(position) * frequency;
            cos.push_back(static_cast<float>(std::cos(angle)));
            sin.push_back(static_cast<float>(std::sin(angle)));
        }
    }
    const std::vector<Extent> extents{{Dimension::positions, length},
                                      {Dimension::half_head, static_cast<int64_t>(frequencies.size())}};
    at->second = {.cos = w_.constant("rotary cos", extents, std::move(cos)),
                  .sin = w_.constant("rotary sin", extents, std::move(sin)),
                  .positions = paired ? paired_rows().positions : w_.model.positions};
    return at->second;
}

}  // namespace speedrun
