// Tokens in order of their ids: a stable radix sort of integers, so exact.
//
// Three launches per digit: each tile of keys counts its digits, one block turns the counts into offsets,
// each tile writes its pairs. Roofline bound: 8·T bytes per pass read and written; two passes for limits
// below 2^16.
// Legend: T tokens · key = id, or the limit if it is outside [0, limit) (the limit itself marks a row of
// another rank) · digit = 8 bits of the key · a pair is a key and its token · tile = the keys of a block.
#include <algorithm>
#include <bit>

#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace speedrun {

namespace sort_ids_cu {
namespace {

constexpr int kDigits = 1 << sizes::kSortDigitBits;
static_assert(kDigits == sizes::kSortThreads, "a thread per value of a digit");

// Null tokens: token i is i, and keys are unchecked ids.
struct Pairs {
    const int32_t *keys, *tokens;
    int32_t limit;

    __device__ __forceinline__ int32_t key(int64_t i) const {
        const int32_t id = keys[i];
        return tokens || (id >= 0 && id < limit) ? id : limit;
    }
    __device__ __forceinline__ int32_t token(int64_t i) const {
        return tokens ? tokens[i] : static_cast<int32_t>(i);
    }
};

__device__ __forceinline__ int digit_of(int32_t key, int shift) {
    return key < 0 ? -1 : key >> shift & (kDigits - 1);
}

// Calls body(i, digit) for the tile's keys in shared memory, in order. Every thread reads the same word: a
// broadcast.
template <class Keys, class Body>
__device__ __forceinline__ void for_digits(const Keys& keys, int shift, Body&& body) {
#pragma unroll 4
    for (int i = 0; i < sizes::kSortTile / 4; ++i) {
        const int4 k = load_word(&keys[i]);
        body(4 * i, digit_of(k.x, shift));
        body(4 * i + 1, digit_of(k.y, shift));
        body(4 * i + 2, digit_of(k.z, shift));
        body(4 * i + 3, digit_of(k.w, shift));
    }
}

__device__ __forceinline__ int tile_size(int64_t begin, int64_t count) {
    return static_cast<int>(min(count - begin, int64_t{sizes::kSortTile}));
}

// Loads the keys of this block's tile into shared memory, −1 past the end.
__device__ inline void load_keys(const Pairs& from, int64_t begin, int size) {
    const auto keys = shared_memory<int>(0, sizes::kSortTile);
    for (int i = static_cast<int>(threadIdx.x); i < sizes::kSortTile; i += sizes::kSortThreads)
        keys[i] = i < size ? from.key(begin + i) : -1;
    __syncthreads();
}

// counts[tile][digit]: thread d counts digit d in its block's tile.
__global__ void __launch_bounds__(sizes::kSortThreads)
    sort_count_kernel(int32_t* counts, Pairs from, int64_t count, int shift) {
    wait_for_prior_kernels();
    const int64_t begin = int64_t{blockIdx.x} * sizes::kSortTile;
    load_keys(from, begin, tile_size(begin, count));
    const int own = static_cast<int>(threadIdx.x);
    int32_t number = 0;
    for_digits(shared_memory<int4>(0, sizes::kSortTile / 4), shift,
               [&](int, int digit) { number += digit == own; });
    counts[int64_t{blockIdx.x} * kDigits + own] = number;
}

// places[tile][digit]: number of pairs that precede, in order of digit, then tile. One block, one thread per
// digit.
__global__ void __launch_bounds__(sizes::kSortThreads)
    sort_scan_kernel(int32_t* places, const int32_t* counts, int64_t num_tiles) {
    wait_for_prior_kernels();
    const auto sums = shared_memory<int>(0, kDigits);
    const int own = static_cast<int>(threadIdx.x);
    int32_t total = 0;
#pragma unroll 8
    for (int64_t tile = 0; tile < num_tiles; ++tile) total += counts[tile * kDigits + own];
    sums[own] = total;
    __syncthreads();
    int32_t before = 0;
#pragma unroll 8
    for (int d = 0; d < kDigits; ++d) before += d < own ? sums[d] : 0;
#pragma unroll 8
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
        places[tile * kDigits + own] = before;
        before += counts[tile * kDigits + own];
    }
}

// Thread d scans the tile and collects the indices of its pairs with digit d, in order: the sort is stable.
// Pairs are then written in order of digit, so that writes of repeated digits are adjacent.
__global__ void __launch_bounds__(sizes::kSortThreads)
    sort_place_kernel(int32_t* keys, int32_t* tokens, const int32_t* places, const int32_t* counts,
                      Pairs from, int64_t count, int shift) {
    wait_for_prior_kernels();
    const int own = static_cast<int>(threadIdx.x);
    const int64_t begin = int64_t{blockIdx.x} * sizes::kSortTile, of_tile = int64_t{blockIdx.x} * kDigits;
    const int size = tile_size(begin, count);
    const auto tile_keys = shared_memory<int>(0, sizes::kSortTile);
    const auto tile_tokens = shared_memory<int>(sizes::kSortTile * 4, sizes::kSortTile);
    const auto source = shared_memory<int>(sizes::kSortTile * 8, sizes::kSortTile);
    const auto numbers = shared_memory<int>(sizes::kSortTile * 12, kDigits);
    const auto offset = shared_memory<int>(sizes::kSortTile * 12 + kDigits * 4, kDigits);
    numbers[own] = counts[of_tile + own];
    for (int i = own; i < size; i += sizes::kSortThreads) tile_tokens[i] = from.token(begin + i);
    load_keys(from, begin, size);

    int rank = 0;
#pragma unroll 8
    for (int d = 0; d < kDigits; ++d) rank += d < own ? numbers[d] : 0;
    offset[own] = places[of_tile + own] - rank;
    for_digits(shared_memory<int4>(0, sizes::kSortTile / 4), shift, [&](int i, int digit) {
        if (digit == own) source[rank++] = i;
    });
    __syncthreads();
    for (int i = own; i < size; i += sizes::kSortThreads) {
        const int at = source[i];
        const int32_t key = tile_keys[at];
        const int32_t place = offset[digit_of(key, shift)] + i;
        keys[place] = key;
        tokens[place] = tile_tokens[at];
    }
}

constexpr int64_t kPlaceSharedBytes = sizes::kSortTile * 12 + kDigits * 8;

}  // namespace
}  // namespace sort_ids_cu

void CudaOps::enqueue(const op::SortIds& a, Stream& stream) {
    using namespace sort_ids_cu;
    const int64_t count = a.index.numel();
    if (a.limit > 0x7ffffffe || count > 0x7fffffff)
        throw_internal("sort_ids: {} ids below {} are too many", count, a.limit);
    if (count == 0) return;
    // Workspace, i32: keys and tokens of every second pass, [2][T]; counts and places, [tiles][digits] each.
    const int64_t num_tiles = (count + sizes::kSortTile - 1) / sizes::kSortTile;
    auto* const scratch = static_cast<int32_t*>(workspace(stream, (2 * count + 2 * kDigits * num_tiles) * 4));
    int32_t *const counts = scratch + 2 * count, *const places = counts + kDigits * num_tiles;
    const int bits = std::max(1, static_cast<int>(std::bit_width(static_cast<uint64_t>(a.limit))));
    const int passes = (bits + sizes::kSortDigitBits - 1) / sizes::kSortDigitBits;
    Pairs from{a.index.as<int32_t>(), nullptr, static_cast<int32_t>(a.limit)};
    for (int pass = 0; pass < passes; ++pass) {
        int32_t* const keys = (passes - pass) % 2 ? a.order.as<int32_t>() : scratch;  // last pass: order
        int32_t* const tokens = keys + count;
        const int shift = pass * sizes::kSortDigitBits;
        const auto blocks = grid_of(num_tiles, 1);
        launch(sort_count_kernel, blocks, sizes::kSortThreads, sizes::kSortTile * 4, stream, counts, from,
               count, shift);
        launch(sort_scan_kernel, 1, sizes::kSortThreads, kDigits * 4, stream, places, counts, num_tiles);
        launch(sort_place_kernel, blocks, sizes::kSortThreads, kPlaceSharedBytes, stream, keys, tokens,
               places, counts, from, count, shift);
        from.keys = keys;
        from.tokens = tokens;
    }
}

}  // namespace speedrun
