// Synthetic tokens for timing: their frequencies affect the embedding's gradient, their order nothing.
#pragma once

#include <cstdint>
#include <vector>

namespace speedrun {

// Token ids with frequencies as in text: id i has a probability of about 1/(i + 3). Deterministic.
struct ZipfTokens {
    int64_t count = 0, vocab_size = 0;
};
std::vector<int32_t> zipf_tokens(const ZipfTokens& requested);

}  // namespace speedrun
