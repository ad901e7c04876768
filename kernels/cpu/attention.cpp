// Flash attention on the CPU in f32: an item's operands are unpacked to f32 once. For bf16, where the
// processor has it, attention_bf16.cpp.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/attention_item.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tile_product.h"
#include "kernels/op_checks.h"

namespace speedrun {

namespace {

using cpu::kMasked;
using cpu::kTile;
using cpu::round_up;
using cpu::Vec;

// An item whose operands are unpacked to f32.
struct Item : cpu::AttentionItem {
    using cpu::AttentionItem::AttentionItem;

    // Rows of x as f32 [padded_length][width], zero beyond the real ones, times factor.
    template <class Real>
    void unpack(float* out, Tensor x, float factor) const {
        for (int64_t i = 0; i < length; ++i) {
            const Real* from = row<Real>(x, i);
            cpu::for_vectors(o.head_dim, [&](int64_t d, auto part) {
                cpu::store(out + i * width + d, factor * cpu::load(from + d, part));
            });
        }
        std::fill(out + length * width, out + padded_length * width, 0.0f);
    }
    // Keys-by-columns tiles of what unpack() made: out[tile][width][64].
    void transpose_tiles(float* out, const float* rows) const {
        for (int64_t j = 0; j < padded_length; ++j) {
            float* tile = out + j / kTile * width * kTile + j % kTile;
            for (int64_t d = 0; d < width; ++d) tile[d * kTile] = rows[j * width + d];
        }
    }
};

// Online softmax of one row of scores against the running maximum and sum; returns the factor of earlier
// results.
float online_softmax(float* row, float& maximum, float& total) {
    Vec highest = cpu::load(row);
    for (int64_t j = cpu::kLanes; j < kTile; j += cpu::kLanes)
        highest = cpu::max(highest, cpu::load(row + j));
    const float raised = std::max(maximum, cpu::max_lane(highest));
    if (raised == kMasked) {  // nothing visible yet
        std::fill(row, row + kTile, 0.0f);
        return 1.0f;
    }
    const float factor = std::exp(maximum - raised);
    Vec sums{};
    for (int64_t j = 0; j < kTile; j += cpu::kLanes) {
        const Vec p = cpu::exp(cpu::load(row + j) - raised);
        cpu::store(row + j, p);
        sums += p;
    }
    total = total * factor + cpu::sum(sums);
    maximum = raised;
    return factor;
}

template <class Real>
void forward_item(const Item& item, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, float* scratch) {
    const int64_t size = item.padded_length * item.width, width = item.width;
    float* values = scratch;
    float* key_tiles = values + size;
    float* queries = key_tiles + size;
    float* scores = queries + size;
    float* result = scores + kTile * kTile;
    item.unpack<Real>(queries, k, 1.0f);
    item.transpose_tiles(key_tiles, queries);
    item.unpack<Real>(values, v, 1.0f);
    item.unpack<Real>(queries, q, item.o.scale);
    float* log_sums = item.log_sums(lse);

    for (int64_t i0 = 0; i0 < item.length; i0 += kTile) {
        const int64_t i1 = std::min(i0 + kTile, item.length), rows = i1 - i0;
        const cpu::Range low = item.low_range(i0, i1);
        float maxima[kTile], totals[kTile] = {};
        std::fill(maxima, maxima + kTile, kMasked);
        std::fill(result, result + kTile * width, 0.0f);
        for (int64_t j0 = low.begin / kTile * kTile; j0 < i1; j0 += kTile) {
            const float* keys = key_tiles + j0 * width;
            cpu::tile_product(scores, kTile, {queries + i0 * width, width, 1}, keys, kTile, rows, kTile,
                              width, false);
            if (j0 + kTile > i0 + 1 || j0 < low.end) item.mask(scores, i0, i1, j0);
            for (int64_t i = 0; i < rows; ++i) {
                const float factor = online_softmax(scores + i * kTile, maxima[i], totals[i]);
                if (factor == 1.0f) continue;
                float* sums = result + i * width;
                for (int64_t d = 0; d < width; d += cpu::kLanes)
                    cpu::store(sums + d, factor * cpu::load(sums + d));
            }
            cpu::tile_product(result, width, {scores, kTile, 1}, values + j0 * width, width, rows, width,
                              kTile, true);
        }
        for (int64_t i = 0; i < rows; ++i) {
            item.pack_row<Real>(o, i0 + i, result + i * width, 1.0f / totals[i]);
            log_sums[i0 + i] = maxima[i] + std::log(totals[i]);
        }
    }
}

template <class Real>
void backward_item(const Item& item, Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor o, Tensor lse,
                   Tensor q, Tensor k, Tensor v, float* scratch) {
    const int64_t size = item.padded_length * item.width, width = item.width;
    float* queries = scratch;
    float* keys = queries + size;
    float* upstream = keys + size;
    float* key_tiles = upstream + size;
    float* value_tiles = key_tiles + size;
    float* query_sums = value_tiles + size;
    float* probabilities = query_sums + size;
    float* gradients = probabilities + kTile * kTile;
    float* key_sums = gradients + kTile * kTile;
    float* value_sums = key_sums + kTile * width;
    float* deltas = value_sums + kTile * width;

    item.unpack<Real>(queries, o, 1.0f);
    item.unpack<Real>(upstream, dout, 1.0f);
    for (int64_t i = 0; i < item.length; ++i) {  // Σ do·o of each query
        Vec dots{};
        for (int64_t d = 0; d < width; d += cpu::kLanes) {
            dots = fma(cpu::load(queries + i * width + d), cpu::load(upstream + i * width + d), dots);
        }
        deltas[i] = cpu::sum(dots);
    }
    item.unpack<Real>(keys, v, 1.0f);
    item.transpose_tiles(value_tiles, keys);
    item.unpack<Real>(keys, k, 1.0f);
    item.transpose_tiles(key_tiles, keys);
    item.unpack<Real>(queries, q, item.o.scale);
    std::fill(query_sums, query_sums + size, 0.0f);
    const float* log_sums = item.log_sums(lse);

    for (int64_t j0 = 0; j0 < item.length; j0 += kTile) {
        const int64_t j1 = std::min(j0 + kTile, item.length);
        std::fill(key_sums, key_sums + 2 * kTile * width, 0.0f);  // and value_sums behind it
        for (int64_t i0 = j0; i0 < item.length; i0 += kTile) {
            const int64_t i1 = std::min(i0 + kTile, item.length), rows = i1 - i0;
            const cpu::Range low = item.low_range(i0, i1);
            if (low.begin >= j1) continue;
            const float* tile_queries = queries + i0 * width;
            const float* tile_upstream = upstream + i0 * width;
            cpu::tile_product(probabilities, kTile, {tile_queries, width, 1}, key_tiles + j0 * width, kTile,
                              rows, kTile, width, false);
            if (j0 + kTile > i0 + 1 || j0 < low.end) item.mask(probabilities, i0, i1, j0);
            cpu::tile_product(gradients, kTile, {tile_upstream, width, 1}, value_tiles + j0 * width, kTile,
                              rows, kTile, width, false);
            for (int64_t i = 0; i < rows; ++i) {
                float* p = probabilities + i * kTile;
                float* g = gradients + i * kTile;
                for (int64_t j = 0; j < kTile; j += cpu::kLanes) {
                    const Vec probability = cpu::exp(cpu::load(p + j) - log_sums[i0 + i]);
                    cpu::store(p + j, probability);
                    cpu::store(g + j, probability * (cpu::load(g + j) - deltas[i0 + i]));
                }
            }
            cpu::tile_product(value_sums, width, {probabilities, 1, kTile}, tile_upstream, width, kTile,
                              width, rows, true);
            cpu::tile_product(key_sums, width, {gradients, 1, kTile}, tile_queries, width, kTile, width, rows,
                              true);
            cpu::tile_product(query_sums + i0 * width, width, {gradients, kTile, 1}, keys + j0 * width, width,
                              rows, width, kTile, true);
        }
        for (int64_t j = j0; j < j1; ++j) {
            item.pack_row<Real>(dk, j, key_sums + (j - j0) * width, 1.0f);  // the queries carried the scale
            item.pack_row<Real>(dv, j, value_sums + (j - j0) * width, 1.0f);
        }
    }
    for (int64_t i = 0; i < item.length; ++i)
        item.pack_row<Real>(dq, i, query_sums + i * width, item.o.scale);
}

int64_t scratch_floats(const AttentionOptions& o, int64_t operands) {
    const int64_t length = round_up(o.sequence_length, kTile), width = round_up(o.head_dim, cpu::kLanes);
    return operands * length * width + 2 * kTile * kTile + 2 * kTile * width + length;
}

}  // namespace

void CpuOps::attention_forward(Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, Tensor first_key,
                               const AttentionOptions& options, Stream& stream) {
    check_attention(q, lse, first_key, {o, k, v}, options);
    const int64_t items = q.rows() / options.sequence_length * options.num_heads;
    flops_ += 4 * items * options.head_dim * visible_pairs(options);
    if (cpu::has_bf16_attention(q.dtype, options)) {
        const int64_t bytes = cpu::bf16_attention_forward_bytes(options);
        auto* memory = static_cast<char*>(workspace(stream, device_.num_threads() * bytes));
        return cpu::submit(stream, "attention_forward", [=] {
            cpu::parallel_for_dynamic(items, [&](int64_t index) {
                cpu::bf16_attention_forward({options, index, first_key}, o, lse, q, k, v,
                                            memory + cpu::member_index() * bytes);
            });
        });
    }
    const int64_t floats = scratch_floats(options, 3);
    auto* scratch = static_cast<float*>(workspace(stream, device_.num_threads() * floats * sizeof(float)));
    cpu::submit(stream, "attention_forward", [=] {
        cpu::with_real(q.dtype, [&]<class Real>() {
            cpu::parallel_for_dynamic(items, [&](int64_t index) {
                forward_item<Real>(Item(options, index, first_key), o, lse, q, k, v,
                                   scratch + cpu::member_index() * floats);
            });
        });
    });
}

void CpuOps::attention_backward(Tensor dq, Tensor dk, Tensor dv, Tensor dout, Tensor o, Tensor lse, Tensor q,
                                Tensor k, Tensor v, Tensor first_key, const AttentionOptions& options,
                                Stream& stream) {
    check_attention(q, lse, first_key, {dq, dk, dv, dout, o, k, v}, options);
    const int64_t items = q.rows() / options.sequence_length * options.num_heads;
    flops_ +=
        8 * items * options.head_dim * visible_pairs(options);  // recomputed scores are not counted as work
    if (cpu::has_bf16_attention(q.dtype, options)) {
        const int64_t bytes = cpu::bf16_attention_backward_bytes(options);
        auto* memory = static_cast<char*>(workspace(stream, device_.num_threads() * bytes));
        return cpu::submit(stream, "attention_backward", [=] {
            cpu::parallel_for_dynamic(items, [&](int64_t index) {
                cpu::bf16_attention_backward({options, index, first_key}, dq, dk, dv, dout, o, lse, q, k, v,
                                             memory + cpu::member_index() * bytes);
            });
        });
    }
    const int64_t floats = scratch_floats(options, 6);
    auto* scratch = static_cast<float*>(workspace(stream, device_.num_threads() * floats * sizeof(float)));
    cpu::submit(stream, "attention_backward", [=] {
        cpu::with_real(q.dtype, [&]<class Real>() {
            cpu::parallel_for_dynamic(items, [&](int64_t index) {
                backward_item<Real>(Item(options, index, first_key), dq, dk, dv, dout, o, lse, q, k, v,
                                    scratch + cpu::member_index() * floats);
            });
        });
    });
}

}  // namespace speedrun
