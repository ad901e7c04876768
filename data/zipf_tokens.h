// Made-up tokens for timing: their frequencies matter to the embedding's gradient, their order to nothing.
#pragma once

#include <cstdint>
#include <vector>

namespace speedrun {

// Token ids with the frequencies of text: id i about in proportion to 1/(i + 3). Equal at every call.
struct ZipfTokens {
    int64_t count = 0, vocab_size = 0;
};
std::vector<int32_t> zipf_tokens(const ZipfTokens& wanted);

}  // namespace speedrun
