// Common code of both passes of attention with AMX (amx_bf16): blocks of 32 queries by 32 keys, heads of q and v of
// one width, a multiple of 32. Scores have one row per key and one column per query, so maxima and sums over keys are
// vector operations. All matmul operands then have the layout of tiles: rows of a head in place, or packed
// once. Rounding is as in attention_bf16.h. Empty if the compiler was not given avx512_bf16.
#pragma once

#include "kernels/cpu/amx_tile.h"

#ifdef SPEEDRUN_AMX_TILES

#include "kernels/cpu/attention_item.h"

namespace speedrun::cpu {

struct AmxAttention {
    static bool serves(const AttentionShape& shape) {
        return shape.head_dim == shape.value_dim && shape.head_dim % kAmxDepth == 0;
    }
};

constexpr int64_t kSide = 32;                       // queries or keys per block
constexpr int64_t kSideVectors = kSide / kLanes;    // vectors of 16 queries per block
constexpr int64_t kSideBytes = kSide * kWordBytes;  // bytes of a row of words or sums
constexpr int64_t kSideWords = kSide / 2;           // pairs of keys or queries
static_assert(kSide == 2 * kAmxRows && kSide == kAmxDepth);

constexpr float kLog2OfE = 1.44269504f;

// 2^x for x ≤ 0 (or slightly above), relative error below 3e-6, a thousandth of bf16 rounding; 0 below
// −126.5. x = n + r with |r| ≤ ½; minimax polynomial of degree 4 for 2^r (Lawson's algorithm).
inline Vec exp2(Vec x) {
    const Vec clamped = max(-127.0f, x), shifted = clamped + kExponentShift,
              r = clamped - (shifted - kExponentShift);
    Vec p = 9.57010221e-3f;
    p = fma(p, r, 5.59178591e-2f);
    p = fma(p, r, 2.40247443e-1f);
    p = fma(p, r, 6.93121791e-1f);
    p = fma(p, r, 9.99999285e-1f);
    return p * power_of_two(shifted);
}

// Key ranges of the queries [begin, end), at most 32. Lanes beyond them see no keys.
struct QueryBlock {
    alignas(64) float low[kSide] = {}, high[kSide] = {};  // query i sees keys [low, high)
    Range any, all;                                       // keys seen by at least one query, by all queries

    QueryBlock(const AttentionItem& item, Range queries)
        : any{item.counts.keys, 0}, all{0, item.counts.keys} {
        for (int64_t i = 0; i < kSide; ++i) {
            const bool valid = queries.begin + i < queries.end;
            const Range keys =
                valid ? Range{item.low(queries.begin + i), item.key_end(queries.begin + i + 1)} : Range{0, 0};
            low[i] = static_cast<float>(keys.begin);
            high[i] = static_cast<float>(keys.end);
            if (keys.begin < keys.end) any = {std::min(any.begin, keys.begin), std::max(any.end, keys.end)};
            all = {std::max(all.begin, keys.begin), std::min(all.end, keys.end)};
        }
    }
    // Visible key range, rounded out to whole blocks.
    Range blocks() const { return {any.begin / kSide * kSide, round_up(any.end, kSide)}; }
    bool sees(int64_t key) const { return any.begin < key + kSide && key < any.end; }
    bool clear(int64_t key) const { return all.begin <= key && key + kSide <= all.end; }
    // x for the queries of vector v that see this key, `hidden` for the others.
    Vec show(int64_t v, int64_t key, Vec x, Vec hidden) const {
        const auto number = static_cast<float>(key);
        const Vec seen = select(number < load(high + v * kLanes), x, hidden);
        return select(load(low + v * kLanes) <= number, seen, hidden);
    }
};

// Rows of a head as lines of 64 bytes, in place. A last block of fewer than 32 rows uses a zero-padded copy.
class BlockRows {
  public:
    BlockRows(HeadRows x, int64_t count, Bf16* copy) : x_(x), whole_(count / kSide * kSide), copy_(copy) {
        const int64_t width = x.x.cols();
        if (whole_ == count) return;
        std::fill(copy, copy + kSide * width, Bf16{});
        for (int64_t i = whole_; i < count; ++i)
            std::copy_n(x.row<Bf16>(i), width, copy + (i - whole_) * width);
    }
    AmxLines at(int64_t i) const {
        const bool in_place = i < whole_;
        return {reinterpret_cast<const char*>(in_place ? x_.row<Bf16>(i) : copy_),
                2 * (in_place ? x_.stride() : x_.x.cols()), kAmxBytes};
    }

  private:
    HeadRows x_;
    int64_t whole_;
    const Bf16* copy_;
};

// Packs rows [i, i + count) of a head (count ≤ 32) as columns: to[D/2][32], words of two dimensions.
inline void pack_as_columns(int32_t* to, HeadRows x, int64_t i, int64_t count) {
    const int64_t width = x.x.cols(), packed = round_up(count, kLanes);
    pack_from_columns(reinterpret_cast<char*>(to), kSideBytes, x.row<Bf16>(i), x.stride(), count, width);
    for (int64_t pair = 0; packed < kSide && pair < width / 2; ++pair)
        std::fill(to + pair * kSide + packed, to + (pair + 1) * kSide, 0);
}
// Packs them as pairs: to[16][D], words of two rows.
inline void pack_as_pairs(int32_t* to, HeadRows x, int64_t i, int64_t count) {
    const int64_t width = x.x.cols();
    pack_from_rows(reinterpret_cast<char*>(to), width * kWordBytes, x.row<Bf16>(i), x.stride(), width, count);
    std::fill(to + (count + 1) / 2 * width, to + kSideWords * width, 0);
}
// Packs them as one line per dimension: to[D][16], words of two rows.
inline void pack_as_lines(int32_t* to, HeadRows x, int64_t i, int64_t count) {
    for (int64_t d = 0; d < x.x.cols(); d += kAmxRows)
        transpose_part(to + d * kSideWords, x.row<Bf16>(i) + d, x.stride(), count, kAmxRows);
}

// Writes rows [i, i + count) of a head: column r of sums[D][32], times factors[r], becomes row i + r.
inline void write_columns(HeadRows x, int64_t i, int64_t count, const float* sums, const float* factors) {
    alignas(64) float rows[kLanes * kLanes];
    for (int64_t first = 0; first < count; first += kLanes) {
        for (int64_t d = 0; d < x.x.cols(); d += kLanes) {
            transpose_block(rows, kLanes, sums + d * kSide + first, kSide, kLanes, kLanes);
            for (int64_t r = 0; r < std::min(kLanes, count - first); ++r)
                store(x.row<Bf16>(i + first + r) + d, factors[first + r] * load(rows + r * kLanes));
        }
    }
}

}  // namespace speedrun::cpu

#endif
