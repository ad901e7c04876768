// Choice of the next token from its logits.
#pragma once

#include <cstdint>
#include <span>

namespace speedrun {

struct DrawOptions {
    double temperature = 1;  // divisor of the logits; 0: the most likely token
    int64_t top_k = 0;       // number of most likely tokens that can be drawn; 0: all
    double top_p =
        1;  // then the fewest most likely tokens with this share of the probability (Holtzman et al. 2020)
};

// Returns a token with its probability under softmax(logits / temperature), restricted by top_k and then by top_p. Among equal
// logits the first tokens are kept. `random` is uniform over all 32-bit numbers. Logits are not NaN; one is finite.
int32_t draw_token(std::span<const float> logits, const DrawOptions& options, uint32_t random);

}  // namespace speedrun
