// Made-up tokens for timing: their frequencies matter to the embedding's gradient, their order to nothing.
#pragma once

#include <cstdint>
#include <vector>

namespace speedrun {

// Token ids with the frequencies of text: id i about in proportion to 1/(i + 3). The same at every call.
std::vector<int32_t> zipf_tokens(int64_t count, int64_t vocab_size);

}  // namespace speedrun
