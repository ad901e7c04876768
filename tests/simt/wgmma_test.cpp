// The executor's emulation of kernels/cuda/blocks/wgmma.h against plain matmuls of small integers with exact sums,
// and the faults that it must detect. Layouts are repeated here: descriptor and swizzle as in the PTX ISA's tables.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "kernels/cuda/blocks/tile.cuh"
#include "kernels/cuda/blocks/wgmma.h"
#include "tests/errors.h"
#include "tests/simt/fragments.h"

namespace speedrun::testing {
namespace {

constexpr int kThreads = 2 * wgmma::kThreads, kRows = 2 * wgmma::kRows;

enum class Fault {
    none,
    unfenced,          // the writers' fence is missing
    no_begin,          // registers are not fenced
    no_wait,           // sums are read while their matmul is pending
    early_copy,        // an operand is overwritten before the wait
    never_waited,      // the kernel ends with a pending matmul
    one_warp_left_out  // three warps of a warpgroup start a matmul
};

// Two warpgroups: c[128 × 8·kTiles] = a[128 × kWidth] · bᵀ, b[8·kTiles × kWidth].
template <int kWidth, int kTiles>
void rows_kernel(float* c, const Bf16* a, const Bf16* b, Fault fault) {
    constexpr int kColumns = 8 * kTiles;
    Bf16* a_tile = shared_memory<Bf16>(0);
    Bf16* b_tile = shared_memory<Bf16>(kRows * kWidth * 2);
    tile::copy_rows_async<kRows, kWidth, kThreads, tile::Panels<kRows>>(a_tile, a, kWidth, 0, kRows);
    tile::copy_rows_async<kColumns, kWidth, kThreads, tile::Panels<kColumns>>(b_tile, b, kWidth, 0, kColumns);
    ptx::copy_async_commit();
    ptx::copy_async_wait<0>();
    if (fault != Fault::unfenced) wgmma::fence_async_proxy();
    __syncthreads();
    const int warp = static_cast<int>(threadIdx.x) / 32, group = warp / 4, lane = ptx::lane_id();
    float sums[kTiles][4];
    if (fault == Fault::one_warp_left_out && warp == 2) return;
    if (fault != Fault::no_begin) wgmma::begin(sums);
    wgmma::multiply_rows<kWidth, kRows>(sums, a_tile, group * wgmma::kRows, b_tile);
    if (fault == Fault::early_copy) {
        tile::copy_rows_async<kColumns, kWidth, kThreads, tile::Panels<kColumns>>(b_tile, a, kWidth, 0,
                                                                                  kColumns);
        ptx::copy_async_commit();
        ptx::copy_async_wait<0>();
        wgmma::fence_async_proxy();
    }
    if (fault != Fault::no_wait && fault != Fault::never_waited) wgmma::wait<0>(sums);
    for (int n = 0; n < kTiles; ++n) {
        for (int i = 0; i < 4; ++i) {
            const Place p = place_in_c(lane, i);
            c[(16 * warp + p.row) * kColumns + 8 * n + p.col] = sums[n][i];
        }
    }
    if (fault == Fault::no_wait) wgmma::wait<0>(sums);
}

// c[128 × kWidth] (+)= a[128 × 16·kSteps] · b[16·kSteps × kWidth], a as bf16 fragments in registers.
template <int kWidth, int kSteps>
void columns_kernel(float* c, const Bf16* a, const Bf16* b, bool add) {
    constexpr int kDepth = 16 * kSteps;
    Bf16* b_tile = shared_memory<Bf16>(0);
    tile::copy_rows_async<kDepth, kWidth, kThreads, tile::Panels<kDepth>>(b_tile, b, kWidth, 0, kDepth);
    ptx::copy_async_commit();
    ptx::copy_async_wait<0>();
    wgmma::fence_async_proxy();
    __syncthreads();
    const int warp = static_cast<int>(threadIdx.x) / 32, g = ptx::lane_id() / 4, t = ptx::lane_id() % 4;
    uint32_t fragments[kSteps][4];
    for (int k = 0; k < kSteps; ++k) {
        for (int r = 0; r < 4; ++r) {
            const Bf16* pair = a + (16 * warp + g + 8 * (r % 2)) * kDepth + 16 * k + 2 * t + 8 * (r / 2);
            fragments[k][r] = static_cast<uint32_t>(pair[1].bits) << 16 | pair[0].bits;
        }
    }
    float sums[kWidth / 8][4];
    for (auto& four : sums)
        for (float& sum : four) sum = 1000.0f;
    wgmma::begin(sums);
    wgmma::multiply_columns<kWidth>(sums, fragments, b_tile, add);
    wgmma::wait<0>(sums);
    for (int n = 0; n < kWidth / 8; ++n) {
        for (int i = 0; i < 4; ++i) {
            const Place p = place_in_c(ptx::lane_id(), i);
            c[(16 * warp + p.row) * kWidth + 8 * n + p.col] = sums[n][i];
        }
    }
}

template <int kWidth, int kTiles>
std::vector<float> rows_product(simt::Order order, Small& a, Small& b, Fault fault = Fault::none) {
    std::vector<float> c(static_cast<size_t>(kRows * 8 * kTiles), NAN);
    run(order, kThreads, (kRows + 8 * kTiles) * kWidth * 2, rows_kernel<kWidth, kTiles>, c.data(), a.data(),
        b.data(), fault);
    return c;
}

template <int kWidth, int kTiles>
void expect_rows_product() {
    Small a = random_integers(kRows, kWidth, 1), b = random_integers(8 * kTiles, kWidth, 2),
          bt = transposed(b);
    for (const simt::Order order : kOrders) {
        const bool equal = rows_product<kWidth, kTiles>(order, a, b) == product(a, bt);
        EXPECT_TRUE(equal) << kWidth << " wide, " << 8 * kTiles << " columns";
    }
}

TEST(Wgmma, MultipliesRowsByRows) {
    expect_rows_product<64, 8>();
    expect_rows_product<64, 16>();
    expect_rows_product<128, 8>();
    expect_rows_product<128, 16>();
}

template <int kWidth, int kSteps>
void expect_columns_product() {
    Small a = random_integers(kRows, 16 * kSteps, 3), b = random_integers(16 * kSteps, kWidth, 4);
    for (const bool add : {false, true}) {
        std::vector<float> expected = product(a, b);
        for (float& x : expected) x += add ? 1000.0f : 0.0f;
        for (const simt::Order order : kOrders) {
            std::vector<float> c(expected.size(), NAN);
            run(order, kThreads, 16 * kSteps * kWidth * 2, columns_kernel<kWidth, kSteps>, c.data(), a.data(),
                b.data(), add);
            const bool equal = c == expected;
            EXPECT_TRUE(equal) << kWidth << " wide, " << 16 * kSteps << " deep, " << add;
        }
    }
}

TEST(Wgmma, MultipliesRegistersByColumns) {
    expect_columns_product<64, 4>();
    expect_columns_product<64, 8>();
    expect_columns_product<128, 4>();
    expect_columns_product<128, 8>();
}

// Offset of an element of an operand with 128 bytes of k, in rows of k or, transposed, in panels of 64 columns.
template <class Element, bool kTransposed, int kOuter>
int wide_offset(int outer, int k) {
    const int row = kTransposed ? k : outer,
              byte = static_cast<int>(sizeof(Element)) * (kTransposed ? outer % 64 : k),
              panel = kTransposed ? outer / 64 * 64 * 128 : 0;
    return panel + row * 128 + ((byte / 16) ^ (row % 8)) * 16 + byte % 16;
}

// One warpgroup: c[64 × 256] (+)= a · b, a [64][k] or transposed, b [256][k] or transposed, plain stores of both to shared memory.
template <class Element, bool kTransposedA, bool kTransposedB>
void wide_kernel(float* c, const float* a, const float* b, bool add) {
    constexpr int kDepth = 128 / static_cast<int>(sizeof(Element)), kColumns = 256, kBytesOfA = 64 * 128;
    auto* const tiles = shared_memory<char>(0).get();
    const int thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < wgmma::kRows * kDepth; i += wgmma::kThreads) {
        const int at = wide_offset<Element, kTransposedA, wgmma::kRows>(i / kDepth, i % kDepth);
        *reinterpret_cast<Element*>(tiles + at) = Element(a[i]);
    }
    for (int i = thread; i < kColumns * kDepth; i += wgmma::kThreads) {
        const int at = wide_offset<Element, kTransposedB, kColumns>(i / kDepth, i % kDepth);
        *reinterpret_cast<Element*>(tiles + kBytesOfA + at) = Element(b[i]);
    }
    wgmma::fence_async_proxy();
    __syncthreads();
    constexpr int kPanel = 64 * 128, kGroup = 8 * 128, kDown = 16 * 128, kAcross = 32;
    const uint32_t base = wgmma::shared_address(tiles);
    const uint64_t a_tile = wgmma::describe(base, kPanel, kGroup),
                   b_tile = wgmma::describe(base + kBytesOfA, kPanel, kGroup);
    float sums[wgmma::kWideTiles][4];
    for (auto& four : sums)
        for (float& sum : four) sum = 1000.0f;
    wgmma::begin(sums);
    for (int i = 0; i < 4; ++i)
        wgmma::multiply_wide<Element, kTransposedA, kTransposedB>(
            sums, a_tile + static_cast<uint64_t>(i * (kTransposedA ? kDown : kAcross) / 16),
            b_tile + static_cast<uint64_t>(i * (kTransposedB ? kDown : kAcross) / 16), add || i > 0);
    wgmma::commit();
    wgmma::wait<0>(sums);
    for (int n = 0; n < wgmma::kWideTiles; ++n) {
        for (int i = 0; i < 4; ++i) {
            const Place p = place_in_c(ptx::lane_id(), i);
            c[(thread / 32 * 16 + p.row) * kColumns + 8 * n + p.col] = sums[n][i];
        }
    }
}

template <class Element, bool kTransposedA, bool kTransposedB>
void expect_wide_product() {
    constexpr int kDepth = 128 / static_cast<int>(sizeof(Element)), kColumns = 256;
    std::mt19937 generator(7);
    const auto random = [&](int count) {  // fractions that e4m3 represents
        std::vector<float> x(static_cast<size_t>(count));
        for (float& value : x) value = static_cast<float>(static_cast<int>(generator() % 31) - 15) / 8;
        return x;
    };
    const std::vector<float> a = random(wgmma::kRows * kDepth), b = random(kColumns * kDepth);
    for (const bool add : {false, true}) {
        std::vector<float> expected(static_cast<size_t>(wgmma::kRows * kColumns), add ? 1000.0f : 0.0f);
        for (size_t i = 0; i < expected.size(); ++i) {
            const float *row = a.data() + i / kColumns * kDepth, *column = b.data() + i % kColumns * kDepth;
            for (int k = 0; k < kDepth; ++k) expected[i] += row[k] * column[k];
        }
        for (const simt::Order order : kOrders) {
            std::vector<float> c(expected.size(), NAN);
            run(order, wgmma::kThreads, (wgmma::kRows + kColumns) * 128,
                wide_kernel<Element, kTransposedA, kTransposedB>, c.data(), a.data(), b.data(), add);
            EXPECT_TRUE(c == expected) << sizeof(Element) << kTransposedA << kTransposedB << add;
        }
    }
}

TEST(Wgmma, MultipliesWideTilesInEachForm) {
    expect_wide_product<Bf16, false, false>();
    expect_wide_product<Bf16, false, true>();
    expect_wide_product<Bf16, true, false>();
    expect_wide_product<Bf16, true, true>();
    expect_wide_product<E4m3, false, false>();
}

// "Matrix Descriptor Format": bits 0-13 start, 16-29 leading, 32-45 stride, all in units of 16 bytes; 62-63 the
// swizzle, 1: 128 bytes.
TEST(Wgmma, DescriptorMatchesIsa) {
    EXPECT_EQ(wgmma::describe(0x400, 16, 1024), 0x4000'0040'0001'0040u);
    EXPECT_EQ(wgmma::describe(0x3'8020, 16384, 1024), 0x4000'0040'0400'3802u);
}

// "Shared Memory Matrix Layout": in an atom of 8 rows of 128 bytes, chunk c of row r is stored at chunk c ^
// r.
TEST(Wgmma, PanelsAreSwizzled) {
    for (int row = 0; row < 32; ++row) {
        for (int chunk = 0; chunk < 16; ++chunk) {
            const int panel = chunk / 8,
                      bytes = panel * 32 * 128 + row * 128 + ((chunk % 8) ^ (row % 8)) * 16;
            EXPECT_EQ(tile::Panels<32>::offset(row, chunk) * 2, bytes) << row << ", " << chunk;
        }
    }
}

TEST(Wgmma, DetectsPlantedFaults) {
    Small a = random_integers(kRows, 64, 5), b = random_integers(64, 64, 6), bt = transposed(b);
    const std::map<Fault, std::string> messages = {
        {Fault::unfenced, "an unpublished write"},
        {Fault::no_begin, "a product without wgmma.fence"},
        {Fault::early_copy, "shared memory changed while a product read it"},
        {Fault::never_waited, "has not waited for its products"},
        {Fault::one_warp_left_out, "started 0 products, others of its warpgroup 4"}};
    for (const auto& [fault, message] : messages) {
        expect_error(ExitCode::failure, {message},
                     [&] { rows_product<64, 8>(simt::Order::forward, a, b, fault); });
    }
    for (const float x : rows_product<64, 8>(simt::Order::random, a, b, Fault::no_wait))
        ASSERT_TRUE(std::isnan(x));
}

}  // namespace
}  // namespace speedrun::testing
