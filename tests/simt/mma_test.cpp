// Emulations of kernels/cuda/blocks/ptx.h against the fragment layouts of the PTX ISA, repeated here as
// tables. The tile functions built on them are compared with a plain matmul. Matrices hold small integers, so
// that all sums are exact and results must be equal.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/cuda/blocks/launch.h"
#include "kernels/cuda/blocks/ptx.h"
#include "kernels/cuda/blocks/tile.cuh"
#include "tests/simt/fragments.h"

namespace speedrun::testing {
namespace {

// ---- mma.sync.m16n8k16: element i of a lane's fragment, as in the tables of the ISA ("Matrix Fragments for
// mma.m16n8k16 with floating point type"): groupID = lane >> 2, threadID_in_group = lane % 4.
Place place_in_a(int lane, int i) {  // a0 … a7
    const bool upper_row = !(i < 2 || (4 <= i && i < 6));
    return {(lane >> 2) + (upper_row ? 8 : 0), (lane % 4) * 2 + (i & 1) + (i >= 4 ? 8 : 0)};
}
Place place_in_b(int lane, int i) {  // b0 … b3
    return {(lane % 4) * 2 + (i & 1) + (i >= 2 ? 8 : 0), lane >> 2};
}
enum class Mistake { none, a_registers, b_registers, c_registers };

template <Mistake kMistake>
void mma_kernel(float* c, const Bf16* a, const Bf16* b) {
    const int lane = static_cast<int>(threadIdx.x);
    uint32_t fragment_a[4], fragment_b[2];
    const auto a_bits = [&](int i) -> uint32_t {
        const Place p = place_in_a(lane, i);
        return a[p.row * 16 + p.col].bits;
    };
    const auto b_bits = [&](int i) -> uint32_t {
        const Place p = place_in_b(lane, i);
        return b[p.row * 8 + p.col].bits;
    };
    for (int r = 0; r < 4; ++r) fragment_a[r] = a_bits(2 * r + 1) << 16 | a_bits(2 * r);
    for (int r = 0; r < 2; ++r) fragment_b[r] = b_bits(2 * r + 1) << 16 | b_bits(2 * r);
    if (kMistake == Mistake::a_registers) std::swap(fragment_a[1], fragment_a[2]);
    if (kMistake == Mistake::b_registers) std::swap(fragment_b[0], fragment_b[1]);
    float sums[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    ptx::mma_bf16(sums, fragment_a, fragment_b[0], fragment_b[1]);
    if (kMistake == Mistake::c_registers) std::swap(sums[1], sums[2]);
    for (int i = 0; i < 4; ++i) {
        const Place p = place_in_c(lane, i);
        c[p.row * 8 + p.col] = sums[i];
    }
}

template <Mistake kMistake>
bool mma_is_product(simt::Order order, Small& a, Small& b) {
    std::vector<float> c(16 * 8, NAN), expected = product(a, b);
    run(order, 32, 0, mma_kernel<kMistake>, c.data(), a.data(), b.data());
    for (int i = 0; i < 16 * 8; ++i)
        expected[static_cast<size_t>(i)] += static_cast<float>(1 + i % 2 + i / 64 * 2);
    return c == expected;
}

TEST(Mma, IsTheProductAddedToC) {
    for (const simt::Order order : kOrders) {
        Small a = random_integers(16, 16, 1), b = random_integers(16, 8, 2);
        EXPECT_TRUE(mma_is_product<Mistake::none>(order, a, b));
        Small unit_a = identity(16, 16), unit_b = identity(16, 8);
        EXPECT_TRUE(mma_is_product<Mistake::none>(order, unit_a, b));
        EXPECT_TRUE(mma_is_product<Mistake::none>(order, a, unit_b));
    }
}

TEST(Mma, AWrongFragmentIndexIsCaught) {
    Small a = random_integers(16, 16, 1), b = random_integers(16, 8, 2);
    for (const simt::Order order : kOrders) {
        EXPECT_FALSE(mma_is_product<Mistake::a_registers>(order, a, b));
        EXPECT_FALSE(mma_is_product<Mistake::b_registers>(order, a, b));
        EXPECT_FALSE(mma_is_product<Mistake::c_registers>(order, a, b));
    }
}

TEST(Mma, PacksTheFirstValueLow) {
    const uint32_t pair = ptx::pack_bf16(1.0f, -2.0f);
    EXPECT_EQ(pair & 0xffffu, Bf16(1.0f).bits);
    EXPECT_EQ(pair >> 16, Bf16(-2.0f).bits);
    EXPECT_EQ(ptx::pack_bf16(1.00390625f, 0.0f), Bf16(1.0f).bits) << "a tie goes to even";
}

// ---- ldmatrix: lane 8m + i passes the address of row i of matrix m. Register m of a lane gets elements
// 2·(lane % 4) and the next one of row lane / 4; transposed, rows and columns are exchanged.
template <bool kTransposed>
void ldmatrix_kernel(uint32_t* out, const Bf16* in) {
    Bf16* tile = shared_memory<Bf16>(0);
    const int lane = static_cast<int>(threadIdx.x);
    for (int i = lane; i < 32 * 8; i += 32) tile[i] = in[i];
    __syncwarp();
    // Matrices in reverse order, so that an address from a wrong lane is detected.
    const Bf16* row = tile + (3 - lane / 8) * 64 + lane % 8 * 8;
    uint32_t r[4];
    kTransposed ? ptx::ldmatrix_x4_trans(r, row) : ptx::ldmatrix_x4(r, row);
    for (int m = 0; m < 4; ++m) out[lane * 4 + m] = r[m];
}

template <bool kTransposed>
void check_ldmatrix(simt::Order order) {
    Small in(32, 8);
    for (int i = 0; i < 32 * 8; ++i) in.data()[i].bits = static_cast<uint16_t>(i);
    std::vector<uint32_t> out(32 * 4);
    run(order, 32, 32 * 8 * 2, ldmatrix_kernel<kTransposed>, out.data(), in.data());
    for (int lane = 0; lane < 32; ++lane) {
        for (int m = 0; m < 4; ++m) {
            for (int half = 0; half < 2; ++half) {
                const int outer = lane / 4, inner = lane % 4 * 2 + half;
                const int element = kTransposed ? inner * 8 + outer : outer * 8 + inner;
                EXPECT_EQ(out[static_cast<size_t>(lane * 4 + m)] >> (16 * half) & 0xffffu,
                          static_cast<unsigned>((3 - m) * 64 + element))
                    << "transposed=" << kTransposed << " lane " << lane << " register " << m;
            }
        }
    }
}

TEST(Ldmatrix, FragmentLayouts) {
    for (const simt::Order order : kOrders) {
        check_ldmatrix<false>(order);
        check_ldmatrix<true>(order);
    }
}

void misaligned_ldmatrix_kernel(uint32_t* out) {
    uint32_t r[4];
    ptx::ldmatrix_x4(r, static_cast<Bf16*>(shared_memory<Bf16>(0)) + threadIdx.x * 8 + 4);
    out[threadIdx.x] = r[0];
}

TEST(Ldmatrix, AMisalignedAddressIsCaught) {
    std::vector<uint32_t> out(32);
    EXPECT_THROW(run(simt::Order::forward, 32, 1024, misaligned_ldmatrix_kernel, out.data()), Error);
}

// ---- cp.async
enum class Reader { before_wait, after_wait, other_after_barrier, other_without_barrier };

template <Reader kReader>
void copy_kernel(float* out, const Bf16* in) {
    Bf16* tile = shared_memory<Bf16>(0);
    const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
    ptx::copy_async_16(tile + thread * 8, in + thread * 8, 16);
    ptx::copy_async_commit();
    if (kReader != Reader::before_wait) ptx::copy_async_wait<0>();
    if (kReader == Reader::other_after_barrier) __syncthreads();
    const bool other = kReader == Reader::other_after_barrier || kReader == Reader::other_without_barrier;
    out[thread] = to_float(tile[(other ? threads - 1 - thread : thread) * 8]);
    if (kReader == Reader::before_wait) ptx::copy_async_wait<0>();
}

template <Reader kReader>
std::vector<float> copied(simt::Order order) {
    constexpr int kThreads = 64;
    Small in(kThreads, 8);
    for (int i = 0; i < kThreads * 8; ++i) in.data()[i] = Bf16(static_cast<float>(i / 8));
    std::vector<float> out(kThreads);
    run(order, kThreads, kThreads * 16, copy_kernel<kReader>, out.data(), in.data());
    return out;
}

TEST(CopyAsync, IsSeenOnlyAfterTheWait) {
    for (const simt::Order order : kOrders) {
        for (const float value : copied<Reader::before_wait>(order)) EXPECT_TRUE(std::isnan(value));
        const auto own = copied<Reader::after_wait>(order),
                   others = copied<Reader::other_after_barrier>(order);
        for (size_t i = 0; i < 64; ++i) {
            EXPECT_EQ(own[i], static_cast<float>(i));
            EXPECT_EQ(others[i], static_cast<float>(63 - i));
        }
    }
}

TEST(CopyAsync, AMissingBarrierIsCaught) {
    for (const simt::Order order : kOrders) {
        const auto values = copied<Reader::other_without_barrier>(order);
        EXPECT_TRUE(std::any_of(values.begin(), values.end(), [](float value) { return std::isnan(value); }));
    }
}

void groups_kernel(float* out, const Bf16* in) {
    Bf16* tile = shared_memory<Bf16>(0);
    for (int group = 0; group < 3; ++group) {
        ptx::copy_async_16(tile + group * 8, in + group * 8, group == 2 ? 6 : 16);
        ptx::copy_async_commit();
    }
    ptx::copy_async_wait<1>();
    for (int group = 0; group < 3; ++group) out[group] = to_float(tile[group * 8]);
    ptx::copy_async_wait<0>();
    for (int i = 0; i < 8; ++i) out[3 + i] = to_float(tile[16 + i]);
}

TEST(CopyAsync, GroupsEndInOrderAndBytesThatAreNotValidBecomeZero) {
    Small in = random_integers(3, 8, 3);
    std::vector<float> out(11);
    run(simt::Order::forward, 1, 3 * 16, groups_kernel, out.data(), in.data());
    EXPECT_EQ(out[0], float(in(0, 0)));
    EXPECT_EQ(out[1], float(in(1, 0)));
    EXPECT_TRUE(std::isnan(out[2])) << "one group may still be under way";
    for (int i = 0; i < 8; ++i) EXPECT_EQ(out[static_cast<size_t>(3 + i)], i < 3 ? float(in(2, i)) : 0.0f);
}

// ---- tiles: 32 × 32 matmuls of tiles stored in both layouts
template <int kWidth, bool kTransposeA, bool kTransposeB>
void tile_kernel(float* c, const Bf16* a, const Bf16* b) {  // a and b: [32][kWidth] or [kWidth][64]
    constexpr int kThreads = 64, kOther = 64;
    Bf16* tile_a = shared_memory<Bf16>(0);
    Bf16* tile_b = shared_memory<Bf16>(kWidth * kOther * 2);
    if constexpr (kTransposeA) {
        tile::copy_rows_async<kWidth, kOther, kThreads>(tile_a, a, kOther, 0, kWidth);
    } else {
        tile::copy_rows_async<kOther, kWidth, kThreads>(tile_a, a, kWidth, 0, 32);
    }
    if constexpr (kTransposeB) {
        tile::copy_rows_async<kOther, kWidth, kThreads>(tile_b, b, kWidth, 0, 32);
    } else {
        tile::copy_rows_async<kWidth, kOther, kThreads>(tile_b, b, kOther, 0, kWidth);
    }
    ptx::copy_async_commit();
    ptx::copy_async_wait<0>();
    __syncthreads();
    const int row = static_cast<int>(threadIdx.x) / 32 * 16, g = ptx::lane_id() / 4, t = ptx::lane_id() % 4;
    float sums[4][4] = {};
    for (int k = 0; k < kWidth; k += 16) {
        uint32_t fragment_a[4], fragment_b[4];
        if constexpr (kTransposeA) {
            tile::load_a_transposed<kOther>(fragment_a, tile_a, row, k);
        } else {
            tile::load_a<kWidth>(fragment_a, tile_a, row, k);
        }
        for (int n = 0; n < 4; n += 2) {
            if constexpr (kTransposeB) {
                tile::load_b<kWidth>(fragment_b, tile_b, 8 * n, k);
            } else {
                tile::load_b_transposed<kOther>(fragment_b, tile_b, 8 * n, k);
            }
            ptx::mma_bf16(sums[n], fragment_a, fragment_b[0], fragment_b[1]);
            ptx::mma_bf16(sums[n + 1], fragment_a, fragment_b[2], fragment_b[3]);
        }
    }
    for (int n = 0; n < 4; ++n) {
        for (int i = 0; i < 4; ++i) c[(row + g + i / 2 * 8) * 32 + 8 * n + 2 * t + i % 2] = sums[n][i];
    }
}

template <int kWidth, bool kTransposeA, bool kTransposeB>
void check_tiles(simt::Order order) {
    Small a = random_integers(32, kWidth, 4), b = random_integers(kWidth, 32, 5);
    Small stored_a = kTransposeA ? Small(kWidth, 64) : a,
          stored_b = kTransposeB ? transposed(b) : Small(kWidth, 64);
    for (int k = 0; k < kWidth; ++k) {
        for (int i = 0; i < 32; ++i) {
            if (kTransposeA) stored_a(k, i) = a(i, k);
            if (!kTransposeB) stored_b(k, i) = b(k, i);
        }
    }
    std::vector<float> c(32 * 32, NAN);
    run(order, 64, 2 * kWidth * 64 * 2, tile_kernel<kWidth, kTransposeA, kTransposeB>, c.data(),
        stored_a.data(), stored_b.data());
    EXPECT_EQ(c, product(a, b)) << "width " << kWidth << " transposed " << kTransposeA << kTransposeB;
}

TEST(Tile, FragmentsOfStoredTiles) {
    for (const simt::Order order : kOrders) {
        check_tiles<64, false, false>(order);
        check_tiles<64, false, true>(order);
        check_tiles<64, true, false>(order);
        check_tiles<64, true, true>(order);
        check_tiles<128, false, true>(order);
        check_tiles<128, true, false>(order);
    }
}

// Eight rows of one chunk column, one ldmatrix address each, are in different banks.
TEST(Tile, ChunksOfAColumnAreInDifferentBanks) {
    for (int row = 0; row < 64; row += 8) {
        for (int chunk = 0; chunk < 16; ++chunk) {
            unsigned banks = 0;
            for (int i = 0; i < 8; ++i) banks |= 1u << tile::chunk_offset<128>(row + i, chunk) / 8 % 8;
            EXPECT_EQ(banks, 0xffu);
        }
    }
}

// The accumulator of one matmul as the first operand of the next.
void chained_kernel(float* c, const Bf16* a,
                    const Bf16* b) {  // a: [16][64] of the first matmul, times bᵀ, times b
    Bf16* tile_a = shared_memory<Bf16>(0);
    Bf16* tile_b = shared_memory<Bf16>(16 * 64 * 2);
    tile::copy_rows_async<16, 64, 32>(tile_a, a, 64, 0, 16);
    tile::copy_rows_async<32, 64, 32>(tile_b, b, 64, 0, 30);
    ptx::copy_async_commit();
    ptx::copy_async_wait<0>();
    __syncwarp();
    float first[1][4][4] = {}, second[1][8][4] = {};
    tile::multiply_rows<64>(first, tile_a, 0, tile_b);
    tile::multiply_accumulator<64>(second, first, tile_b);
    const int g = ptx::lane_id() / 4, t = ptx::lane_id() % 4;
    for (int n = 0; n < 8; ++n) {
        for (int i = 0; i < 4; ++i) c[(g + i / 2 * 8) * 64 + 8 * n + 2 * t + i % 2] = second[0][n][i];
    }
}

TEST(Tile, AnAccumulatorFeedsTheNextProduct) {
    for (const simt::Order order : kOrders) {
        // Few small entries, so that the first matmul is exact in bf16 too.
        Small a(16, 64), b(32, 64);
        std::mt19937 generator(6);
        for (int i = 0; i < 16 * 64; ++i)
            a.data()[i] = Bf16(static_cast<float>(static_cast<int>(generator() % 3) - 1));
        for (int i = 0; i < 32 * 64; ++i)
            b.data()[i] = Bf16(static_cast<float>(static_cast<int>(generator() % 3) - 1));
        std::vector<float> c(16 * 64, NAN);
        run(order, 32, (16 + 32) * 64 * 2, chained_kernel, c.data(), a.data(), b.data());
        for (int i = 30 * 64; i < 32 * 64; ++i) b.data()[i] = Bf16(0.0f);  // rows from 30 on do not exist
        Small b_transposed = transposed(b), between(16, 32);
        const std::vector<float> first = product(a, b_transposed);
        for (int i = 0; i < 16 * 32; ++i) between.data()[i] = Bf16(first[static_cast<size_t>(i)]);
        EXPECT_EQ(c, product(between, b));
    }
}

}  // namespace
}  // namespace speedrun::testing
