// The loops around the tiles of bf16_tile.h, in the order of Goto & van de Geijn 2008 ("Anatomy of
// High-Performance Matrix Multiplication", figure 10): pieces of K outside, then columns, whose packed panels
// fill the second-level cache or the third, then blocks of rows, which threads share, then tiles whose sums
// stay in registers.
#include "kernels/cpu/bf16_product.h"

#include "kernels/cpu/bf16_finish.h"
#include "kernels/cpu/bf16_tile.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/device/error.h"

namespace speedrun::cpu {

#ifdef SPEEDRUN_BF16_TILES

namespace {

constexpr int64_t kColumns = 1024;      // of b packed at a time
constexpr int64_t kRowsOfA = 2016;      // of a transposed a packed at a time
constexpr int64_t kDirectDepth = 4096;  // of K at a time, where rows of a are read in place
constexpr int64_t kPackedDepth = 1024;  // and where a is packed: it is long in K as a rule
constexpr int64_t kTileRows = 6;        // of a tile: 24 of the 32 registers are sums
constexpr int64_t kStrip = 48;          // rows of packed a that lie side by side: whole tiles, whole vectors
constexpr int64_t kCachedDepth = 192;   // of K at once with packed a: strip and panel fit the first cache
constexpr int64_t kBlockBytes = 128 << 10;  // of the rows that a thread walks through all panels with
constexpr int64_t kPackRows = 32;           // rows of K that are packed as one piece of work

// One more than needed: panels at a power of two from each other would all want the same lines of a cache.
int64_t padded_pairs(int64_t pairs) {
    return pairs + 1;
}

// How one product is walked through.
struct Plan {
    bool packed;      // a is packed: it is transposed, or its rows have no whole number of pairs
    int64_t depth;    // of K at a time
    int64_t pairs;    // of that
    int64_t columns;  // of b at a time
    int64_t rows;     // of a packed at a time
    int64_t block;    // rows of a piece of work
    int64_t b_bytes, a_bytes, sum_bytes;

    explicit Plan(const Bf16Product& g) : packed(g.transpose_a || g.k % 2 != 0) {
        depth = std::min(g.k, packed ? kPackedDepth : kDirectDepth);
        pairs = ceil_div(depth, 2);
        columns = std::min(round_up(g.n, kPanel), kColumns);
        rows = packed ? std::min(round_up(g.m, kStrip), kRowsOfA) : 0;
        const int64_t unit = packed ? kStrip : kTileRows;  // of whole tiles
        const int64_t fits = std::max(unit, kBlockBytes / (2 * depth) / unit * unit);
        block = std::min(fits, std::max(unit, round_up(ceil_div(g.m, kLoopPieces), unit)));
        b_bytes = columns * padded_pairs(pairs) * kWordBytes;
        a_bytes = rows * padded_pairs(pairs) * kWordBytes;
        // Sums that wait for the next piece of K; an f32 result holds them itself.
        sum_bytes = depth < g.k && !g.c_is_f32 ? g.m * g.n * static_cast<int64_t>(sizeof(float)) : 0;
    }
};

template <int Rows>
void run_tile(PairRows a, const char* panel, int64_t pairs, int64_t row, int64_t column,
              const Finish& finish) {
    __m512 sums[Rows][kPanel / kLanes] = {};
    add_pairs(sums, a, panel, kPanel * kWordBytes, pairs);
    finish(sums, row, column);
}

// Rows of at most six.
void run_tile(int64_t rows, PairRows a, const char* panel, int64_t pairs, int64_t row, int64_t column,
              const Finish& finish) {
    switch (rows) {
        case 1:
            return run_tile<1>(a, panel, pairs, row, column, finish);
        case 2:
            return run_tile<2>(a, panel, pairs, row, column, finish);
        case 3:
            return run_tile<3>(a, panel, pairs, row, column, finish);
        case 4:
            return run_tile<4>(a, panel, pairs, row, column, finish);
        case 5:
            return run_tile<5>(a, panel, pairs, row, column, finish);
        default:
            return run_tile<6>(a, panel, pairs, row, column, finish);
    }
}

// One pass over a piece of K and a range of columns.
struct Pass {
    const Bf16Product& g;
    const Plan& plan;
    char* panels;  // of b: [columns/64][pairs][64] words
    char* strips;  // of a, if packed: [rows/48][pairs][48] words
    int64_t k0, depth, n0, columns;
    Finish finish;

    int64_t pairs() const { return ceil_div(depth, 2); }

    void pack_b() const { pack(panels, kPanel, g.b, g.b_stride, n0, columns, !g.transpose_b); }
    // Rows [m0, m0 + rows) of op(a).
    void pack_a(int64_t m0, int64_t rows) const {
        pack(strips, kStrip, g.a, g.a_stride, m0, rows, g.transpose_a);
    }
    // Lines [first, first + count) along m or n of an operand, `width` of them side by side in a panel.
    // by_rows: one row in memory holds them all for one k; otherwise one holds all k of a line.
    void pack(char* to, int64_t width, const Bf16* x, int64_t stride, int64_t first, int64_t count,
              bool by_rows) const {
        const int64_t row = width * kWordBytes, bytes = panel_bytes(width);
        if (by_rows) {
            parallel_for(ceil_div(depth, kPackRows), [&](int64_t piece) {
                const int64_t end = std::min((piece + 1) * kPackRows, depth);
                // Along the rows, as the prefetchers like it.
                for (int64_t k = piece * kPackRows; k < end; k += 2) {
                    const Bf16* line = x + (k0 + k) * stride + first;
                    for (int64_t j = 0; j < count; j += width) {
                        pack_row_pair(to + j / width * bytes + k / 2 * row, line + j,
                                      k + 1 < depth ? line + stride + j : nullptr,
                                      std::min(width, count - j));
                    }
                }
            });
        } else {
            parallel_for_dynamic(ceil_div(count, width), [&](int64_t p) {
                pack_from_columns(to + p * bytes, row, x + (first + p * width) * stride + k0, stride,
                                  std::min(width, count - p * width), depth);
            });
        }
    }
    int64_t panel_bytes(int64_t width) const { return padded_pairs(pairs()) * width * kWordBytes; }

    // The rows [m0 + begin, m0 + end) of c, where strips hold those from m0 on.
    // Columns: [first, last) of the range's.
    void block(int64_t m0, int64_t begin, int64_t end, int64_t first, int64_t last) const {
        // Sums that pass through memory anyway may do so more often.
        const bool cut = plan.packed && (g.c_is_f32 || finish.sums);
        const int64_t step = cut ? kCachedDepth / 2 : pairs();
        for (int64_t n = first; n < last; n += kPanel) {
            const char* panel = panels + n / kPanel * panel_bytes(kPanel);
            for (int64_t p = 0; p < pairs(); p += step) {
                const int64_t count = std::min(step, pairs() - p);
                const Finish piece{g, finish.sums, finish.first && p == 0,
                                   finish.last && p + count == pairs()};
                for (int64_t i = begin; i < end; i += kTileRows) {
                    if (g.symmetric && is_above(m0 + i, n0 + n)) continue;
                    run_tile(std::min(kTileRows, end - i), rows_of_a(m0, i, p),
                             panel + p * kPanel * kWordBytes, count, m0 + i, n0 + n, piece);
                    if (g.symmetric && piece.last) mirror(m0 + i, m0 + std::min(end, i + kTileRows), n0 + n);
                }
            }
        }
    }

    // Copies rows [begin, end) of a panel below the diagonal to their places above it, but for those that the
    // tiles there have computed themselves: what lies in the panel that their own rows end in.
    void mirror(int64_t begin, int64_t end, int64_t column) const {
        auto* c = static_cast<Bf16*>(g.c);
        const int64_t last = std::min(column + kPanel, g.n);
        for (int64_t i = begin; i < end; ++i) {
            for (int64_t j = column; j < last && is_above(j / kTileRows * kTileRows, i / kPanel * kPanel);
                 ++j)
                c[j * g.c_stride + i] = c[i * g.c_stride + j];
        }
    }
    // Whether a tile, by its first row and column, has nothing on or below the diagonal.
    static bool is_above(int64_t row, int64_t column) { return column >= row + kTileRows; }

    // From pair p on.
    PairRows rows_of_a(int64_t m0, int64_t i, int64_t p) const {
        if (!plan.packed) {
            const Bf16* row = g.a + (m0 + i) * g.a_stride + k0 + 2 * p;
            return {reinterpret_cast<const char*>(row), g.a_stride * 2, kWordBytes};
        }
        const char* pair = strips + i / kStrip * panel_bytes(kStrip) + p * kStrip * kWordBytes;
        return {pair + i % kStrip * kWordBytes, kWordBytes, kStrip * kWordBytes};
    }

    void run() const {
        pack_b();
        const int64_t group = plan.packed ? plan.rows : g.m;
        for (int64_t m0 = 0; m0 < g.m; m0 += group) {
            const int64_t rows = std::min(group, g.m - m0);
            if (plan.packed) pack_a(m0, rows);
            // Few blocks are cut along the columns too, so that threads end together.
            const int64_t blocks = ceil_div(rows, plan.block);
            const int64_t cuts = std::clamp(2 * kLoopPieces / blocks, int64_t{1}, ceil_div(columns, kPanel));
            const int64_t width = round_up(ceil_div(columns, cuts), kPanel);
            parallel_for_dynamic(blocks * cuts, [&](int64_t piece) {
                const int64_t row = piece / cuts * plan.block, column = piece % cuts * width;
                block(m0, row, std::min(rows, row + plan.block), column, std::min(columns, column + width));
            });
        }
    }
};

}  // namespace

bool has_bf16_product() {
    return cpu_has_bf16();
}

int64_t bf16_product_workspace(const Bf16Product& product) {
    const Plan plan(product);
    return plan.b_bytes + plan.a_bytes + plan.sum_bytes;
}

void run_bf16_product(const Bf16Product& g, void* workspace) {
    if (g.c_is_f32 && (g.symmetric || g.base))
        throw_internal("bf16 product: symmetric and base need a bf16 result");
    if (g.symmetric && (g.m != g.n || g.beta != 0.0f || g.bias))
        throw_internal("bf16 product: {} x {}, with beta {} or a bias: not symmetric", g.m, g.n, g.beta);
    const Plan plan(g);
    auto* panels = static_cast<char*>(workspace);
    char* strips = panels + plan.b_bytes;
    auto* sums = plan.sum_bytes > 0 ? reinterpret_cast<float*>(strips + plan.a_bytes) : nullptr;
    for (int64_t k0 = 0; k0 < g.k; k0 += plan.depth) {
        const int64_t depth = std::min(plan.depth, g.k - k0);
        for (int64_t n0 = 0; n0 < g.n; n0 += plan.columns) {
            Pass{g,
                 plan,
                 panels,
                 strips,
                 k0,
                 depth,
                 n0,
                 std::min(plan.columns, g.n - n0),
                 {g, sums, k0 == 0, k0 + depth == g.k}}
                .run();
        }
    }
}

#else

bool has_bf16_product() {
    return false;
}
int64_t bf16_product_workspace(const Bf16Product&) {
    return 0;
}
void run_bf16_product(const Bf16Product&, void*) {
    throw_internal("this build has no bf16 products of its own");
}

#endif

}  // namespace speedrun::cpu
