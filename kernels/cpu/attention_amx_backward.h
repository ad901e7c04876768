// Attention backward with AMX: tiles of 64 keys in order, each against the query blocks that see any of them.
// Probabilities are recomputed from the log-sums. Empty if the compiler was not given avx512_bf16.
#pragma once

#include "kernels/cpu/attention_amx.h"
#include "kernels/cpu/attention_backward.h"

#ifdef SPEEDRUN_AMX_TILES

#include <memory>

namespace speedrun::cpu {

constexpr int64_t kKeyTile = 2 * kSide;

template <>
struct BackwardMemory<AmxAttention> {
    int32_t *query_columns, *upstream_columns;  // [blocks of queries][D/2][32]
    int32_t *query_pairs, *upstream_pairs;      // [blocks of queries][16][D]
    int32_t* key_lines;                         // [blocks of keys][D][16]
    float *scores, *products;                   // [2][32][32], a key to a row
    Bf16 *probabilities, *gradients;            // [2 blocks of queries][64 keys][32]
    int32_t* gradient_words;                    // [2 blocks of queries][32][32], of two keys
    float* query_sums;                          // [blocks of queries][D][32]
    float *key_sums, *value_sums;               // [64][D]
    float *deltas, *log_sums;                   // per query
    QueryBlock* views;                          // per query block
    Bf16 *last_keys, *last_values;              // [32][D]
    int64_t bytes;

    BackwardMemory(const op::AttentionBackward& a, void* memory) {
        const AttentionRows counts = attention_rows(a);
        const int64_t width = a.options.head_dim, keys = round_up(counts.keys, kSide),
                      queries = round_up(counts.queries, kSide);
        Scratch scratch(memory);
        for (auto* part : {&query_columns, &upstream_columns, &query_pairs, &upstream_pairs})
            *part = scratch.take<int32_t>(queries / 2 * width);
        key_lines = scratch.take<int32_t>(keys / 2 * width);
        for (auto* part : {&scores, &products}) *part = scratch.take<float>(2 * kSide * kSide);
        for (auto* part : {&probabilities, &gradients}) *part = scratch.take<Bf16>(2 * kKeyTile * kSide);
        gradient_words = scratch.take<int32_t>(kKeyTile * kSide);
        query_sums = scratch.take<float>(queries * width);
        for (auto* part : {&key_sums, &value_sums}) *part = scratch.take<float>(kKeyTile * width);
        for (auto* part : {&deltas, &log_sums}) *part = scratch.take<float>(queries);
        views = scratch.take<QueryBlock>(queries / kSide);
        for (auto* part : {&last_keys, &last_values}) *part = scratch.take<Bf16>(kSide * width);
        bytes = scratch.bytes();
    }
};

// Up to 64 keys of one head, from j0 on.
class AmxBackwardTile {
  public:
    AmxBackwardTile(const AttentionItem& item, const BackwardMemory<AmxAttention>& memory,
                    const BlockRows& keys, const BlockRows& values, int64_t j0)
        : item_(item),
          m_(memory),
          keys_(keys),
          values_(values),
          j0_(j0),
          width_(item.o.head_dim),
          key_blocks_(std::min<int64_t>(2, ceil_div(item.counts.keys - j0, kSide))) {
        for (float* sums : {m_.key_sums, m_.value_sums}) std::fill(sums, sums + kKeyTile * width_, 0.0f);
    }

    // Processes two query blocks from `first` on; `count` blocks exist.
    void run(int64_t first, int64_t count) {
        Range blocks{2, 0};
        for (int64_t h = 0; h < std::min<int64_t>(2, count - first); ++h) {
            if (sees(first + h)) blocks = {std::min(blocks.begin, h), h + 1};
        }
        if (blocks.begin >= blocks.end) return;
        // The matmuls of a block overlap with differentiate() of the block before.
        const int64_t begin = blocks.begin * key_blocks_, end = blocks.end * key_blocks_;
        multiply(first, begin);
        for (int64_t i = begin; i < end; ++i) {
            if (i + 1 < end) multiply(first, i + 1);
            differentiate(first, i);
        }
        add_to_sums(first, blocks);
    }
    void finish(HeadRows dk, HeadRows dv) const {
        for (int64_t j = j0_; j < std::min(j0_ + kKeyTile, item_.counts.keys); ++j) {
            dk.write<Bf16>(j, m_.key_sums + (j - j0_) * width_, item_.o.scale);
            dv.write<Bf16>(j, m_.value_sums + (j - j0_) * width_, 1.0f);
        }
    }

  private:
    bool sees(int64_t query_block) const {
        const QueryBlock& view = m_.views[query_block];
        return view.sees(j0_) || (key_blocks_ > 1 && view.sees(j0_ + kSide));
    }
    static const char* bytes(const int32_t* words) { return reinterpret_cast<const char*>(words); }
    static const char* bytes(const Bf16* x) { return reinterpret_cast<const char*>(x); }

    // Position and scratch memory of block i of a tile: queries i / key_blocks_, keys i % key_blocks_.
    struct Block {
        const QueryBlock& view;
        int64_t query_block, key, at;
        float *scores, *products;
    };
    Block block(int64_t first, int64_t i) const {
        const int64_t h = i / key_blocks_, b = i % key_blocks_, buffer = i % 2 * kSide * kSide;
        return {m_.views[first + h], first + h,           j0_ + b * kSide, (h * kKeyTile + b * kSide) * kSide,
                m_.scores + buffer,  m_.products + buffer};
    }

    void multiply(int64_t first, int64_t i) {
        const Block at = block(first, i);
        if (!at.view.sees(at.key)) return;
        const int64_t columns = at.query_block * width_ / 2 * kSide;
        multiply_lines<false>(at.scores, kSideBytes, keys_.at(at.key), bytes(m_.query_columns + columns),
                              kSideBytes, width_ / 2);
        multiply_lines<false>(at.products, kSideBytes, values_.at(at.key),
                              bytes(m_.upstream_columns + columns), kSideBytes, width_ / 2);
    }

    // Computes probabilities and the gradients of scores.
    void differentiate(int64_t first, int64_t i) {
        const Block block = this->block(first, i);
        Bf16 *const probabilities = m_.probabilities + block.at, *const gradients = m_.gradients + block.at;
        int32_t* const words = m_.gradient_words + block.at / 2;
        if (!block.view.sees(block.key)) {
            std::fill(probabilities, probabilities + kSide * kSide, Bf16{});
            std::fill(gradients, gradients + kSide * kSide, Bf16{});
            std::fill(words, words + kSide * kSideWords, 0);
            return;
        }
        const auto vector = [&](int64_t v, auto&& seen) {
            const int64_t queries = block.query_block * kSide + v * kLanes;
            const Vec scale = kLog2OfE * item_.o.scale, shift = -kLog2OfE * load(m_.log_sums + queries),
                      deltas = load(m_.deltas + queries);
            for (int64_t key = 0; key < kSide; key += 2) {
                __m256i g[2];
                for (int64_t e = 0; e < 2; ++e) {
                    const int64_t to = (key + e) * kSide + v * kLanes;
                    const Vec p = seen(block.key + key + e, exp2(fma(scale, load(block.scores + to), shift)));
                    g[e] = to_bf16(p * (load(block.products + to) - deltas));
                    store(probabilities + to, p);
                    _mm256_store_si256(reinterpret_cast<__m256i*>(gradients + to), g[e]);
                }
                _mm512_store_si512(words + key / 2 * kSide + v * kLanes, words_of(g[0], g[1]));
            }
        };
        for (int64_t v = 0; v < kSideVectors; ++v) {
            if (block.view.clear(block.key))
                vector(v, [](int64_t, Vec x) { return x; });
            else
                vector(v, [&](int64_t key, Vec x) { return block.view.show(v, key, x, 0.0f); });
        }
    }

    void add_to_sums(int64_t first, Range blocks) {
        const int64_t words = (blocks.end - blocks.begin) * kSideWords;
        const int64_t pairs = (first + blocks.begin) * kSideWords * width_,
                      at = blocks.begin * kKeyTile * kSide;
        for (int64_t b = 0; b < key_blocks_; ++b) {
            const int64_t rows = at + b * kSide * kSide, sums = b * kSide * width_;
            for (int64_t d = 0; d < width_; d += kSide) {
                multiply_lines<false, true>(m_.value_sums + sums + d, width_ * kWordBytes,
                                            {bytes(m_.probabilities + rows), kAmxBytes, kKeyTile * kAmxBytes},
                                            bytes(m_.upstream_pairs + pairs + d), width_ * kWordBytes, words);
                multiply_lines<false, true>(m_.key_sums + sums + d, width_ * kWordBytes,
                                            {bytes(m_.gradients + rows), kAmxBytes, kKeyTile * kAmxBytes},
                                            bytes(m_.query_pairs + pairs + d), width_ * kWordBytes, words);
            }
        }
        const char* lines = bytes(m_.key_lines + j0_ / 2 * width_);
        for (int64_t h = blocks.begin; h < blocks.end; ++h) {
            for (int64_t d = 0; d < width_; d += kSide)
                multiply_lines<false, true>(m_.query_sums + ((first + h) * width_ + d) * kSide, kSideBytes,
                                            {lines + d * kAmxBytes, kAmxBytes, width_ * kAmxBytes},
                                            bytes(m_.gradient_words + h * kSide * kSide), kSideBytes,
                                            key_blocks_ * kSideWords);
        }
    }

    const AttentionItem& item_;
    const BackwardMemory<AmxAttention>& m_;
    const BlockRows &keys_, &values_;
    const int64_t j0_, width_, key_blocks_;
};

// Packs a block of queries and of do, and computes the deltas Σ do·o and the log-sums.
inline void prepare_queries(const AttentionItem& item, const op::AttentionBackward& a,
                            const BackwardMemory<AmxAttention>& m, int64_t block) {
    const int64_t begin = block * kSide, count = std::min(kSide, item.counts.queries - begin),
                  width = item.o.head_dim, at = begin / 2 * width;
    const HeadRows q = item.queries(a.q), dout = item.queries(a.dout), o = item.queries(a.o);
    const float* log_sums = item.log_sums(a.lse);
    const Range next{begin + count, std::min(begin + count + kSide, item.counts.queries)};
    for (const HeadRows& rows : {q, dout, o}) rows.expect<Bf16, false>(next);
    pack_as_columns(m.query_columns + at, q, begin, count);
    pack_as_columns(m.upstream_columns + at, dout, begin, count);
    pack_as_pairs(m.query_pairs + at, q, begin, count);
    pack_as_pairs(m.upstream_pairs + at, dout, begin, count);
    std::construct_at(m.views + block, item, Range{begin, begin + count});
    for (int64_t i = begin; i < begin + kSide; ++i) {
        Vec dots{};  // Σ do·o
        for (int64_t d = 0; i < begin + count && d < width; d += kLanes)
            dots = fma(load(dout.row<Bf16>(i) + d), load(o.row<Bf16>(i) + d), dots);
        m.deltas[i] = sum(dots);
        // A query without keys has log-sum −∞; its probabilities must still be 0.
        m.log_sums[i] = i < begin + count && log_sums[i] != kMasked ? log_sums[i] : 0.0f;
    }
    std::fill(m.query_sums + begin * width, m.query_sums + (begin + kSide) * width, 0.0f);
}

template <>
inline void attention_backward<AmxAttention>(const AttentionItem& item, const op::AttentionBackward& a,
                                             const BackwardMemory<AmxAttention>& memory) {
    const AmxShapes shapes;
    const int64_t width = item.o.head_dim, all_keys = item.counts.keys, queries = item.counts.queries,
                  blocks = ceil_div(queries, kSide);
    const HeadRows k = item.keys(a.k);
    for (int64_t block = 0; block < blocks; ++block) prepare_queries(item, a, memory, block);
    for (int64_t j = 0; j < all_keys; j += kSide)
        pack_as_lines(memory.key_lines + j / 2 * width, k, j, std::min(kSide, all_keys - j));
    const BlockRows keys(k, all_keys, memory.last_keys), values(item.keys(a.v), all_keys, memory.last_values);
    for (int64_t j = 0; j < all_keys; j += kKeyTile) {
        const Range rows{j, std::min(j + kKeyTile, all_keys)};
        for (const HeadRows& gradient : {item.keys(a.dk), item.keys(a.dv)}) gradient.expect<Bf16, true>(rows);
        item.queries(a.dq).expect<Bf16, true>({item.first_query(rows.begin), item.first_query(rows.end)});
        AmxBackwardTile tile(item, memory, keys, values, j);
        for (int64_t block = 0; block < blocks; block += 2) tile.run(block, blocks);
        tile.finish(item.keys(a.dk), item.keys(a.dv));
    }
    alignas(64) float scales[kSide];
    std::fill(scales, scales + kSide, item.o.scale);
    for (int64_t block = 0; block < blocks; ++block) {
        const int64_t begin = block * kSide;
        write_columns(item.queries(a.dq), begin, std::min(kSide, queries - begin),
                      memory.query_sums + begin * width, scales);
    }
}

}  // namespace speedrun::cpu

#endif
