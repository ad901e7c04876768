// Dimensions of parameters and values. Mesh axes split a model by dimension.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace speedrun {

enum class Dimension : uint8_t {
    tokens,      // tokens of a microbatch, or a rank's part
    own_tokens,  // a rank's share of tokens, with sequence parallelism
    keys,        // tokens of this and other ranks that its attention can see
    positions,   // positions in a row
    width,       // width of the model
    heads,       // heads of queries and keys
    head_width,  // heads × head size, summed for packed q, k, v
    all_heads,   // heads of attention that the tensor axis does not split (WholeAttention), …
    all_width,   // … and their width, as head_width
    half_head,   // frequencies of rotary positions
    hidden,      // hidden units of the MLP
    vocabulary,  // rows of a table indexed by tokens
    rows,        // rows of a table that is split by columns
    columns,     // columns of such a table, added to the stream
    numbers,     // other values, such as coefficients of a mix
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
    // A parameter split over the tensor axis: `size` is one of `parts` equal parts of `whole`.
    int parts = 1;
    // Sizes of the stacks in this part (rows of q, of k, of v). Each stack is split separately. Empty: one stack; its last
    // parts may end in padding.
    std::vector<int64_t> stacks = {};
    int64_t whole = 0;
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
    constexpr bool intersects(const DimensionSet& other) const { return (bits_ & other.bits_) != 0; }
    constexpr bool operator==(const DimensionSet&) const = default;

  private:
    static constexpr uint32_t bit(Dimension dimension) { return 1u << static_cast<uint32_t>(dimension); }
    uint32_t bits_ = 0;
};

}  // namespace speedrun
