// Tiles that attention kernels visit, counted as kernels/cuda/ops/attention_mma.cuh and attention_wgmma.cuh walk them.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <span>

namespace speedrun {

// Sizes of an attention call.
struct AttentionShape {
    int64_t sequences = 0, queries = 0, keys = 0;        // queries, keys: per sequence
    int64_t num_heads = 0, head_dim = 0, value_dim = 0;  // head_dim: of q and k; value_dim: of v and o
    int64_t window = 0;                                  // 0: no limit
    bool documents = false;                              // keys of earlier documents are hidden

    bool present() const { return sequences > 0; }
    auto operator<=>(const AttentionShape&) const = default;
};

// Widths of a head of q and k, and of v and o.
struct HeadWidths {
    int64_t head_dim = 0, value_dim = 0;
    bool operator==(const HeadWidths&) const = default;
};
constexpr HeadWidths widths_of(const AttentionShape& shape) {
    return {shape.head_dim, shape.value_dim};
}

// True if attention by mma.sync has kernels for these widths. Portable kernels run others.
constexpr bool has_mma_kernels(HeadWidths widths) {
    const auto has = [](int64_t dim) { return dim == 64 || dim == 128; };
    return has(widths.head_dim) && has(widths.value_dim);
}

// Widths that attention by wgmma has kernels for.
constexpr std::array<HeadWidths, 5> kWgmmaHeadWidths = {
    {{64, 64}, {64, 128}, {96, 96}, {96, 128}, {128, 128}}};
constexpr bool has_wgmma_kernels(HeadWidths widths) {
    return std::find(kWgmmaHeadWidths.begin(), kWgmmaHeadWidths.end(), widths) != kWgmmaHeadWidths.end();
}
// True if attention by wgmma serves this shape: queries of a context rank are at places, which it does not support.
constexpr bool wgmma_serves(const AttentionShape& shape) {
    return shape.queries == shape.keys && has_wgmma_kernels(widths_of(shape));
}

constexpr int64_t kAttentionOwned = 128;  // queries or keys that a block owns

// Rows of the other side per tile.
struct AttentionTiling {
    int64_t keys = 0;     // if the block owns queries
    int64_t queries = 0;  // if the block owns keys; 0: a forward pass has no such blocks
};

struct AttentionWork {
    double tiles = 0, blocks = 0;  // sums over sequences and heads
    double visible = 1;            // share of the pairs left by causality and window that documents leave
};

// first_keys: for each token of some rows of `keys` tokens, the first visible key, counted from the row's start, ascending
// in a row. The rows stand for all sequences. Ignored without shape.documents. Fewer queries than keys: the first and the
// last chunk of 2C, as a context rank has them.
AttentionWork attention_work(const AttentionShape& shape, const AttentionTiling& tiling,
                             std::span<const int32_t> first_keys);

}  // namespace speedrun
