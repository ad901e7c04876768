// What the dimensions of parameters and values count. Mesh axes share a model by them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace speedrun {

enum class Dimension : uint8_t {
    tokens,      // of a microbatch
    positions,   // in a row
    width,       // of the model
    heads,       // of queries and keys
    head_width,  // heads × head size, once or, of packed queries, keys and values, three times
    half_head,   // frequencies of rotary positions
    hidden,      // of the MLP
    vocabulary,  // rows of a table that tokens or n-grams are looked up in
    numbers,     // that belong to nothing else, such as the coefficients of a mix
};

constexpr const char* name_of(Dimension dimension) {
    constexpr const char* kNames[] = {"tokens",    "positions", "width",      "heads",  "head width",
                                      "half head", "hidden",    "vocabulary", "numbers"};
    return kNames[static_cast<size_t>(dimension)];
}

struct Extent {
    Dimension dimension;
    int64_t size;
};

// Does the tensor axis cut it? Heads, the MLP's hidden units and rows of tables are computed apart.
constexpr bool cut_by_tensor(Dimension dimension) {
    return dimension == Dimension::heads || dimension == Dimension::head_width ||
           dimension == Dimension::hidden || dimension == Dimension::vocabulary;
}

}  // namespace speedrun
