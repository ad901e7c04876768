// Loops around the tiles of f32_tile.h and bf16_tile.h, in the order of Goto & van de Geijn 2008 ("Anatomy of
// High-Performance Matrix Multiplication", figure 10). Outermost are pieces of K, then columns, whose packed
// panels fill the L2 or L3 cache. Then blocks of rows, distributed over threads; innermost are tiles with
// sums in registers.
#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <vector>

#include "kernels/cpu/amx_tile.h"
#include "kernels/cpu/bf16_tile.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/f32_tile.h"
#include "kernels/cpu/gemm_finish.h"
#include "kernels/cpu/gemm_pass.h"
#include "kernels/cpu/parallel.h"
#include "kernels/device/error.h"

namespace speedrun::cpu {

namespace {

constexpr int64_t kPartUnit = 64;  // a part of K is whole depths of every tile

// Parts of K with separate sums. Two for long sums of few elements (gradients of weights): in each half of
// the loops below, threads read panels that they have packed themselves, and barriers are halved. Depends on
// sizes alone, as the summation order must.
int64_t parts_of(const Gemm& g) {
    constexpr int64_t kMinDepth = 4096, kMaxElements = 1 << 20;
    return !g.symmetric && g.k >= kMinDepth && g.m * g.n <= kMaxElements ? 2 : 1;
}
int64_t bytes_of_sums(const Gemm& g, int64_t parts) {
    return round_up(parts * g.m * g.n * static_cast<int64_t>(sizeof(float)), 64);
}
int64_t depth_of_part(const Gemm& g, int64_t parts) {
    return round_up(ceil_div(g.k, parts), kPartUnit);
}

// The parts as matmuls with separate sums, [m][n]; the first part has the longest K.
std::vector<Gemm> cut(const Gemm& g, int64_t parts, float* sums) {
    const auto element = static_cast<int64_t>(g.input_dtype == DType::f32 ? sizeof(float) : sizeof(Bf16));
    const int64_t depth = depth_of_part(g, parts);
    std::vector<Gemm> all;
    for (int64_t k = 0; k < g.k; k += depth, sums += g.m * g.n) {
        all.push_back({.m = g.m,
                       .n = g.n,
                       .k = std::min(depth, g.k - k),
                       .input_dtype = g.input_dtype,
                       .a = static_cast<const char*>(g.a) + k * (g.transpose_a ? g.a_stride : 1) * element,
                       .a_stride = g.a_stride,
                       .transpose_a = g.transpose_a,
                       .b = static_cast<const char*>(g.b) + k * (g.transpose_b ? 1 : g.b_stride) * element,
                       .b_stride = g.b_stride,
                       .transpose_b = g.transpose_b,
                       .c = sums,
                       .c_stride = g.n,
                       .result = DType::f32,
                       .amx = g.amx});
    }
    return all;
}

// Writes c from the sums of the parts.
template <class Result>
void join(const Gemm& g, std::span<const Gemm> parts) {
    constexpr int64_t kWide = 4 * kLanes;
    const Finish<Result> finish{g, nullptr, true, true};
    parallel_for(g.m, [&](int64_t row) {
        alignas(64) float line[kWide];
        for (int64_t j = 0; j < g.n; j += kWide) {
            for (int64_t v = 0; v < kWide; v += kLanes) {
                const Part lanes{std::clamp<int64_t>(g.n - j - v, 0, kLanes)};
                Vec sum = load(static_cast<const float*>(parts[0].c) + row * g.n + j + v, lanes);
                for (const Gemm& part : parts.subspan(1))
                    sum += load(static_cast<const float*>(part.c) + row * g.n + j + v, lanes);
                store(line + v, sum);
            }
            finish.template lines<kWide>(line, 1, row, j);
        }
    });
}

// Passes over parts of K for the same columns. They share one loop, in which the pieces of a part follow each
// other.
template <class Tile, class Result>
void run_passes(std::span<const GemmPass<Tile, Result>> passes) {
    const GemmPass<Tile, Result>& first = passes.front();
    const GemmPlan<Tile>& plan = first.plan;
    const auto for_pieces = [&](int64_t count, const auto& body) {
        parallel_for_dynamic(std::ssize(passes) * count,
                             [&](int64_t i) { body(passes[static_cast<size_t>(i / count)], i % count); });
    };
    if (plan.b_packed)
        for_pieces(first.pieces_of(first.right()), [](const auto& pass, int64_t piece) {
            pass.template pack<Side::right>(pass.right(), piece);
        });
    const int64_t m = first.g.m, group = plan.packed ? plan.rows : m;
    for (int64_t m0 = 0; m0 < m; m0 += group) {
        const int64_t rows = std::min(group, m - m0), columns = first.columns;
        if (plan.packed)
            for_pieces(first.pieces_of(first.left(m0, rows)), [&](const auto& pass, int64_t piece) {
                pass.template pack<Side::left>(pass.left(m0, rows), piece);
            });
        for (const auto& pass : passes) pass.note_operands(m0, rows);
        const int64_t blocks = ceil_div(rows, plan.block);
        const int64_t cuts =
            std::clamp(2 * kLoopPieces / blocks, int64_t{1}, ceil_div(columns, Tile::kPanel));
        const int64_t width = round_up(ceil_div(columns, cuts), Tile::kPanel);
        // Each thread starts with a contiguous run of pieces in this order. All threads packed both operands.
        // If b is larger, a run goes down the rows: it fetches few panels from other cores' caches, each
        // once.
        const bool down = plan.packed && columns > rows;
        for_pieces(blocks * cuts, [&](const auto& pass, int64_t piece) {
            const int64_t row = (down ? piece % blocks : piece / cuts) * plan.block,
                          column = (down ? piece / blocks : piece % cuts) * width;
            [[maybe_unused]] const typename Tile::Unit unit;
            pass.block(m0, row, std::min(rows, row + plan.block), column, std::min(columns, column + width));
        });
    }
}

// Matmuls that differ only in operand and result pointers; the last may have a shorter K.
template <class Tile, class Result>
void run_together(std::span<const Gemm> products, bool reads_in_place, char* memory) {
    using Word = typename Tile::Word;
    const Gemm& g = products.front();
    const GemmPlan<Tile> plan(g, reads_in_place);
    for (int64_t k0 = 0; k0 < g.k; k0 += plan.depth) {
        for (int64_t n0 = 0; n0 < g.n; n0 += plan.columns) {
            const int64_t columns = std::min(plan.columns, g.n - n0);
            std::vector<GemmPass<Tile, Result>> passes;
            char* own = memory;
            for (const Gemm& product : products) {
                const int64_t depth = std::min(plan.depth, product.k - k0);
                if (depth <= 0) continue;
                auto* const panels = reinterpret_cast<Word*>(own);
                auto* const strips = reinterpret_cast<Word*>(own + plan.b_bytes);
                own += plan.b_bytes + plan.a_bytes;
                auto* const sums = plan.sum_bytes > 0 ? reinterpret_cast<float*>(own) : nullptr;
                own += plan.sum_bytes;
                passes.push_back({product,
                                  plan,
                                  panels,
                                  strips,
                                  k0,
                                  depth,
                                  n0,
                                  columns,
                                  {product, sums, k0 == 0, k0 + depth == product.k}});
            }
            run_passes<Tile, Result>(passes);
        }
    }
}

template <class Tile, class Result>
void run(const Gemm& g, char* memory) {
    const int64_t parts = parts_of(g);
    const bool in_place = Tile::reads_in_place(g);
    if (parts == 1) return run_together<Tile, Result>(std::span(&g, 1), in_place, memory);
    const std::vector<Gemm> all = cut(g, parts, reinterpret_cast<float*>(memory));
    run_together<Tile, float>(all, in_place, memory + bytes_of_sums(g, parts));
    join<Result>(g, all);
}

template <class Tile>
int64_t workspace_of(const Gemm& g) {
    const int64_t parts = parts_of(g);
    const bool in_place = Tile::reads_in_place(g);
    if (parts == 1) return GemmPlan<Tile>(g, in_place).bytes();
    Gemm part = g;
    part.k = depth_of_part(g, parts);
    part.result = DType::f32;
    return bytes_of_sums(g, parts) + parts * GemmPlan<Tile>(part, in_place).bytes();
}

// Calls body.template operator()<Tile, Result>() with the types of this matmul.
template <class Body>
auto with_tile(const Gemm& g, Body&& body) {
    if (g.input_dtype == DType::f32) return body.template operator()<F32Tile<float>, float>();
#ifdef SPEEDRUN_AMX_TILES
    if (AmxTile::serves(g)) {
        if (g.result == DType::f32) return body.template operator()<AmxTile, float>();
        return body.template operator()<AmxTile, Bf16>();
    }
#endif
#ifdef SPEEDRUN_BF16_TILES
    using Bf16Tile = PairTile;
#else
    using Bf16Tile = F32Tile<Bf16>;
#endif
    if (g.result == DType::f32) return body.template operator()<Bf16Tile, float>();
    return body.template operator()<Bf16Tile, Bf16>();
}

}  // namespace

int64_t product_workspace(const Gemm& g) {
    return with_tile(g, [&]<class Tile, class Result>() { return workspace_of<Tile>(g); });
}

void run_product(const Gemm& g, void* workspace) {
    if (g.symmetric && (g.m != g.n || g.beta != 0.0f || g.bias))
        throw_internal("product: {} x {}, with beta {} or a bias: not symmetric", g.m, g.n, g.beta);
    with_tile(g, [&]<class Tile, class Result>() { run<Tile, Result>(g, static_cast<char*>(workspace)); });
}

}  // namespace speedrun::cpu
