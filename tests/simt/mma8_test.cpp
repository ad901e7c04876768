// Emulated FP8 matmuls (kernels/cuda/blocks/ptx.h) against the fragment layouts of the PTX ISA.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/cuda/blocks/ptx.h"
#include "tests/simt/fragments.h"

namespace speedrun::testing {
namespace {

// ---- mma.sync.m16n8k32 of FP8 ("Matrix Fragments for mma.m16n8k32"): a0 … a15, b0 … b7, four per register.
Place place_in_a8(int lane, int i) {
    const bool upper_row = (4 <= i && i < 8) || 12 <= i;
    return {(lane >> 2) + (upper_row ? 8 : 0), (lane % 4) * 4 + (i & 3) + (i >= 8 ? 16 : 0)};
}
Place place_in_b8(int lane, int i) {
    return {(lane % 4) * 4 + (i & 3) + (i >= 4 ? 16 : 0), lane >> 2};
}

template <class A, class B, bool kSwapped>
void mma8_kernel(float* c, const float* a, const float* b) {
    const int lane = static_cast<int>(threadIdx.x);
    uint32_t fragment_a[4], fragment_b[2];
    const auto four = [](auto type, auto&& value_of, int r) {
        return ptx::pack_fp8<decltype(type)>(value_of(4 * r), value_of(4 * r + 1), value_of(4 * r + 2),
                                             value_of(4 * r + 3));
    };
    const auto in_a = [&](int i) { return a[place_in_a8(lane, i).row * 32 + place_in_a8(lane, i).col]; };
    const auto in_b = [&](int i) { return b[place_in_b8(lane, i).row * 8 + place_in_b8(lane, i).col]; };
    for (int r = 0; r < 4; ++r) fragment_a[r] = four(A{}, in_a, r);
    for (int r = 0; r < 2; ++r) fragment_b[r] = four(B{}, in_b, r);
    if (kSwapped) std::swap(fragment_a[0], fragment_a[2]);
    float sums[4] = {1.0f, 2.0f, 3.0f, 4.0f};
    ptx::mma_fp8<A, B>(sums, fragment_a, fragment_b[0], fragment_b[1]);
    for (int i = 0; i < 4; ++i) c[place_in_c(lane, i).row * 8 + place_in_c(lane, i).col] = sums[i];
}

template <class A, class B, bool kSwapped>
bool mma8_is_product(simt::Order order) {
    Small a = random_integers(16, 32, 1), b = random_integers(32, 8, 2);
    std::vector<float> c(16 * 8, NAN), expected = product(a, b), a32(16 * 32), b32(32 * 8);
    std::copy_n(a.data(), a32.size(), a32.begin());
    std::copy_n(b.data(), b32.size(), b32.begin());
    run(order, 32, 0, mma8_kernel<A, B, kSwapped>, c.data(), static_cast<const float*>(a32.data()),
        static_cast<const float*>(b32.data()));
    for (int i = 0; i < 16 * 8; ++i)
        expected[static_cast<size_t>(i)] += static_cast<float>(1 + i % 2 + i / 64 * 2);
    return c == expected;
}

TEST(Mma, Fp8AccumulatesProduct) {
    for (const simt::Order order : kOrders) {
        EXPECT_TRUE((mma8_is_product<E4m3, E4m3, false>(order)));
        EXPECT_FALSE((mma8_is_product<E4m3, E4m3, true>(order)));
    }
}

}  // namespace
}  // namespace speedrun::testing
