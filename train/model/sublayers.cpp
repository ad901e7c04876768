#include "train/model/sublayers.h"

#include <cmath>
#include <utility>

#include "train/model/nodes/activation.h"
#include "train/model/nodes/key_exchange.h"

namespace speedrun {

ValueId Sublayers::attention(int64_t layer, const AttentionConfig& config, ValueId normed) {
    const Extent heads = w_.cut({Dimension::heads, config.heads});
    const int64_t C = w_.head_width().size, H = heads.size, D = C / H;
    normed = w_.into_matrices(normed);
    // Before the product: its backward gives the gradient of `normed` whole, and the gate's adds some columns.
    const ValueId gates = config.gate ? w_.gate("attn.gate", normed, heads, config.gate->columns) : kNoValue;
    const ValueId qkv = w_.linear("attn.qkv", normed,
                                  {.outputs = w_.head_width(3),
                                   .inputs = w_.width(),
                                   .init = config.init,
                                   .bias = config.bias,
                                   .fan_in = w_.width().size,
                                   .matrices = 3});
    ValueId q = w_.view(qkv, "projected q", 0, C);
    ValueId k = w_.view(qkv, "projected k", C, C);
    ValueId v = w_.view(qkv, "v", 2 * C, C);
    const ValueId embedded =
        config.value_table.empty() ? kNoValue : tables_.lookup("value_embedding", config.value_table);

    const RotaryOptions rotary{
        .num_heads = H, .head_dim = D, .normalize = config.qk_norm, .rotate = config.rotary.has_value()};
    if (rotary.normalize || rotary.rotate) {
        const ValueId turned_q = w_.view(qkv, "q", 0, C), turned_k = w_.view(qkv, "k", C, C);
        const ValueId rstd =
            rotary.normalize ? w_.f32("qk_rstd", {w_.tokens(), {Dimension::heads, 2 * H}}) : kNoValue;
        RotaryTables angles;
        if (config.rotary) angles = rotary_tables({.base = config.rotary->base, .half = D / 2});
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
    if (embedded != kNoValue) {
        const ParameterId mix =
            w_.parameter("attn.value_mix", {{Dimension::numbers, 2}}, w_.filled(config.value_start));
        v = w_.sum("mixed v", w_.head_width(),
                   {{.value = v, .parameter = mix, .element = 0},
                    {.value = embedded, .parameter = mix, .element = 1}});
    }
    const int64_t window = parts_.window_of(config, layer);
    int64_t keys_of_a_row = w_.batch.sequence_length;
    ValueId place = kNoValue, first_key = w_.model.first_key;
    if (w_.batch.part.size > 1) {
        const KeyPlaces& places = key_places(window);
        keys_of_a_row = places.kept.count();
        place = places.place;
        first_key = places.first_key;
        const ValueId kept = exchanged(k, v, window);
        k = w_.view(kept, "keys", 0, C);
        v = w_.view(kept, "values", C, C);
    }
    ValueId out = w_.real("attn_out", w_.tokens(), w_.head_width());
    const double usual_scale = 1.0 / std::sqrt(static_cast<double>(D));
    w_.add<Attention>(
        {.out = out,
         .lse = w_.f32("lse", {{Dimension::heads, H}, w_.tokens()}),
         .q = q,
         .k = k,
         .v = v,
         .first_key = first_key,
         .place = place},
        AttentionOptions{.sequence_length = keys_of_a_row,
                         .num_heads = H,
                         .head_dim = D,
                         .window = window,
                         .scale = static_cast<float>(config.scale > 0 ? config.scale : usual_scale),
                         .documents = options_.documents});
    if (gates != kNoValue) out = w_.sum("gated attn_out", w_.head_width(), {{.value = out, .gate = gates}});
    return w_.into_stream(w_.linear("attn.out", out,
                                    {.outputs = w_.width(),
                                     .inputs = w_.head_width(),
                                     .init = config.out_init,
                                     .bias = config.bias,
                                     .fan_in = w_.width().size}));
}

ValueId Sublayers::exchanged(ValueId k, ValueId v, int64_t window) {
    const BatchShape& batch = w_.batch;
    const int64_t rows = batch.tokens / batch.sequence_length;
    const int64_t keys = rows * KeptKeys(batch.part, {batch.sequence_length, window}).count();
    const ValueId kept = w_.model.graph.value(w_.name("keys and values"), Element::real,
                                              {{Dimension::keys, keys}, w_.head_width(2)});
    w_.add<KeyExchange>({.kept = kept, .k = k, .v = v},
                        KeyExchange::Options{.part = batch.part,
                                             .rows = rows,
                                             .row = {batch.sequence_length, window},
                                             .columns = w_.head_width().size});
    return kept;
}

const KeyPlaces& Sublayers::key_places(int64_t window) {
    std::vector<KeyPlaces>& known = w_.model.key_places;
    for (const KeyPlaces& places : known)
        if (places.window == window) return places;
    const BatchShape& batch = w_.batch;
    known.push_back({.window = window,
                     .kept = KeptKeys(batch.part, {batch.sequence_length, window}),
                     .place = w_.ids(fmt::format("batch.place in window {}", window)),
                     .first_key = w_.ids(fmt::format("batch.first_key in window {}", window))});
    return known.back();
}

ValueId Sublayers::mlp(const MlpConfig& config, ValueId normed) {
    const int64_t width = w_.width().size, hidden_size = config.ratio * width;
    const Extent hidden_width = w_.cut({Dimension::hidden, hidden_size});
    const ValueId hidden = w_.linear("mlp.up", w_.into_matrices(normed),
                                     {.outputs = hidden_width,
                                      .inputs = w_.width(),
                                      .init = config.init,
                                      .bias = config.bias,
                                      .fan_in = width});
    const ValueId activated = w_.real("activated", w_.tokens(), hidden_width);
    w_.add<Activate>({.y = activated, .x = hidden}, config.activation);
    return w_.into_stream(w_.linear("mlp.down", activated,
                                    {.outputs = w_.width(),
                                     .inputs = hidden_width,
                                     .init = config.down_init,
                                     .bias = config.bias,
                                     .fan_in = hidden_size}));
}

// Su et al. 2021, eq. 15: θ_i = base^(−2i/D).
const RotaryTables& Sublayers::rotary_tables(const RotaryKey& key) {
    const auto [at, is_new] = rotary_.try_emplace(key);
    if (!is_new) return at->second;
    const int64_t length = w_.batch.sequence_length;
    std::vector<float> cos, sin;
    for (int64_t position = 0; position < length; ++position) {
        for (int64_t i = 0; i < key.half; ++i) {
            const double angle = static_cast<double>(position) *
                                 std::pow(key.base, -static_cast<double>(i) / static_cast<double>(key.half));
            cos.push_back(static_cast<float>(std::cos(angle)));
            sin.push_back(static_cast<float>(std::sin(angle)));
        }
    }
    const std::vector<Extent> extents{{Dimension::positions, length}, {Dimension::half_head, key.half}};
    at->second = {.cos = w_.constant("rotary cos", extents, std::move(cos)),
                  .sin = w_.constant("rotary sin", extents, std::move(sin)),
                  .positions = w_.model.positions};
    return at->second;
}

}  // namespace speedrun
