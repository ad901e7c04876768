// What the dimensions of parameters and values count. Mesh axes share a model by them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace speedrun {

enum class Dimension : uint8_t {
    tokens,      // of a microbatch, or of a rank's part of it
    own_tokens,  // a share of these, where ranks of the tensor axis have one each (sequence parallelism)
    keys,        // tokens, of this rank and of others, that its attention can see
    positions,   // in a row
    width,       // of the model
    heads,       // of queries and keys
    head_width,  // heads × head size, once or, of packed queries, keys and values, three times
    all_heads,   // heads of attention that ranks of the tensor axis do not share (WholeAttention), …
    all_width,   // … and their width, as head_width
    half_head,   // frequencies of rotary positions
    hidden,      // of the MLP
    vocabulary,  // rows of a table that tokens are looked up in
    rows,        // of a table that is shared by its columns
    columns,     // of such a table, whose rows are added to the stream
    numbers,     // that belong to nothing else, such as the coefficients of a mix
};

constexpr const char* name_of(Dimension dimension) {
    constexpr const char* kNames[] = {"tokens", "own tokens", "keys",      "positions", "width",
                                      "heads",  "head width", "all heads", "all width", "half head",
                                      "hidden", "vocabulary", "rows",      "columns",   "numbers"};
    return kNames[static_cast<size_t>(dimension)];
}

struct Extent {
    Dimension dimension;
    int64_t size;
    // Where ranks of the tensor axis share a parameter: `size` is one of so many equal parts of `whole`, and counts so many
    // stacks (q, k, v: 3), each of which is cut by itself. With one stack the last parts may end in padding.
    int parts = 1;
    int64_t stacked = 1, whole = 0;
};

class DimensionSet {
  public:
    constexpr DimensionSet() = default;
    constexpr DimensionSet(std::initializer_list<Dimension> dimensions) {
        for (const Dimension dimension : dimensions) add(dimension);
    }
    constexpr void add(Dimension dimension) { bits_ |= bit(dimension); }
    constexpr void add(const DimensionSet& others) { bits_ |= others.bits_; }
    constexpr void remove(Dimension dimension) { bits_ &= ~bit(dimension); }
    constexpr bool contains(Dimension dimension) const { return (bits_ & bit(dimension)) != 0; }
    constexpr bool meets(const DimensionSet& other) const { return (bits_ & other.bits_) != 0; }
    constexpr bool operator==(const DimensionSet&) const = default;

  private:
    static constexpr uint32_t bit(Dimension dimension) { return 1u << static_cast<uint32_t>(dimension); }
    uint32_t bits_ = 0;
};

}  // namespace speedrun
