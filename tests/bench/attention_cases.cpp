// Attention with the recipe's documents and window, with GPT-2's sequences, and with the causal shapes that
// authors of fast kernels publish. FLOPs count visible query-key pairs only, per pair and head: 2·(D + Dv) forward,
// 2·(3·D + 2·Dv) backward.
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

// Queries of a case: one per token, or the queries of one rank. A rank has the first and the last of 2·ranks
// chunks of each sequence, and all keys.
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

struct Variants {
    int64_t ranks = 1;
    bool rotary = false;  // adds a case of backward with that of QK-norm and rotary
};

void add_attention(std::vector<Case>& cases, const std::string& name, const ModelShape& shape,
                   const std::vector<Published>& forward, const std::vector<Published>& backward,
                   const Variants& variants = {}) {
    const int64_t ranks = variants.ranks;
    const Queries queries(shape, ranks);
    const int64_t value_dim = shape.value_dim > 0 ? shape.value_dim : shape.head_dim;
    const int64_t tokens = shape.tokens, width = shape.num_heads * shape.head_dim,
                  value_width = shape.num_heads * value_dim,
                  rows = static_cast<int64_t>(queries.first_key.size());
    const AttentionOptions options{.sequence_length = shape.sequence_length,
                                   .num_heads = shape.num_heads,
                                   .head_dim = shape.head_dim,
                                   .window = shape.window,
                                   .scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim)),
                                   .documents = shape.mean_document > 0};
    const auto pair_flops = [&](int64_t columns) {
        return queries.visible_keys * static_cast<double>(columns);
    };
    const std::string of_values = shape.value_dim > 0 ? fmt::format("/{}", value_dim) : "";
    const std::string sizes =
        fmt::format("T{} S{} {}x{}{}, {:.0f} keys", rows, shape.sequence_length, shape.num_heads,
                    shape.head_dim, of_values, queries.visible_keys / static_cast<double>(rows));
    // A rank's gathered keys and values are separate.
    const auto inputs = [=](CaseMemory& m) {
        if (ranks == 1) return sides_of(m.input({tokens, 2 * width + value_width}), width);
        return Sides{m.input({rows, width}), m.input({tokens, width}), m.input({tokens, value_width})};
    };
    const auto outputs = [=](CaseMemory& m) {
        if (ranks == 1) return sides_of(m.output({tokens, 2 * width + value_width}), width);
        return Sides{m.output({rows, width}), m.output({tokens, width}), m.output({tokens, value_width})};
    };
    const auto forward_of = [=](CaseMemory& m, const Tensor& o, const Tensor& lse) {
        const auto [q, k, v] = inputs(m);
        return op::AttentionForward{.o = o,
                                    .lse = lse,
                                    .q = q,
                                    .k = k,
                                    .v = v,
                                    .first_key = m.indices(queries.first_key),
                                    .place = ranks == 1 ? Tensor{} : m.indices(queries.place),
                                    .options = options};
    };
    const double forward_flops = pair_flops(2 * width + 2 * value_width),
                 backward_flops = pair_flops(6 * width + 4 * value_width);
    add_case(cases, {name + ".forward", sizes, forward_flops, forward}, [=](CaseMemory& m) {
        return forward_of(m, m.output({rows, value_width}), m.output(DType::f32, {shape.num_heads, rows}));
    });
    const auto backward_of = [=](CaseMemory& m) {
        const op::AttentionForward f = forward_of(m, m.workspace(m.compute_dtype(), {rows, value_width}),
                                                  m.workspace(DType::f32, {shape.num_heads, rows}));
        m.setup([&](Ops& ops, Stream& stream) { ops.attention_forward(f, stream); });
        const auto [dq, dk, dv] = outputs(m);
        return op::AttentionBackward{.dq = dq,
                                     .dk = dk,
                                     .dv = dv,
                                     .dout = m.input({rows, value_width}),
                                     .o = m.as_input(f.o),
                                     .lse = m.as_input(f.lse),
                                     .q = f.q,
                                     .k = f.k,
                                     .v = f.v,
                                     .first_key = f.first_key,
                                     .place = f.place,
                                     .options = options};
    };
    add_case(cases, {name + ".backward", sizes, backward_flops, backward}, backward_of);
    if (!variants.rotary) return;
    const std::vector<int32_t> position = documents_of(shape).position;
    add_case(cases, {name + ".rotary.backward", sizes, backward_flops}, [=](CaseMemory& m) {
        op::AttentionBackward a = backward_of(m);
        a.rotary = {.normalize = true,
                    .rotate = true,
                    .rstd = m.constant({rows, 2 * shape.num_heads}, 1.0f),
                    .cos = m.constant({shape.sequence_length, shape.head_dim / 2}, 0.6f),
                    .sin = m.constant({shape.sequence_length, shape.head_dim / 2}, 0.8f),
                    .position = m.indices(position)};
        return a;
    });
}

// Removal of the component along a token's own value from the output of each head, with one learned scalar
// per head.
void add_own_value(std::vector<Case>& cases, const ModelShape& shape) {
    const int64_t tokens = shape.tokens, heads = shape.num_heads, width = heads * shape.head_dim;
    const std::string prefix = "attention.recipe.own_value_",
                      sizes = fmt::format("T{} {}x{}", tokens, heads, shape.head_dim);
    add_case(cases, {prefix + "forward", sizes}, [=](CaseMemory& m) {
        return op::ExcludeOwnValueForward{.y = m.output({tokens, width}),
                                          .o = m.input({tokens, width}),
                                          .v = m.input({tokens, width}),
                                          .alpha = m.input(DType::f32, {heads})};
    });
    add_case(cases, {prefix + "backward", sizes}, [=](CaseMemory& m) {
        return op::ExcludeOwnValueBackward{.d_o = m.output({tokens, width}),
                                           .dv = m.output({tokens, width}),
                                           .dalpha = m.output(DType::f32, {heads}),
                                           .dy = m.input({tokens, width}),
                                           .o = m.input({tokens, width}),
                                           .v = m.input({tokens, width}),
                                           .alpha = m.input(DType::f32, {heads}),
                                           .accumulate_v = false,
                                           .accumulate_alpha = false};
    });
}

// A mix of heads' maps over the last keys, with one learned scalar per head for the mix and one for the
// output.
void add_composed_heads(std::vector<Case>& cases, const ModelShape& shape) {
    const int64_t tokens = shape.tokens, heads = shape.num_heads, width = heads * shape.head_dim,
                  length = shape.sequence_length, keys = std::min<int64_t>(length, 112);
    const ComposeHeadsOptions options{.sequence_length = length,
                                      .num_heads = heads,
                                      .head_dim = shape.head_dim,
                                      .keys = keys,
                                      .scale = 0.1f};
    const std::string prefix = "attention.recipe.compose_",
                      sizes = fmt::format("T{} {}x{} keys {}", tokens, heads, shape.head_dim, keys);
    const double pair_flops =
        static_cast<double>(width) *
        static_cast<double>(tokens / length * (keys * (keys + 1) / 2 + (length - keys) * keys));
    std::vector<int32_t> first_key;
    for (int64_t t = 0; t < tokens; ++t) first_key.push_back(static_cast<int32_t>(t / length * length));
    add_case(cases, {prefix + "forward", sizes, 4.0 * pair_flops}, [=](CaseMemory& m) {
        const auto [q, k, v] = sides_of(m.input({tokens, 3 * width}), width);
        return op::ComposeHeadsForward{.c = m.output({tokens, width}),
                                       .q = q,
                                       .k = k,
                                       .v = v,
                                       .first_key = m.indices(first_key),
                                       .w1 = m.input(DType::f32, {heads}),
                                       .w2 = m.input(DType::f32, {heads}),
                                       .options = options};
    });
    add_case(cases, {prefix + "backward", sizes, 8.0 * pair_flops}, [=](CaseMemory& m) {
        const auto [dq, dk, dv] = sides_of(m.inout(m.compute_dtype(), {tokens, 3 * width}), width);
        const auto [q, k, v] = sides_of(m.input({tokens, 3 * width}), width);
        return op::ComposeHeadsBackward{.dq = dq,
                                        .dk = dk,
                                        .dv = dv,
                                        .dw1 = m.output(DType::f32, {heads}),
                                        .dw2 = m.output(DType::f32, {heads}),
                                        .dc = m.input({tokens, width}),
                                        .q = q,
                                        .k = k,
                                        .v = v,
                                        .first_key = m.indices(first_key),
                                        .w1 = m.input(DType::f32, {heads}),
                                        .w2 = m.input(DType::f32, {heads}),
                                        .accumulate_q = true,
                                        .accumulate_k = true,
                                        .accumulate_v = true,
                                        .accumulate_w1 = false,
                                        .accumulate_w2 = false,
                                        .options = options};
    });
}

// Half of each key from the token before.
void add_key_offset(std::vector<Case>& cases, const ModelShape& shape) {
    const int64_t tokens = shape.tokens, width = shape.num_heads * shape.head_dim;
    const KeyOffsetOptions options{.num_heads = shape.num_heads,
                                   .head_dim = shape.head_dim,
                                   .rotated_pairs = shape.head_dim / 4,
                                   .sequence_length = shape.sequence_length};
    const std::string prefix = "attention.recipe.key_offset_",
                      sizes = fmt::format("T{} {}x{}", tokens, shape.num_heads, shape.head_dim);
    add_case(cases, {prefix + "forward", sizes}, [=](CaseMemory& m) {
        return op::OffsetKeysForward{
            .y = m.output({tokens, width}), .x = m.input({tokens, width}), .options = options};
    });
    add_case(cases, {prefix + "backward", sizes}, [=](CaseMemory& m) {
        return op::OffsetKeysBackward{
            .dx = m.output({tokens, width}), .dy = m.input({tokens, width}), .options = options};
    });
}

}  // namespace

std::vector<Case> attention_cases(const Shapes& shapes) {
    std::vector<Case> cases;
    // Realistic: 4.7 ms for 12 layers; forward and backward in proportion to their FLOPs.
    add_attention(cases, "attention.recipe", shapes.recipe, {{"realistic", 0, 4.7 / 12 * 4 / 14, 0}},
                  {{"realistic", 0, 4.7 / 12 * 10 / 14, 0}}, {.rotary = true});
    add_attention(cases, "attention.recipe.rank", shapes.recipe, {}, {}, {.ranks = 2});
    ModelShape narrow_keys = shapes.recipe;
    narrow_keys.value_dim = narrow_keys.head_dim;
    narrow_keys.head_dim /= 2;
    add_attention(cases, "attention.recipe.narrow_keys", narrow_keys, {}, {});
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
