// Flash attention on the CPU with bf16 products: scores and gradients of a tile are summed in f32,
// probabilities and their gradients are rounded to bf16 before they are multiplied, as they are on GPUs. Rows
// of q and of the upstream gradient are read in place; what stands on the right of a product is packed once
// per head.
#include "kernels/cpu/attention_item.h"
#include "kernels/cpu/bf16_tile.h"

namespace speedrun::cpu {

#ifdef SPEEDRUN_BF16_TILES

namespace {

constexpr int64_t kTilePairs = kTile / 2;
constexpr int64_t kTileRowBytes = kTile * kWordBytes;  // of 64 words, or of 64 f32

// e^x for x ≤ 0 in 11 operations, relative error below 3e-6, a thousandth of what rounding to bf16 adds: x =
// (n + r)·ln2 with |r| ≤ ½, the Taylor polynomial of 2^r of degree 5, times 2^n. −∞ gives 0, NaN gives NaN.
inline __m512 exp_nonpositive(__m512 x) {
    constexpr float kLog2E = 1.44269504f;
    constexpr float kUnderflow = -105.0f;              // e^-105 is below half of the smallest f32
    x = _mm512_max_ps(_mm512_set1_ps(kUnderflow), x);  // the second operand if one is NaN
    const __m512 scaled = _mm512_mul_ps(x, _mm512_set1_ps(kLog2E));
    const __m512 n = _mm512_roundscale_ps(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 r = _mm512_sub_ps(scaled, n);
    // ln2^k / k!
    __m512 p = _mm512_set1_ps(1.33335581e-3f);
    for (const float c : {9.61812911e-3f, 5.55041087e-2f, 2.40226507e-1f, 6.93147181e-1f, 1.0f})
        p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
    return _mm512_scalef_ps(p, n);
}

// store(row, vector, sums) of a[0..rows) times a panel of 16·Vectors columns.
template <int Vectors, class Store>
inline void product_rows(int64_t rows, PairRows a, const char* panel, int64_t stride, int64_t pairs,
                         Store&& store) {
    int64_t i = 0;
    const auto strip = [&]<int Rows>() {
        Register sums[Rows][Vectors] = {};
        add_pairs(sums, {a.data + i * a.row, a.row, a.pair}, panel, stride, pairs);
#pragma GCC unroll 6
        for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
            for (int v = 0; v < Vectors; ++v) store(i + r, v, sums[r][v]);
        }
        i += Rows;
    };
    while (i + 6 <= rows) strip.template operator()<6>();
    while (i + 4 <= rows) strip.template operator()<4>();
    while (i < rows) strip.template operator()<1>();
}

// The same for any width in vectors: store(row, column, sums).
template <class Store>
inline void product(int64_t rows, PairRows a, const char* panel, int64_t width, int64_t pairs,
                    Store&& store) {
    const int64_t stride = width * kWordBytes;
    for (int64_t column = 0; column < width; column += 4 * kLanes) {
        const auto put = [&](int64_t i, int v, __m512 x) { store(i, column + v * kLanes, x); };
        const char* from = panel + column * kWordBytes;
        switch (std::min<int64_t>((width - column) / kLanes, 4)) {
            case 1:
                product_rows<1>(rows, a, from, stride, pairs, put);
                break;
            case 2:
                product_rows<2>(rows, a, from, stride, pairs, put);
                break;
            case 3:
                product_rows<3>(rows, a, from, stride, pairs, put);
                break;
            default:
                product_rows<4>(rows, a, from, stride, pairs, put);
        }
    }
}

PairRows rows_of(const AttentionItem& item, Tensor x, int64_t i) {
    return {reinterpret_cast<const char*>(item.row<Bf16>(x, i)), x.row_stride * 2, kWordBytes};
}

// A head of x packed tile by tile: [tile][D/2][64] words, keys side by side ...
void pack_lines(char* to, const AttentionItem& item, Tensor x) {
    for (int64_t j = 0; j < item.length; j += kTile, to += item.width / 2 * kTileRowBytes)
        pack_from_columns(to, kTileRowBytes, item.row<Bf16>(x, j), x.row_stride,
                          std::min(kTile, item.length - j), item.width);
}
// ... or [tile][32][D] words, two rows in one; rows beyond the sequence are never asked for but as a pair's
// zero.
void pack_pairs(char* to, const AttentionItem& item, Tensor x) {
    for (int64_t j = 0; j < item.length; j += kTile, to += kTilePairs * item.width * kWordBytes)
        pack_from_rows(to, item.width * kWordBytes, item.row<Bf16>(x, j), x.row_stride, item.width,
                       std::min(kTile, item.length - j));
}

// Scores become exponentials against the running maximum and sum of their row, in bf16; returns the factor of
// earlier results.
float online_softmax(const float* scores, Bf16* probabilities, float& maximum, float& total) {
    __m512 x[4];
    for (int v = 0; v < 4; ++v) x[v] = _mm512_load_ps(scores + v * kLanes);
    const float highest =
        _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3])));
    const float raised = std::max(maximum, highest);
    if (raised == kMasked) {  // nothing visible yet
        std::fill(probabilities, probabilities + kTile, Bf16(0.0f));
        return 1.0f;
    }
    for (__m512& lanes : x) lanes = exp_nonpositive(_mm512_sub_ps(lanes, _mm512_set1_ps(raised)));
    for (int v = 0; v < 4; v += 2) {
        _mm512_store_si512(probabilities + v * kLanes,
                           reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(x[v + 1], x[v])));
    }
    const __m512 sums = _mm512_add_ps(_mm512_add_ps(x[0], x[1]), _mm512_add_ps(x[2], x[3]));
    const float factor = maximum == raised ? 1.0f : std::exp(maximum - raised);
    total = total * factor + sum(Vec(sums));
    maximum = raised;
    return factor;
}

// Scratch memory cut into pieces, each on cache lines of its own.
class Scratch {
  public:
    explicit Scratch(void* memory) : next_(static_cast<char*>(memory)) {}
    template <class T = char>
    T* take(int64_t bytes) {
        char* piece = next_;
        next_ += round_up(bytes, kVectorBytes);
        return reinterpret_cast<T*>(piece);
    }

  private:
    char* next_;
};

constexpr int64_t kScoreBytes = kTile * kTileRowBytes;
int64_t panel_bytes(int64_t length, int64_t width) {
    return length * width * 2;
}

__m512i pair_words(__m512 even, __m512 odd) {  // of two rows, rounded
    const auto half = [](__m512 x) {
        return _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
    };
    return _mm512_or_si512(half(even), _mm512_slli_epi32(half(odd), 16));
}

}  // namespace

bool has_bf16_attention(DType dtype, const AttentionOptions& options) {
    return dtype == DType::bf16 && options.head_dim % kLanes == 0;
}

int64_t bf16_attention_forward_bytes(const AttentionOptions& o) {
    const int64_t length = round_up(o.sequence_length, kTile);
    return 2 * panel_bytes(length, o.head_dim) + kScoreBytes + kScoreBytes / 2 + kTile * o.head_dim * 4;
}

void bf16_attention_forward(const AttentionItem& item, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v,
                            void* memory) {
    const int64_t width = item.width, size = panel_bytes(item.padded_length, width);
    Scratch scratch(memory);
    char* keys = scratch.take(size);
    char* values = scratch.take(size);
    auto* scores = scratch.take<float>(kScoreBytes);
    auto* probabilities = scratch.take<Bf16>(kScoreBytes / 2);
    auto* result = scratch.take<float>(kTile * width * 4);
    pack_lines(keys, item, k);
    pack_pairs(values, item, v);
    float* log_sums = item.log_sums(lse);
    const __m512 scale = _mm512_set1_ps(item.o.scale);

    for (int64_t i0 = 0; i0 < item.length; i0 += kTile) {
        const int64_t i1 = std::min(i0 + kTile, item.length), rows = i1 - i0;
        const Range low = item.low_range(i0, i1);
        float maxima[kTile], totals[kTile] = {}, factors[kTile];
        std::fill(maxima, maxima + kTile, kMasked);
        std::fill(result, result + kTile * width, 0.0f);
        for (int64_t j0 = low.begin / kTile * kTile; j0 < i1; j0 += kTile) {
            product_rows<4>(rows, rows_of(item, q, i0), keys + j0 * width * 2, kTileRowBytes, width / 2,
                            [&](int64_t i, int vector, __m512 x) {
                                _mm512_store_ps(scores + i * kTile + vector * kLanes,
                                                _mm512_mul_ps(scale, x));
                            });
            if (j0 + kTile > i0 + 1 || j0 < low.end) item.mask(scores, i0, i1, j0);
            for (int64_t i = 0; i < rows; ++i)
                factors[i] =
                    online_softmax(scores + i * kTile, probabilities + i * kTile, maxima[i], totals[i]);
            const int64_t pairs = (std::min(kTile, item.length - j0) + 1) / 2;
            product(rows, {reinterpret_cast<const char*>(probabilities), kTile * 2, kWordBytes},
                    values + j0 * width * 2, width, pairs, [&](int64_t i, int64_t column, __m512 x) {
                        float* to = result + i * width + column;
                        _mm512_store_ps(to,
                                        _mm512_fmadd_ps(_mm512_set1_ps(factors[i]), _mm512_load_ps(to), x));
                    });
        }
        for (int64_t i = 0; i < rows; ++i) {
            item.pack_row<Bf16>(o, i0 + i, result + i * width, 1.0f / totals[i]);
            log_sums[i0 + i] = maxima[i] + std::log(totals[i]);
        }
    }
}

int64_t bf16_attention_backward_bytes(const AttentionOptions& o) {
    const int64_t length = round_up(o.sequence_length, kTile);
    return 5 * panel_bytes(length, o.head_dim) + length * o.head_dim * 4 + 2 * kScoreBytes +
           3 * kScoreBytes / 2 + 2 * kTile * o.head_dim * 4 + length * 4;
}

void bf16_attention_backward(const AttentionItem& item, Tensor dq, Tensor dk, Tensor dv, Tensor dout,
                             Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, void* memory) {
    const int64_t width = item.width, size = panel_bytes(item.padded_length, width);
    Scratch scratch(memory);
    char* key_lines = scratch.take(size);       // for the scores
    char* value_lines = scratch.take(size);     // for the gradients of probabilities
    char* key_pairs = scratch.take(size);       // for dq
    char* query_pairs = scratch.take(size);     // for dk
    char* upstream_pairs = scratch.take(size);  // for dv
    auto* query_sums = scratch.take<float>(item.padded_length * width * 4);
    auto* scores = scratch.take<float>(kScoreBytes);
    auto* gradients = scratch.take<float>(kScoreBytes);
    // Probabilities and gradients as words of two queries, [32][64]; gradients also by rows, [64][64].
    auto* probability_words = scratch.take(kScoreBytes / 2);
    auto* gradient_words = scratch.take(kScoreBytes / 2);
    auto* gradient_rows = scratch.take<Bf16>(kScoreBytes / 2);
    auto* key_sums = scratch.take<float>(kTile * width * 4);
    auto* value_sums = scratch.take<float>(kTile * width * 4);
    auto* deltas = scratch.take<float>(item.padded_length * 4);
    pack_lines(key_lines, item, k);
    pack_lines(value_lines, item, v);
    pack_pairs(key_pairs, item, k);
    pack_pairs(query_pairs, item, q);
    pack_pairs(upstream_pairs, item, dout);
    for (int64_t i = 0; i < item.length; ++i) {  // Σ do·o of each query
        Vec dots{};
        const Bf16 *upstream = item.row<Bf16>(dout, i), *output = item.row<Bf16>(o, i);
        for (int64_t d = 0; d < width; d += kLanes) dots = fma(load(upstream + d), load(output + d), dots);
        deltas[i] = sum(dots);
    }
    std::fill(query_sums, query_sums + item.length * width, 0.0f);
    const float* log_sums = item.log_sums(lse);
    const __m512 scale = _mm512_set1_ps(item.o.scale);

    for (int64_t j0 = 0; j0 < item.length; j0 += kTile) {
        const int64_t j1 = std::min(j0 + kTile, item.length), panel = j0 * width * 2;
        std::fill(key_sums, key_sums + kTile * width, 0.0f);
        std::fill(value_sums, value_sums + kTile * width, 0.0f);
        for (int64_t i0 = j0; i0 < item.length; i0 += kTile) {
            const int64_t i1 = std::min(i0 + kTile, item.length), rows = i1 - i0;
            const Range low = item.low_range(i0, i1);
            if (low.begin >= j1) continue;
            product_rows<4>(rows, rows_of(item, q, i0), key_lines + panel, kTileRowBytes, width / 2,
                            [&](int64_t i, int vector, __m512 x) {
                                _mm512_store_ps(scores + i * kTile + vector * kLanes,
                                                _mm512_mul_ps(scale, x));
                            });
            if (j0 + kTile > i0 + 1 || j0 < low.end) item.mask(scores, i0, i1, j0);
            product_rows<4>(rows, rows_of(item, dout, i0), value_lines + panel, kTileRowBytes, width / 2,
                            [&](int64_t i, int vector, __m512 x) {
                                _mm512_store_ps(gradients + i * kTile + vector * kLanes, x);
                            });
            for (int64_t i = 0; i < rows; i += 2) {
                for (int64_t j = 0; j < kTile; j += kLanes) {
                    __m512 p[2] = {}, g[2] = {};
                    for (int64_t r = 0; r < std::min<int64_t>(2, rows - i); ++r) {
                        const int64_t at = (i + r) * kTile + j;
                        p[r] = exp_nonpositive(
                            _mm512_sub_ps(_mm512_load_ps(scores + at), _mm512_set1_ps(log_sums[i0 + i + r])));
                        g[r] = _mm512_mul_ps(p[r], _mm512_sub_ps(_mm512_load_ps(gradients + at),
                                                                 _mm512_set1_ps(deltas[i0 + i + r])));
                        store(gradient_rows + at, Vec(g[r]));
                    }
                    const int64_t word = i / 2 * kTileRowBytes + j * kWordBytes;
                    _mm512_store_si512(probability_words + word, pair_words(p[0], p[1]));
                    _mm512_store_si512(gradient_words + word, pair_words(g[0], g[1]));
                }
            }
            const int64_t query_tile = i0 * width * 2, query_words = (rows + 1) / 2;
            const auto add_to = [width](float* sums) {
                return [sums, width](int64_t i, int64_t column, __m512 x) {
                    float* to = sums + i * width + column;
                    _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), x));
                };
            };
            product(j1 - j0, {probability_words, kWordBytes, kTileRowBytes}, upstream_pairs + query_tile,
                    width, query_words, add_to(value_sums));
            product(j1 - j0, {gradient_words, kWordBytes, kTileRowBytes}, query_pairs + query_tile, width,
                    query_words, add_to(key_sums));
            product(rows, {reinterpret_cast<const char*>(gradient_rows), kTile * 2, kWordBytes},
                    key_pairs + panel, width, (j1 - j0 + 1) / 2, add_to(query_sums + i0 * width));
        }
        for (int64_t j = j0; j < j1; ++j) {
            item.pack_row<Bf16>(dk, j, key_sums + (j - j0) * width, item.o.scale);
            item.pack_row<Bf16>(dv, j, value_sums + (j - j0) * width, 1.0f);
        }
    }
    for (int64_t i = 0; i < item.length; ++i)
        item.pack_row<Bf16>(dq, i, query_sums + i * width, item.o.scale);
}

#else

bool has_bf16_attention(DType, const AttentionOptions&) {
    return false;
}
int64_t bf16_attention_forward_bytes(const AttentionOptions&) {
    return 0;
}
int64_t bf16_attention_backward_bytes(const AttentionOptions&) {
    return 0;
}
void bf16_attention_forward(const AttentionItem&, Tensor, Tensor, Tensor, Tensor, Tensor, void*) {
    throw_internal("this build has no bf16 attention of its own");
}
void bf16_attention_backward(const AttentionItem&, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                             Tensor, Tensor, void*) {
    throw_internal("this build has no bf16 attention of its own");
}

#endif

}  // namespace speedrun::cpu
