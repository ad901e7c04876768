#include "data/zipf_tokens.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace speedrun {

std::vector<int32_t> zipf_tokens(const ZipfTokens& requested) {
    std::mt19937_64 generator(2);
    const double range = std::log(static_cast<double>(requested.vocab_size + 3) / 3.0);
    std::vector<int32_t> tokens(static_cast<size_t>(requested.count));
    for (int32_t& token : tokens) {
        const double uniform = static_cast<double>(generator() >> 11) * 0x1p-53;
        const auto id = static_cast<int64_t>(3.0 * std::exp(uniform * range)) - 3;
        token = static_cast<int32_t>(std::clamp<int64_t>(id, 0, requested.vocab_size - 1));
    }
    return tokens;
}

}  // namespace speedrun
