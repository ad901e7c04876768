// One pass of a matmul's loops, over a piece of K and a range of columns, and the sizes of these pieces.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/gemm_finish.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/ranges.h"
#include "kernels/cpu/transpose.h"

namespace speedrun::cpu {

constexpr int64_t kColumns = 1024;          // maximum columns of b packed at a time
constexpr int64_t kRowsOfA = 2016;          // rows of a packed at a time: whole strips
constexpr int64_t kBlockBytes = 128 << 10;  // bytes of the rows that a thread multiplies with all panels
constexpr int64_t kPackRows = 32;           // rows of K packed as one piece of work

// Words of a packed panel. One more row than needed, as panels at power-of-two distances would conflict for
// the same cache lines. At least one vector, as packing may write that much past the last row.
inline int64_t words_of_panel(int64_t words, int64_t width) {
    return round_up(words * width + std::max(width, kLanes), kLanes);
}

// Blocking of one matmul.
template <class Tile>
struct GemmPlan {
    bool packed;      // a is packed: it is transposed, or the tile cannot read its rows
    bool b_packed;    // b is packed
    int64_t depth;    // elements of K per pass
    int64_t words;    // words of `depth`
    int64_t columns;  // columns of b per pass
    int64_t rows;     // rows of a packed at a time
    int64_t block;    // rows per piece of work
    int64_t b_bytes, a_bytes, sum_bytes;

    // reads_in_place: result of Tile::reads_in_place() for the whole matmul, of which g may be a part.
    GemmPlan(const Gemm& g, bool reads_in_place)
        : packed(!reads_in_place), b_packed(!Tile::reads_panels_in_place(g)) {
        const int64_t pieces = ceil_div(g.k, Tile::longest_piece(g.k, packed));
        depth = std::min(g.k, round_up(ceil_div(g.k, pieces), Tile::kDepthUnit));
        words = ceil_div(depth, Tile::kPerWord);
        columns = std::min({round_up(g.n, Tile::kPanel), kColumns / Tile::kPanel * Tile::kPanel,
                            Tile::max_of_b(packed) / words / Tile::kPanel * Tile::kPanel});
        rows = packed ? std::min(round_up(g.m, Tile::kStrip), kRowsOfA) : 0;
        const int64_t unit = packed ? Tile::kStrip : Tile::kRows;  // rows of whole tiles
        const int64_t row_bytes = words * static_cast<int64_t>(sizeof(typename Tile::Word));
        const int64_t fits = std::max(unit, kBlockBytes / row_bytes / unit * unit);
        // Splits along the columns only into few blocks, so that threads end together. Too few blocks are
        // made lower instead.
        const int64_t panels = columns / Tile::kPanel,
                      blocks = std::max(ceil_div(g.m, fits), ceil_div(kLoopPieces, panels));
        block = std::min(fits, round_up(ceil_div(g.m, blocks), unit));
        constexpr auto kWord = static_cast<int64_t>(sizeof(typename Tile::Word));
        b_bytes = b_packed ? columns / Tile::kPanel * words_of_panel(words, Tile::kPanel) * kWord : 0;
        a_bytes = rows / Tile::kStrip * words_of_panel(words, Tile::kStrip) * kWord;
        // Sums between pieces of K. An f32 result holds them itself.
        sum_bytes =
            depth < g.k && g.result != DType::f32 ? g.m * g.n * static_cast<int64_t>(sizeof(float)) : 0;
    }
    int64_t bytes() const { return b_bytes + a_bytes + sum_bytes; }
};

// One pass over a piece of K and a range of columns.
template <class Tile, class Result>
struct GemmPass {
    using Word = typename Tile::Word;
    using Source = typename Tile::Source;

    const Gemm& g;
    const GemmPlan<Tile>& plan;
    Word* panels;  // packed b: [columns/kPanel][words][kPanel]
    Word* strips;  // packed a: [rows/Tile::kStrip][words][Tile::kStrip]
    int64_t k0, depth, n0, columns;
    Finish<Result> finish;

    const Source* a() const { return static_cast<const Source*>(g.a); }
    const Source* b() const { return static_cast<const Source*>(g.b); }
    int64_t words() const { return ceil_div(depth, Tile::kPerWord); }
    int64_t panel_words(int64_t width) const { return words_of_panel(words(), width); }

    // Lines [first, first + count) along m or n of an operand, `width` adjacent in a panel. by_rows: a row in
    // memory holds one k of all lines; otherwise it holds all k of one line.
    struct Packing {
        Word* to;
        int64_t width;
        const Source* x;
        int64_t stride, first, count;
        bool by_rows;
    };
    // Pieces of work: some rows of K, or the lines of a panel. In a pass with fewer rows the last may be
    // empty.
    int64_t pieces_of(const Packing& p) const {
        return p.by_rows ? ceil_div(depth, kPackRows) : ceil_div(p.count, p.width);
    }
    template <Side side>
    void pack(const Packing& p, int64_t piece) const {
        const auto& [to, width, x, stride, first, count, by_rows] = p;
        const int64_t panel = panel_words(width);
        if (!by_rows) {
            Tile::template pack_lines<side>(to + piece * panel, width,
                                            x + (first + piece * width) * stride + k0, stride,
                                            std::min(width, count - piece * width), depth, width);
            return;
        }
        const int64_t end = std::min((piece + 1) * kPackRows, depth);
        if constexpr (side == Side::left && Tile::kStrip < kLanes) {
            Tile::pack_strips(to, panel, x + k0 * stride + first, stride, {piece * kPackRows, end}, count);
        } else {  // along rows, for the hardware prefetchers
            constexpr int64_t kStep = Tile::template kStep<side>;
            for (int64_t k = piece * kPackRows; k < end; k += kStep) {
                for (int64_t j = 0; j < count; j += width)
                    Tile::template pack_row<side>(to + j / width * panel + k / Tile::kPerWord * width,
                                                  x + (k0 + k) * stride + first + j, stride, depth - k,
                                                  std::min(width, count - j), width);
            }
        }
    }
    Packing right() const { return {panels, Tile::kPanel, b(), g.b_stride, n0, columns, !g.transpose_b}; }
    Packing left(int64_t m0, int64_t rows) const {
        return {strips, Tile::kStrip, a(), g.a_stride, m0, rows, g.transpose_a};
    }

    template <int Count>
    SPEEDRUN_BY_RANGES void tile(typename Tile::Rows rows, const Word* panel, int64_t row,
                                 int64_t column) const {
        finish.template prefetch<Count, Tile::kPanel>(row, column);
        Register sums[Count][Tile::kCount] = {};
        Tile::add(sums, rows, panel, panel_stride(), words());
        finish(sums, row, column);
    }
    // Computes a tile of 1 to kRows rows. Each count has its own function unless the tile takes any count.
    void tile(int64_t count, typename Tile::Rows rows, const Word* panel, int64_t row, int64_t column) const {
        if constexpr (requires { Tile::template multiply<Result>; })
            Tile::multiply(count, rows, panel, words(), row, column, finish);
        else
            tile_of(count, rows, panel, row, column);
    }
    void tile_of(int64_t count, typename Tile::Rows rows, const Word* panel, int64_t row,
                 int64_t column) const {
        using Function = void (GemmPass::*)(typename Tile::Rows, const Word*, int64_t, int64_t) const;
        static constexpr auto kTiles = []<int... Count>(std::integer_sequence<int, Count...>) {
            return std::array<Function, sizeof...(Count)>{&GemmPass::template tile<Count + 1>...};
        }
        (std::make_integer_sequence<int, Tile::kRows>());
        (this->*kTiles[static_cast<size_t>(count - 1)])(rows, panel, row, column);
    }

    // Computes rows [m0 + begin, m0 + end) of c, with strips from m0 on. Columns: [first, last) of the range.
    void block(int64_t m0, int64_t begin, int64_t end, int64_t first, int64_t last) const {
        if constexpr (Tile::kRowsFirst) {
            for (int64_t i = begin; i < end; i += Tile::kRows) {
                for (int64_t n = first; n < last; n += Tile::kPanel) tile_at(m0, i, end, n);
            }
        } else {
            for (int64_t n = first; n < last; n += Tile::kPanel) {
                for (int64_t i = begin; i < end; i += Tile::kRows) tile_at(m0, i, end, n);
            }
        }
        if (g.symmetric && finish.last) mirror(m0 + begin, m0 + end, n0 + first, n0 + last);
    }

    // Reports the reads of tiles, rows [m0, m0 + rows) of a and all panels, to ThreadSanitizer. Once and not
    // per thread: the team ends with a barrier, so another access conflicts with all threads or none.
    void note_operands(int64_t m0, int64_t rows) const {
        const int64_t panel = panel_words(Tile::kPanel), strip = panel_words(Tile::kStrip);
        if (plan.b_packed)
            note_reads(panels, words() * Tile::kPanel, ceil_div(columns, Tile::kPanel), panel);
        else
            note_reads(b() + k0 * g.b_stride + n0, columns, depth, g.b_stride);
        if (plan.packed)
            note_reads(strips, words() * Tile::kStrip, ceil_div(rows, Tile::kStrip), strip);
        else if (g.transpose_a)
            note_reads(a() + k0 * g.a_stride + m0, rows, depth, g.a_stride);
        else
            note_reads(a() + m0 * g.a_stride + k0, depth, rows, g.a_stride);
    }

    // Computes the tile of rows [m0 + i, m0 + min(end, i + kRows)) and the columns from n on.
    void tile_at(int64_t m0, int64_t i, int64_t end, int64_t n) const {
        const int64_t row = m0 + i, column = n0 + n, rows = std::min(Tile::kRows, end - i);
        if (g.symmetric && is_above(row, column)) return;
        finish.note(rows, std::min(Tile::kPanel, g.n - column), row, column);
        tile(rows, rows_of_a(m0, i), panel_at(n), row, column);
    }

    // Mirrors the elements below the diagonal in rows [begin, end) and columns [first, last). Skips elements
    // that tiles above the diagonal have computed: in row i, the columns from end_of_mirror(i) on.
    void mirror(int64_t begin, int64_t end, int64_t first, int64_t last) const {
        auto* c = static_cast<Result*>(g.c);
        alignas(64) float block[kLanes * kLanes];
        for (int64_t i = begin; i < end; i += kLanes) {
            const int64_t rows = std::min(kLanes, end - i);
            int64_t j = first;
            for (; j + kLanes <= std::min(last, end_of_mirror(i)); j += kLanes) {
                transpose_block(block, kLanes, c + i * g.c_stride + j, g.c_stride, rows, kLanes);
                for (int64_t r = 0; r < kLanes; ++r)
                    store(c + (j + r) * g.c_stride + i, load(block + r * kLanes), Part{rows});
            }
            for (int64_t row = i; row < i + rows; ++row) {
                for (int64_t column = j; column < std::min(last, end_of_mirror(row)); ++column)
                    c[column * g.c_stride + row] = c[row * g.c_stride + column];
            }
        }
    }
    static int64_t end_of_mirror(int64_t row) {
        return row / Tile::kPanel * Tile::kPanel / Tile::kRows * Tile::kRows;
    }
    // True if a tile, given its first row and column, is entirely above the diagonal.
    static bool is_above(int64_t row, int64_t column) { return column >= row + Tile::kRows; }

    const Word* panel_at(int64_t n) const {
        if (!plan.b_packed) return reinterpret_cast<const Word*>(b() + k0 * g.b_stride + n0 + n);
        return panels + n / Tile::kPanel * panel_words(Tile::kPanel);
    }
    int64_t panel_stride() const { return plan.b_packed ? Tile::kPanel : g.b_stride; }
    typename Tile::Rows rows_of_a(int64_t m0, int64_t i) const {
        if (!plan.packed) {
            const int64_t row = m0 + i;
            return Tile::in_place(a() + (g.transpose_a ? k0 * g.a_stride + row : row * g.a_stride + k0),
                                  g.a_stride, g.transpose_a);
        }
        return Tile::packed(strips + i / Tile::kStrip * panel_words(Tile::kStrip), i % Tile::kStrip,
                            Tile::kStrip);
    }
};

}  // namespace speedrun::cpu
