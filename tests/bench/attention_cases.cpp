// Attention at the recipe's documents and window, at GPT-2's sequences, and at the causal shapes that the
// authors of fast kernels publish. FLOPs count visible query-key pairs only: 4·D a pair and head forward,
// 10·D backward.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tests/bench/cases.h"

namespace speedrun::bench {

namespace {

struct Rates {  // TFLOP/s on an H100 at S = 512, 1k, 2k, 8k: Shah et al. 2024 (FlashAttention-3)
    const char* source;
    double forward[4], backward[4];
};
constexpr Rates kHead128[] = {{"FlashAttention-3", {292, 423, 521, 602}, {316, 424, 501, 559}},
                              {"cuDNN", {315, 410, 484, 529}, {305, 408, 465, 518}},
                              {"FlashAttention-2", {191, 260, 298, 333}, {214, 260, 291, 318}}};

struct AttentionTensors {
    Tensor q, k, v, first_key, place;
};

// The queries of a case: one for each token, or those of one rank, which has the first and the last of 2·ranks chunks
// of each sequence and the keys of all.
struct Queries {
    std::vector<int32_t> first_key, place;  // place: empty without ranks
    double visible_keys = 0;                // sum over the queries

    Queries(const ModelShape& shape, int64_t ranks) {
        Documents documents = documents_of(shape);
        if (ranks == 1) {
            first_key = std::move(documents.first_key);
            visible_keys = documents.visible_keys;
            return;
        }
        const int64_t chunk = shape.sequence_length / (2 * ranks);
        for (int64_t t = 0; t < shape.tokens; ++t) {
            const int64_t at = t % shape.sequence_length;
            if (at >= chunk && at < shape.sequence_length - chunk) continue;
            first_key.push_back(documents.first_key[static_cast<size_t>(t)]);
            place.push_back(static_cast<int32_t>(at));
            const int64_t keys = t - first_key.back() + 1;
            visible_keys += static_cast<double>(shape.window > 0 ? std::min(keys, shape.window) : keys);
        }
    }
};

void add_attention(std::vector<Case>& cases, const std::string& name, const ModelShape& shape,
                   const std::vector<Published>& forward, const std::vector<Published>& backward,
                   int64_t ranks = 1) {
    const Queries queries(shape, ranks);
    const int64_t tokens = shape.tokens, width = shape.num_heads * shape.head_dim,
                  rows = static_cast<int64_t>(queries.first_key.size());
    const AttentionOptions options{.sequence_length = shape.sequence_length,
                                   .num_heads = shape.num_heads,
                                   .head_dim = shape.head_dim,
                                   .window = shape.window,
                                   .scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim)),
                                   .documents = shape.mean_document > 0};
    const double pair_flops = queries.visible_keys * static_cast<double>(width);
    const std::string sizes =
        fmt::format("T{} S{} {}x{}, {:.0f} keys", rows, shape.sequence_length, shape.num_heads,
                    shape.head_dim, queries.visible_keys / static_cast<double>(rows));
    // q, k and v lie side by side, as the product before them leaves them; gathered keys and values by
    // themselves.
    const auto inputs = [=](CaseMemory& m) {
        AttentionTensors t;
        if (ranks == 1) {
            const Tensor qkv = m.input({tokens, 3 * width});
            t.q = qkv.column_slice(0, width);
            t.k = qkv.column_slice(width, width);
            t.v = qkv.column_slice(2 * width, width);
        } else {
            t.q = m.input({rows, width});
            t.k = m.input({tokens, width});
            t.v = m.input({tokens, width});
            t.place = m.indices(queries.place);
        }
        t.first_key = m.indices(queries.first_key);
        return t;
    };
    cases.push_back(
        {name + ".forward", "attention_forward", sizes, 4.0 * pair_flops, forward,
         [=](CaseMemory& m) -> Enqueue {
             const AttentionTensors t = inputs(m);
             const Tensor o = m.output({rows, width}), lse = m.output(DType::f32, {shape.num_heads, rows});
             return [=](Ops& ops, Stream& stream) {
                 ops.attention_forward({.o = o,
                                        .lse = lse,
                                        .q = t.q,
                                        .k = t.k,
                                        .v = t.v,
                                        .first_key = t.first_key,
                                        .place = t.place,
                                        .options = options},
                                       stream);
             };
         }});
    cases.push_back({name + ".backward", "attention_backward", sizes, 10.0 * pair_flops, backward,
                     [=](CaseMemory& m) -> Enqueue {
                         const AttentionTensors t = inputs(m);
                         const Tensor o = m.workspace(m.real(), {rows, width}),
                                      lse = m.workspace(DType::f32, {shape.num_heads, rows});
                         m.setup([&](Ops& ops, Stream& stream) {
                             ops.attention_forward({.o = o,
                                                    .lse = lse,
                                                    .q = t.q,
                                                    .k = t.k,
                                                    .v = t.v,
                                                    .first_key = t.first_key,
                                                    .place = t.place,
                                                    .options = options},
                                                   stream);
                         });
                         m.as_input(o);
                         m.as_input(lse);
                         const Tensor dout = m.input({rows, width});
                         Tensor dq, dk, dv;
                         if (ranks == 1) {
                             const Tensor dqkv = m.output({tokens, 3 * width});
                             dq = dqkv.column_slice(0, width);
                             dk = dqkv.column_slice(width, width);
                             dv = dqkv.column_slice(2 * width, width);
                         } else {
                             dq = m.output({rows, width});
                             dk = m.output({tokens, width});
                             dv = m.output({tokens, width});
                         }
                         return [=](Ops& ops, Stream& stream) {
                             ops.attention_backward({.dq = dq,
                                                     .dk = dk,
                                                     .dv = dv,
                                                     .dout = dout,
                                                     .o = o,
                                                     .lse = lse,
                                                     .q = t.q,
                                                     .k = t.k,
                                                     .v = t.v,
                                                     .first_key = t.first_key,
                                                     .place = t.place,
                                                     .options = options},
                                                    stream);
                         };
                     }});
}

// What lies along a token's own value, taken from the output of each head, by one learned number a head.
void add_own_value(std::vector<Case>& cases, const ModelShape& shape) {
    const int64_t tokens = shape.tokens, heads = shape.num_heads, width = heads * shape.head_dim;
    const std::string sizes = fmt::format("T{} {}x{}", tokens, heads, shape.head_dim);
    cases.push_back({"attention.recipe.own_value_forward",
                     "exclude_own_value_forward",
                     sizes,
                     0,
                     {},
                     [=](CaseMemory& m) -> Enqueue {
                         const Tensor y = m.output({tokens, width}), o = m.input({tokens, width}),
                                      v = m.input({tokens, width}), alpha = m.input(DType::f32, {heads});
                         return [=](Ops& ops, Stream& stream) {
                             ops.exclude_own_value_forward({.y = y, .o = o, .v = v, .alpha = alpha}, stream);
                         };
                     }});
    cases.push_back({"attention.recipe.own_value_backward",
                     "exclude_own_value_backward",
                     sizes,
                     0,
                     {},
                     [=](CaseMemory& m) -> Enqueue {
                         const Tensor d_o = m.output({tokens, width}), dv = m.output({tokens, width}),
                                      dalpha = m.output(DType::f32, {heads}), dy = m.input({tokens, width}),
                                      o = m.input({tokens, width}), v = m.input({tokens, width}),
                                      alpha = m.input(DType::f32, {heads});
                         return [=](Ops& ops, Stream& stream) {
                             ops.exclude_own_value_backward({.d_o = d_o,
                                                             .dv = dv,
                                                             .dalpha = dalpha,
                                                             .dy = dy,
                                                             .o = o,
                                                             .v = v,
                                                             .alpha = alpha,
                                                             .accumulate_v = false,
                                                             .accumulate_alpha = false},
                                                            stream);
                         };
                     }});
}

// A mix of heads' maps over the last keys, by one learned number a head for the mix and one for what it gives.
void add_composed_heads(std::vector<Case>& cases, const ModelShape& shape) {
    const int64_t tokens = shape.tokens, heads = shape.num_heads, width = heads * shape.head_dim,
                  length = shape.sequence_length, keys = std::min<int64_t>(length, 112);
    const ComposeHeadsOptions options{.sequence_length = length,
                                      .num_heads = heads,
                                      .head_dim = shape.head_dim,
                                      .keys = keys,
                                      .scale = 0.1f};
    const std::string sizes = fmt::format("T{} {}x{} keys {}", tokens, heads, shape.head_dim, keys);
    const double pair_flops =
        static_cast<double>(width) *
        static_cast<double>(tokens / length * (keys * (keys + 1) / 2 + (length - keys) * keys));
    const auto inputs = [=](CaseMemory& m) {
        AttentionTensors t;
        const Tensor qkv = m.input({tokens, 3 * width});
        t.q = qkv.column_slice(0, width);
        t.k = qkv.column_slice(width, width);
        t.v = qkv.column_slice(2 * width, width);
        std::vector<int32_t> first_key(static_cast<size_t>(tokens));
        for (int64_t i = 0; i < tokens; ++i)
            first_key[static_cast<size_t>(i)] = static_cast<int32_t>(i / length * length);
        t.first_key = m.indices(first_key);
        return t;
    };
    cases.push_back({"attention.recipe.compose_forward",
                     "compose_heads_forward",
                     sizes,
                     4.0 * pair_flops,
                     {},
                     [=](CaseMemory& m) -> Enqueue {
                         const AttentionTensors t = inputs(m);
                         const Tensor c = m.output({tokens, width}), w1 = m.input(DType::f32, {heads}),
                                      w2 = m.input(DType::f32, {heads});
                         return [=](Ops& ops, Stream& stream) {
                             ops.compose_heads_forward({.c = c,
                                                        .q = t.q,
                                                        .k = t.k,
                                                        .v = t.v,
                                                        .first_key = t.first_key,
                                                        .w1 = w1,
                                                        .w2 = w2,
                                                        .options = options},
                                                       stream);
                         };
                     }});
    cases.push_back({"attention.recipe.compose_backward",
                     "compose_heads_backward",
                     sizes,
                     8.0 * pair_flops,
                     {},
                     [=](CaseMemory& m) -> Enqueue {
                         const AttentionTensors t = inputs(m);
                         const Tensor dqkv = m.inout(m.real(), {tokens, 3 * width}),
                                      dc = m.input({tokens, width}), w1 = m.input(DType::f32, {heads}),
                                      w2 = m.input(DType::f32, {heads}), dw1 = m.output(DType::f32, {heads}),
                                      dw2 = m.output(DType::f32, {heads});
                         return [=](Ops& ops, Stream& stream) {
                             ops.compose_heads_backward({.dq = dqkv.column_slice(0, width),
                                                         .dk = dqkv.column_slice(width, width),
                                                         .dv = dqkv.column_slice(2 * width, width),
                                                         .dw1 = dw1,
                                                         .dw2 = dw2,
                                                         .dc = dc,
                                                         .q = t.q,
                                                         .k = t.k,
                                                         .v = t.v,
                                                         .first_key = t.first_key,
                                                         .w1 = w1,
                                                         .w2 = w2,
                                                         .accumulate_q = true,
                                                         .accumulate_k = true,
                                                         .accumulate_v = true,
                                                         .accumulate_w1 = false,
                                                         .accumulate_w2 = false,
                                                         .options = options},
                                                        stream);
                         };
                     }});
}

// Half of each key from the token before.
void add_key_offset(std::vector<Case>& cases, const ModelShape& shape) {
    const int64_t tokens = shape.tokens, width = shape.num_heads * shape.head_dim;
    const KeyOffsetOptions options{.num_heads = shape.num_heads,
                                   .head_dim = shape.head_dim,
                                   .turning_pairs = shape.head_dim / 4,
                                   .sequence_length = shape.sequence_length};
    for (const bool backward : {false, true}) {
        cases.push_back(
            {backward ? "attention.recipe.key_offset_backward" : "attention.recipe.key_offset_forward",
             backward ? "offset_keys_backward" : "offset_keys_forward",
             fmt::format("T{} {}x{}", tokens, shape.num_heads, shape.head_dim),
             0,
             {},
             [=](CaseMemory& m) -> Enqueue {
                 const Tensor to = m.output({tokens, width}), from = m.input({tokens, width});
                 return [=](Ops& ops, Stream& stream) {
                     if (backward)
                         ops.offset_keys_backward({.dx = to, .dy = from, .options = options}, stream);
                     else
                         ops.offset_keys_forward({.y = to, .x = from, .options = options}, stream);
                 };
             }});
    }
}

}  // namespace

std::vector<Case> attention_cases(const Shapes& shapes) {
    std::vector<Case> cases;
    // Realistic: 4.7 ms for 12 layers, forward and backward in the proportion of their FLOPs.
    add_attention(cases, "attention.recipe", shapes.recipe, {{"realistic", 0, 4.7 / 12 * 4 / 14, 0}},
                  {{"realistic", 0, 4.7 / 12 * 10 / 14, 0}});
    add_attention(cases, "attention.recipe.rank", shapes.recipe, {}, {}, 2);
    add_own_value(cases, shapes.recipe);
    add_key_offset(cases, shapes.recipe);
    add_composed_heads(cases, shapes.recipe);
    add_attention(cases, "attention.gpt2", shapes.gpt2, {}, {});
    for (const int64_t head_dim : {128, 64}) {
        if (shapes.attention_width % head_dim != 0) continue;
        for (size_t i = 0; i < shapes.attention_sequences.size(); ++i) {
            const int64_t length = shapes.attention_sequences[i];
            ModelShape shape{};
            shape.tokens = shapes.attention_tokens;
            shape.sequence_length = length;
            shape.num_heads = shapes.attention_width / head_dim;
            shape.head_dim = head_dim;
            std::vector<Published> forward, backward;
            for (const Rates& rates : kHead128) {
                if (head_dim != 128 || i >= std::size(rates.forward)) break;
                forward.push_back({rates.source, rates.forward[i], 0, 0});
                backward.push_back({rates.source, rates.backward[i], 0, 0});
            }
            add_attention(cases, fmt::format("attention.causal.hd{}.s{}", head_dim, length), shape, forward,
                          backward);
        }
    }
    return cases;
}

}  // namespace speedrun::bench
