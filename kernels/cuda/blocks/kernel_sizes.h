// Threads, rows and chunks of every kernel except matmul and attention, whose tiles are declared with their
// fragments. Grids depend on tensor sizes alone, never on the device. Shared memory, if the device has
// enough, only saves recomputation. So results have the same bits on every GPU.
#pragma once

#include <cstdint>

namespace speedrun::sizes {

constexpr int kWarp = 32;

constexpr int kMapThreads = 256;  // elementwise kernels: one vector of 16 bytes per thread

constexpr int kReduceThreads = 256;         // reductions to a scalar: first stage
constexpr int kReduceElements = 256 * 32;   // minimum elements per block
constexpr int64_t kReduceMaxBlocks = 1024;  // maximum blocks; the second stage is one block

constexpr int kColumnThreads = 128;        // column sums: one column per thread
constexpr int64_t kColumnRows = 64;        // minimum rows per chunk
constexpr int64_t kColumnMaxChunks = 256;  // maximum chunks: enough blocks for 132 SMs at C=768
constexpr int kChunkGroups = 16;           // second stage: warps of a block, each for every 16th chunk
constexpr int kChunksAhead = 8;            // chunks loaded before the first is added

constexpr int kRowThreads = 256;  // norm, rotary: a warp per row, or several head vectors per warp

constexpr int kNarrowThreads = 128;          // narrow matmuls, forward: one thread per row
constexpr int kNarrowBackwardThreads = 256;  // backward: four threads per row of a tile

constexpr int kNormuonThreads = 1024;  // one block per matrix for the factors of its lines
constexpr int64_t kNormuonRows = 32;   // minimum rows per chunk if lines are columns

constexpr int kSortThreads = 256;  // embedding backward: one thread per value of an 8-bit digit
constexpr int kSortDigitBits = 8;
constexpr int kSortTile = 1024;            // keys that a block counts and sorts
constexpr int kEmbeddingThreads = 256;     // maximum: one thread per four columns
constexpr int kEmbeddingAhead = 8;         // rows loaded before the first of them is added
constexpr int64_t kEmbeddingPlaces = 16;   // sorted tokens of a block, which adds the runs that start there
constexpr int64_t kEmbeddingSegment = 64;  // maximum sorted tokens of one id that a block sums

constexpr int kLossThreads = 512;  // cross-entropy: one block per row, two per multiprocessor
constexpr int64_t kLossCacheBytes =
    112 << 10;                            // bytes of a row cached between sum and gradient, if two blocks fit
constexpr float kLossMaxSoftcap = 40.0f;  // e^(−2c) must not underflow if c replaces the maximum

}  // namespace speedrun::sizes
