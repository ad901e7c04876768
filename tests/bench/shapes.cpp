#include "tests/bench/shapes.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace speedrun::bench {

Shapes full_shapes() {
    // With window and documents a query sees about 450 keys: the average of the recipe's layers over a run.
    return {.recipe = {"recipe", 32768, 32768, 768, 6, 128, 3072, 50257, 50304, 896, 600},
            .gpt2 = {"gpt2", 32768, 1024, 768, 12, 64, 3072, 50257, 50304, 0, 0},
            .attention_tokens = 16384,
            .attention_width = 2048,
            .attention_sequences = {512, 1024, 2048, 8192}};
}

Shapes small_shapes() {
    return {.recipe = {"recipe", 128, 128, 128, 2, 64, 192, 301, 320, 40, 60},
            .gpt2 = {"gpt2", 128, 64, 128, 2, 64, 192, 301, 320, 0, 0},
            .attention_tokens = 128,
            .attention_width = 128,
            .attention_sequences = {64, 128}};
}

Documents documents_of(const ModelShape& shape) {
    constexpr int64_t kShortest = 16, kLongest = 2048;
    std::mt19937_64 generator(1);
    Documents documents;
    int64_t start = 0, length = 0;
    for (int64_t t = 0; t < shape.tokens; ++t) {
        if (t == start + length || t % shape.sequence_length == 0) {
            start = t;
            length = shape.sequence_length;
            if (shape.mean_document > 0) {
                const double uniform = (static_cast<double>(generator() >> 11) + 0.5) * 0x1p-53;
                length = static_cast<int64_t>(-std::log(uniform) * static_cast<double>(shape.mean_document));
                length = std::clamp(length, kShortest, kLongest);
            }
        }
        documents.first_key.push_back(static_cast<int32_t>(start));
        documents.position.push_back(static_cast<int32_t>(t - start));
        const int64_t keys = t - start + 1;
        documents.visible_keys += static_cast<double>(shape.window > 0 ? std::min(keys, shape.window) : keys);
    }
    return documents;
}

}  // namespace speedrun::bench
