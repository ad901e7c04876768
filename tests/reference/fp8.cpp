#include <cmath>
#include <limits>
#include <vector>

#include "tests/reference/reference.h"

namespace speedrun::reference {

namespace {

// The finite non-negative values in order: index i has the bits i.
std::vector<double> numbers_of(DType type) {
    const int mantissa = type == DType::e4m3 ? 3 : 2, bias = type == DType::e4m3 ? 7 : 15;
    const double largest = type == DType::e4m3 ? 448 : 57344;
    std::vector<double> numbers;
    for (int exponent = 0; exponent < 1 << (7 - mantissa); ++exponent) {
        for (int m = 0; m < 1 << mantissa; ++m) {
            const double fraction = static_cast<double>(m) / (1 << mantissa);
            const double x = exponent == 0 ? fraction * std::ldexp(1.0, 1 - bias)
                                           : (1 + fraction) * std::ldexp(1.0, exponent - bias);
            if (x <= largest) numbers.push_back(x);
        }
    }
    return numbers;
}

}  // namespace

double fp8(double x, DType type) {
    static const std::vector<double> kE4m3 = numbers_of(DType::e4m3), kE5m2 = numbers_of(DType::e5m2);
    const std::vector<double>& numbers = type == DType::e4m3 ? kE4m3 : kE5m2;
    if (std::isnan(x)) return std::numeric_limits<double>::quiet_NaN();
    size_t best = 0;
    for (size_t i = 1; i < numbers.size(); ++i) {
        const double before = std::abs(numbers[best] - std::abs(x)), now = std::abs(numbers[i] - std::abs(x));
        if (now < before || (now == before && i % 2 == 0)) best = i;
    }
    if (std::abs(x) > numbers.back()) best = numbers.size() - 1;  // for very large x all distances are equal
    return std::copysign(numbers[best], x);
}

}  // namespace speedrun::reference
