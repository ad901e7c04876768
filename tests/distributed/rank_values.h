// Values that every rank can compute for any rank, and the reference for sums.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/device/philox.h"
#include "kernels/device/tensor.h"

namespace speedrun::testing {

// Element e of `rank`: a sign, a mantissa and an exponent within 2^±10, so that the order of summation changes the
// bits.
inline float rank_value(int rank, int64_t e, uint32_t salt) {
    const auto random =
        philox4x32({static_cast<uint32_t>(e), static_cast<uint32_t>(rank), salt, 0}, philox_key(7));
    const auto mantissa = static_cast<float>(static_cast<int32_t>(random[0])) * 0x1p-31f;
    return std::ldexp(mantissa, static_cast<int>(random[1] % 21) - 10);
}

template <class T>
std::vector<T> rank_values(int rank, int64_t count, uint32_t salt, int64_t begin = 0) {
    std::vector<T> values(static_cast<size_t>(count));
    for (int64_t e = 0; e < count; ++e)
        values[static_cast<size_t>(e)] = static_cast<T>(rank_value(rank, begin + e, salt));
    return values;
}

// The contract of communicator.h: f32 sums from left to right over the members, rounded once. Each sum is also
// compared with float64: n-1 additions, each with an error of at most half an ulp of the sum of magnitudes, then one
// rounding to T.
template <class T>
std::vector<T> expected_sum(const std::vector<int>& ranks, int64_t count, uint32_t salt, int64_t begin = 0) {
    const double final_rounding = sizeof(T) == 2 ? 0x1p-8 : 0;
    std::vector<T> result(static_cast<size_t>(count));
    for (int64_t e = 0; e < count; ++e) {
        float sum = 0;
        double exact = 0, size = 0;
        for (size_t i = 0; i < ranks.size(); ++i) {
            const auto value = static_cast<float>(static_cast<T>(rank_value(ranks[i], begin + e, salt)));
            sum = i == 0 ? value : sum + value;
            exact += value;
            size += std::fabs(value);
        }
        result[static_cast<size_t>(e)] = static_cast<T>(sum);
        const double tolerance =
            size * static_cast<double>(ranks.size()) * 0x1p-24 + std::fabs(exact) * final_rounding;
        EXPECT_NEAR(static_cast<float>(result[static_cast<size_t>(e)]), exact, tolerance * 1.01);
    }
    return result;
}

template <class T>
Tensor view(std::vector<T>& values, int64_t begin = 0, int64_t count = -1) {
    if (count < 0) count = static_cast<int64_t>(values.size()) - begin;
    return Tensor(values.data() + begin, dtype_of<T>(), {count});
}

// Index of the first element with different bits; -1: none.
template <class T>
int64_t first_difference(const std::vector<T>& a, const std::vector<T>& b) {
    if (a.size() != b.size()) return 0;
    for (size_t i = 0; i < a.size(); ++i) {
        if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0) return static_cast<int64_t>(i);
    }
    return -1;
}

}  // namespace speedrun::testing
