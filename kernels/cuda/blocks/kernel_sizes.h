// Threads, rows and chunks of every kernel that is not a matrix product or attention (those keep their tiles
// beside the fragments that they fit). Grids depend on sizes of tensors alone, never on the device, and what
// is kept in shared memory, if the device has as much, is what would be computed again: results have the same
// bits on every card.
#pragma once

#include <cstdint>

namespace speedrun::sizes {

constexpr int kWarp = 32;

constexpr int kMapThreads = 256;  // elementwise kernels: one vector of 16 bytes a thread

constexpr int kReduceThreads = 256;         // reductions to one number: first stage …
constexpr int kReduceElements = 256 * 32;   // … elements of a block at least …
constexpr int64_t kReduceMaxBlocks = 1024;  // … and blocks at most; the second stage is one block

constexpr int kColumnThreads = 128;        // column sums: a thread owns a column …
constexpr int64_t kColumnRows = 64;        // … of this many rows at least …
constexpr int64_t kColumnMaxChunks = 256;  // … in chunks of rows, at most: enough blocks for 132 SMs at C=768
constexpr int kChunkGroups = 16;  // the second stage: warps of a block, each for every 16th chunk …
constexpr int kChunksAhead = 8;   // … with this many loaded before the first is added

constexpr int kRowThreads = 256;  // norm, rotary: a warp per row, or several head vectors per warp

constexpr int kNarrowThreads = 128;          // narrow products, forward: a thread per row of a block …
constexpr int kNarrowBackwardThreads = 256;  // … backward: four per row of a tile

constexpr int kNormuonThreads = 1024;  // one block per matrix for the factors of its lines
constexpr int64_t kNormuonRows = 32;   // rows of a chunk at least, where lines are columns

constexpr int kSortThreads = 256;  // embedding backward: threads = values of an 8-bit digit
constexpr int kSortDigitBits = 8;
constexpr int kSortTile = 1024;            // keys that a block counts and places
constexpr int kEmbeddingThreads = 256;     // at most: a thread per four columns
constexpr int kEmbeddingAhead = 8;         // rows loaded before the first of them is added
constexpr int64_t kEmbeddingSegment = 64;  // sorted tokens that a block adds up where all have one id

constexpr int kLossThreads = 512;              // cross-entropy: one block per row, two on a multiprocessor
constexpr int64_t kLossCacheBytes = 96 << 10;  // of a row, from sum to gradient, where there is room
constexpr float kLossMaxSoftcap = 40.0f;  // e^(−2c) must not underflow where c stands in for the maximum

}  // namespace speedrun::sizes
