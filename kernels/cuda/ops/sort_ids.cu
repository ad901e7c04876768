// Tokens in order of their ids: a stable radix sort of integers, so exact.
//
// Two launches per digit: each tile of keys counts its digits; each tile then adds up the counts of all tiles
// and writes its pairs. For T = 32,768 a block reads 32 KB of counts. Roofline bound: 8·T bytes per pass read and
// written; two passes for limits below 2^16.
// Legend: T tokens · key = id, or the limit if it is outside [0, limit) (the limit itself marks a row of
// another rank) · digit = 8 bits of the key · a pair is a key and its token · tile = the keys of a block.
#include <algorithm>
#include <bit>

#include "kernels/cuda/blocks/reduce.cuh"
#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace speedrun {

namespace sort_ids_cu {
namespace {

constexpr int kDigits = 1 << sizes::kSortDigitBits;
static_assert(kDigits == sizes::kSortThreads, "a thread per value of a digit");
constexpr int kWarps = sizes::kSortThreads / sizes::kWarp, kKeysOfWarp = sizes::kSortTile / kWarps,
              kRounds = kKeysOfWarp / sizes::kWarp;
// Shared memory of sort_place_kernel: keys, tokens, sources, numbers; then offsets and sums of two scans.
constexpr int64_t kOffsets = sizes::kSortTile * 12 + int64_t{kWarps} * kDigits * 4,
                  kPlaceSharedBytes = kOffsets + kDigits * 4 + 2 * kWarps * 4;

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
    return key >> shift & (kDigits - 1);
}

__device__ __forceinline__ int tile_size(int64_t begin, int64_t count) {
    return static_cast<int>(min(count - begin, int64_t{sizes::kSortTile}));
}

// counts[tile][digit]
__global__ void __launch_bounds__(sizes::kSortThreads)
    sort_count_kernel(int32_t* counts, Pairs from, int64_t count, int shift) {
    wait_for_prior_kernels();
    const int own = static_cast<int>(threadIdx.x);
    const int64_t begin = int64_t{blockIdx.x} * sizes::kSortTile;
    const int size = tile_size(begin, count);
    const auto numbers = shared_memory<int>(0, kDigits);
    numbers[own] = 0;
    __syncthreads();
    for (int i = own; i < size; i += sizes::kSortThreads)
        atomicAdd(&numbers[digit_of(from.key(begin + i), shift)], 1);
    __syncthreads();
    counts[int64_t{blockIdx.x} * kDigits + own] = numbers[own];
}

// Sum of the values of the threads before this one. sums: one per warp.
template <class Sums>
__device__ __forceinline__ int sum_before(int value, const Sums& sums) {
    int sum = value;
#pragma unroll
    for (int distance = 1; distance < sizes::kWarp; distance *= 2) {
        const int below = __shfl_up_sync(0xffffffffu, sum, distance);
        if (lane_index() >= distance) sum += below;
    }
    if (lane_index() == sizes::kWarp - 1) sums[warp_index()] = sum;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += w < warp_index() ? sums[w] : 0;
    return sum - value;
}

// Lanes of the warp with this digit; 0 for lanes without a key.
__device__ __forceinline__ unsigned lanes_with(int digit, bool valid) {
    unsigned lanes = __ballot_sync(0xffffffffu, valid);
#pragma unroll
    for (int bit = 0; bit < sizes::kSortDigitBits; ++bit) {
        const bool set = (digit >> bit & 1) != 0;
        const unsigned with = __ballot_sync(0xffffffffu, set);
        lanes &= set ? with : ~with;
    }
    return valid ? lanes : 0;
}

// The rank of a key is the number of keys of its tile that precede: of lower digits, and of the same digit at a
// lower index, so the sort is stable. Each warp ranks adjacent keys. Pairs are written in order of their ranks,
// so that writes of repeated digits are adjacent.
__global__ void __launch_bounds__(sizes::kSortThreads)
    sort_place_kernel(int32_t* keys, int32_t* tokens, const int32_t* counts, Pairs from, int64_t count,
                      int shift) {
    wait_for_prior_kernels();
    const int own = static_cast<int>(threadIdx.x);
    const int64_t tile = blockIdx.x, begin = tile * sizes::kSortTile;
    const int size = tile_size(begin, count);
    const auto tile_keys = shared_memory<int>(0, sizes::kSortTile);
    const auto tile_tokens = shared_memory<int>(sizes::kSortTile * 4, sizes::kSortTile);
    const auto source = shared_memory<int>(sizes::kSortTile * 8, sizes::kSortTile);
    const auto numbers = shared_memory<int>(sizes::kSortTile * 12, kWarps * kDigits);  // per warp and digit
    const auto offset = shared_memory<int>(kOffsets, kDigits);
    const auto sums = shared_memory<int>(kOffsets + kDigits * 4, 2 * kWarps);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) numbers[w * kDigits + own] = 0;
    for (int i = own; i < size; i += sizes::kSortThreads) {
        tile_keys[i] = from.key(begin + i);
        tile_tokens[i] = from.token(begin + i);
    }
    int32_t total = 0, of_tiles_before = 0;  // keys with digit `own`
#pragma unroll 8
    for (int64_t t = 0; t < gridDim.x; ++t) {
        const int32_t number = counts[t * kDigits + own];
        total += number;
        of_tiles_before += t < tile ? number : 0;
    }
    const int place =
        sum_before(total, sums) + of_tiles_before;  // contains a barrier: of the tile's keys too

    const auto of_warp = [&](int digit) -> int& { return numbers[warp_index() * kDigits + digit]; };
    int digits[kRounds], ranks[kRounds];  // −1: no key
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
        const int i = warp_index() * kKeysOfWarp + r * sizes::kWarp + lane_index();
        digits[r] = i < size ? digit_of(tile_keys[i], shift) : -1;
        const unsigned lanes = lanes_with(digits[r], i < size);
        const int below = __popc(lanes & ((1u << lane_index()) - 1)),
                  before = i < size ? of_warp(digits[r]) : 0;
        ranks[r] = before + below;
        __syncwarp();
        if (lanes != 0 && below == 0) of_warp(digits[r]) = before + __popc(lanes);
        __syncwarp();
    }
    __syncthreads();
    int of_tile = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) of_tile += numbers[w * kDigits + own];
    int rank = sum_before(of_tile, sums + kWarps);
    offset[own] = place - rank;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
        const int number = numbers[w * kDigits + own];
        numbers[w * kDigits + own] = rank;
        rank += number;
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
        if (digits[r] >= 0)
            source[of_warp(digits[r]) + ranks[r]] =
                warp_index() * kKeysOfWarp + r * sizes::kWarp + lane_index();
    }
    __syncthreads();
    for (int i = own; i < size; i += sizes::kSortThreads) {
        const int at = source[i];
        const int32_t key = tile_keys[at];
        const int32_t to = offset[digit_of(key, shift)] + i;
        keys[to] = key;
        tokens[to] = tile_tokens[at];
    }
}

}  // namespace
}  // namespace sort_ids_cu

void CudaOps::enqueue(const op::SortIds& a, Stream& stream) {
    using namespace sort_ids_cu;
    const int64_t count = a.index.numel();
    if (a.limit > 0x7ffffffe || count > 0x7fffffff)
        throw_internal("sort_ids: {} ids below {} are too many", count, a.limit);
    if (count == 0) return;
    // Workspace, i32: keys and tokens of every second pass, [2][T]; counts, [tiles][digits].
    const int64_t num_tiles = (count + sizes::kSortTile - 1) / sizes::kSortTile;
    auto* const scratch = static_cast<int32_t*>(workspace(stream, (2 * count + kDigits * num_tiles) * 4));
    int32_t* const counts = scratch + 2 * count;
    const int bits = std::max(1, static_cast<int>(std::bit_width(static_cast<uint64_t>(a.limit))));
    const int passes = (bits + sizes::kSortDigitBits - 1) / sizes::kSortDigitBits;
    Pairs from{a.index.as<int32_t>(), nullptr, static_cast<int32_t>(a.limit)};
    for (int pass = 0; pass < passes; ++pass) {
        int32_t* const keys = (passes - pass) % 2 ? a.order.as<int32_t>() : scratch;  // last pass: order
        int32_t* const tokens = keys + count;
        const int shift = pass * sizes::kSortDigitBits;
        const auto blocks = grid_of(num_tiles, 1);
        launch(sort_count_kernel, blocks, sizes::kSortThreads, kDigits * 4, stream, counts, from, count,
               shift);
        launch(sort_place_kernel, blocks, sizes::kSortThreads, kPlaceSharedBytes, stream, keys, tokens,
               counts, from, count, shift);
        from.keys = keys;
        from.tokens = tokens;
    }
}

}  // namespace speedrun
