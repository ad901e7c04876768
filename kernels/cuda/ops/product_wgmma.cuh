// Main loop of matmuls by wgmma, for compute capability 9.0: c = op(a) op(b), bf16 or e4m3 operands, f32 sums.
//
// Persistent blocks of a producer warp and two consumer warpgroups. The producer copies the operands' 128-byte rows of k to a ring of
// four stages, also during the epilogue of the preceding tile. A tile of c has 128 x 256 elements. Each warpgroup owns 64 x 256 of them:
// 128 sums per thread, and 80 bytes of shared memory read per clock at the full rate of wgmma, of 128. Warpgroup 0 is a step ahead.
// Its epilogue overlaps with the last steps of warpgroup 1, whose epilogue overlaps with the first steps of the next tile.
// A tile per warpgroup (64 x 256 or 128 x 128) would need 1.67 or 1.33 times the bytes of operands.
//
// Interface, for other kernels too:
//   Form<Element, transpose_a, transpose_b>: storage of the operands, as in op::Matmul. a: [M,K], or [K,M] if transposed; b: [K,N],
//     or [N,K] if transposed. e4m3 supports only "nt".
//   map_a<Form>(), map_b<Form>() on the host: tensor maps of a matrix or of a batch.
//   run<Form>(a, b, k, tiles, epilogue): the body of a kernel of kThreads threads and kSharedBytes, one block per multiprocessor.
//   tiles: a list of tiles; `count`, and at(index) → Tile. TileList is the list of a whole batch of matrices.
//   epilogue, called by all warps of the consumers:
//     start()                     before the first tile
//     begin(place) → ahead        during the last matmuls: addresses and loads, in registers
//     end(place, sums, ahead, staging)  writes the warp's 16 x 256 elements; staging: kStagingBytes of shared memory of the warp
//     finish()                    after the last tile.
// Rows and columns outside of the matrices are zero in sums. K needs no multiple. a and b are aligned to 16 bytes, as are their rows.
#pragma once

#include "kernels/cuda/blocks/bulk_copy.h"
#include "kernels/cuda/blocks/vector.cuh"

namespace speedrun::product_wgmma {

constexpr int kRows = 128, kColumns = 256, kStages = 4;
constexpr int kConsumers = 2 * wgmma::kThreads, kThreads = kConsumers + wgmma::kThreads;
constexpr int kConsumerWarps = kConsumers / 32, kWarpRows = 16;
constexpr int kRowBytes = 128, kGroupBytes = 8 * kRowBytes;  // bytes of a row of a stage, and of eight
constexpr int kPanelRows = 64;  // rows of k of a transposed operand, in panels of 64 columns
constexpr int kBytesOfA = kRows * kRowBytes, kBytesOfB = kColumns * kRowBytes,
              kStageBytes = kBytesOfA + kBytesOfB;
// An epilogue stages a warp's sums as bf16 in panels of 64 columns. Two buffers alternate.
constexpr int kPanelColumns = 64, kPanels = kColumns / kPanelColumns, kPanelBytes = kWarpRows * kRowBytes,
              kStagingBytes = 2 * kPanelBytes;
constexpr int64_t kStaging = int64_t{kStages} * kStageBytes,
                  kBarriers = kStaging + int64_t{kConsumerWarps} * kStagingBytes,
                  kSharedBytes = kBarriers + 2 * kStages * 8;
// Warpgroup 1 begins a tile when warpgroup 0 has started kLead steps of it: the first of them are complete then. With fewer steps in a
// tile than kLeadSteps, warpgroup 0 could end two turns.
constexpr int kLead = 2, kLeadSteps = kStages + 1 - kLead;
static_assert(kSharedBytes <= (227 << 10));

template <class Element_, bool kTransposeA_, bool kTransposeB_>
struct Form {
    using Element = Element_;
    static constexpr bool kTransposeA = kTransposeA_, kTransposeB = kTransposeB_;
    static constexpr int kStep = kRowBytes / static_cast<int>(sizeof(Element));  // k of a stage
};

// First row and column of a tile of c, and the matrix of the batch.
struct Tile {
    int row, col, batch;
};

// Tiles of c [batch,M,N]. Groups of 16 rows of tiles, column by column: the tiles that run together read the fewest bytes of a and b.
struct TileList {
    static constexpr int kGroup = 16;
    int rows, cols, count;  // tiles

    TileList(int64_t m, int64_t n, int64_t batch)
        : rows(static_cast<int>((m + kRows - 1) / kRows)),
          cols(static_cast<int>((n + kColumns - 1) / kColumns)),
          count(rows * cols * static_cast<int>(batch)) {}

    __device__ Tile at(int index) const {
        const int batch = index / (rows * cols), of_matrix = index - batch * rows * cols;
        const int first = of_matrix / (kGroup * cols) * kGroup, height = min(kGroup, rows - first);
        const int of_group = of_matrix - first * cols, col = of_group / height;
        return {(first + of_group - col * height) * kRows, col * kColumns, batch};
    }
};

// A warp's part of a tile: its first row of c, the first column, the matrix of the batch.
using Place = Tile;

__device__ inline mbarrier::Barrier* full(int stage) {
    return shared_memory<mbarrier::Barrier>(kBarriers) + stage;
}
__device__ inline mbarrier::Barrier* empty(int stage) {
    return full(kStages + stage);
}

// Position in the ring of stages.
struct Ring {
    int stage = 0, parity = 0;

    __device__ void advance() {
        if (++stage < kStages) return;
        stage = 0;
        parity ^= 1;
    }
    __device__ int previous() const { return stage == 0 ? kStages - 1 : stage - 1; }
};

// Starts copying kOuter rows of an operand at k0 to a stage.
template <class Form, int kOuter, bool kRowsOfK>
__device__ inline void copy_operand(void* to, const TensorMap& map, mbarrier::Barrier* barrier, int outer,
                                    int k0, int batch) {
    if constexpr (kRowsOfK) {
        copy_box(to, map, barrier, k0, outer, batch);
    } else {
        constexpr int kColumnsOfPanel = kRowBytes / 2;
#pragma unroll
        for (int panel = 0; panel < kOuter / kColumnsOfPanel; ++panel)
            copy_box(static_cast<char*>(to) + panel * kPanelRows * kRowBytes, map, barrier,
                     outer + panel * kColumnsOfPanel, k0, batch);
    }
}

template <class Form, class Tiles>
__device__ inline void produce(const TensorMap& a, const TensorMap& b, int k, const Tiles& tiles) {
    if (ptx::lane_id() != 0) return;
    Ring ring;
    for (int index = static_cast<int>(blockIdx.x); index < tiles.count;
         index += static_cast<int>(gridDim.x)) {
        const Tile tile = tiles.at(index);
        for (int k0 = 0; k0 < k; k0 += Form::kStep) {
            char* const to = shared_memory<char>(ring.stage * int64_t{kStageBytes});
            mbarrier::Barrier* const barrier = full(ring.stage);
            mbarrier::wait(empty(ring.stage), ring.parity ^ 1);
            mbarrier::expect_bytes(barrier, kStageBytes);
            copy_operand<Form, kRows, !Form::kTransposeA>(to, a, barrier, tile.row, k0, tile.batch);
            copy_operand<Form, kColumns, Form::kTransposeB>(to + kBytesOfA, b, barrier, tile.col, k0,
                                                            tile.batch);
            ring.advance();
        }
    }
}

// Starts the matmuls of a warpgroup's rows of a stage and ends their group.
template <class Form>
__device__ inline void multiply_stage(float (&sums)[wgmma::kWideTiles][4], int stage, int group, bool add) {
    constexpr int kPanelStride = kPanelRows * kRowBytes, kGroupOfA = kBytesOfA / 2;
    constexpr int kInstruction = 32;  // bytes of k, or twice the rows of k
    constexpr int kApartA = Form::kTransposeA ? kInstruction / 2 * kRowBytes : kInstruction;
    constexpr int kApartB = Form::kTransposeB ? kInstruction : kInstruction / 2 * kRowBytes;
    const uint32_t base = wgmma::shared_address(shared_memory<char>(stage * int64_t{kStageBytes}));
    const uint64_t a = wgmma::describe(base + static_cast<uint32_t>(group * kGroupOfA),
                                       Form::kTransposeA ? kPanelStride : 16, kGroupBytes);
    const uint64_t b = wgmma::describe(base + kBytesOfA, Form::kTransposeB ? 16 : kPanelStride, kGroupBytes);
#pragma unroll
    for (int i = 0; i < kRowBytes / kInstruction; ++i)
        wgmma::multiply_wide<typename Form::Element, Form::kTransposeA, !Form::kTransposeB>(
            sums, a + static_cast<uint64_t>(i * kApartA >> 4), b + static_cast<uint64_t>(i * kApartB >> 4),
            add || i > 0);
    wgmma::commit();
}

// One arrival for the warp, after the reads of all its lanes.
__device__ inline void release(int stage) {
    __syncwarp();
    if (ptx::lane_id() == 0) mbarrier::arrive(empty(stage));
}

template <class Form, class Tiles, class Epilogue>
__device__ inline void consume(int k, const Tiles& tiles, int warp, Epilogue& epilogue) {
    constexpr int kTurn = 1;  // index of the named barrier
    const int group = warp / 4, steps = (k + Form::kStep - 1) / Form::kStep;
    const bool turns = steps >= kLeadSteps;
    void* const staging = shared_memory<char>(kStaging + int64_t{warp} * kStagingBytes);
    float sums[wgmma::kWideTiles][4];
    Ring ring;
    epilogue.start();
    const auto place_at = [&](int index) {
        Place place = tiles.at(index);
        place.row += warp * kWarpRows;
        return place;
    };
    int index = static_cast<int>(blockIdx.x);
    for (Place place = place_at(index), next; index < tiles.count; place = next) {
        if (turns && group == 1) named_barrier::wait_turn<kConsumers>(kTurn);
        for (int step = 0; step < steps; ++step) {
            mbarrier::wait(full(ring.stage), ring.parity);
            wgmma::begin(sums);
            multiply_stage<Form>(sums, ring.stage, group, step > 0);
            wgmma::wait<1>();
            if (step > 0) release(ring.previous());
            if (turns && group == 0 && step + 1 == kLead) named_barrier::end_turn<kConsumers>(kTurn);
            ring.advance();
        }
        const auto ahead = epilogue.begin(place);
        index += static_cast<int>(gridDim.x);
        next = place_at(index);
        wgmma::finish_before_wait(next.row | next.col | next.batch);
        wgmma::wait<0>(sums);
        release(ring.previous());
        epilogue.end(place, sums, ahead, staging);
    }
    epilogue.finish();
}

// ---- a panel of an epilogue

// Eight columns of a row are a chunk of 16 bytes, permuted by the row. In a pass, a warp reads the chunks of four rows.
constexpr int kRowsAtOnce = 4, kPasses = kWarpRows / kRowsAtOnce;
// Offset of the chunk of this lane in a pass: row 4·pass + lane / 8, columns 8·(lane % 8) ….
__device__ inline int chunk_offset(int pass) {
    const int row = pass * kRowsAtOnce + ptx::lane_id() / 8;
    return row * kRowBytes + ((ptx::lane_id() % 8) ^ (row % 8)) * 16;
}
// Offset that this lane passes to stmatrix_x4 or ldmatrix_x4 for columns 16·four …: rows 0-7 and 8-15 of eight columns, then of the next.
__device__ inline int matrix_offset(int four) {
    const int matrix = ptx::lane_id() / 8, i = ptx::lane_id() % 8;
    return (i + matrix % 2 * 8) * kRowBytes + ((2 * four + matrix / 2) ^ i) * 16;
}

// Turns the addends of a panel, which a lane has loaded as chunks of rows, into the fragments of its sums. buffer: of the panel.
__device__ inline void exchange_addends(uint32_t (&addends)[4][4], const Packed<8, Bf16> (&chunks)[kPasses],
                                        char* buffer) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass)
        store_word(reinterpret_cast<uint4*>(buffer + chunk_offset(pass)), chunks[pass].words[0]);
    __syncwarp();
#pragma unroll
    for (int four = 0; four < 4; ++four) ptx::ldmatrix_x4(addends[four], buffer + matrix_offset(four));
}

// ---- body of a kernel

// The maps are parameters of the kernel, `const __grid_constant__ TensorMap`.
template <class Form, class Tiles, class Epilogue>
__device__ inline void run(const TensorMap& a, const TensorMap& b, int k, const Tiles& tiles,
                           Epilogue epilogue) {
    wait_for_prior_kernels();
    if constexpr (wgmma::kAvailable) {
        if (threadIdx.x == 0) {
            for (int stage = 0; stage < kStages; ++stage) {
                mbarrier::init(full(stage), 1);
                mbarrier::init(empty(stage), kConsumerWarps);
            }
            mbarrier::publish();
        }
        __syncthreads();
        // The block has 384·168 registers: 128·24 + 256·240.
        const int warp =
            __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);  // uniform, for the compiler
        if (warp >= kConsumerWarps) {
            registers::decrease<24>();
            if (warp == kConsumerWarps) produce<Form>(a, b, k, tiles);
        } else {
            registers::increase<240>();
            consume<Form>(k, tiles, warp, epilogue);
        }
    }
}

// ---- on the host

// Maps of the operands: matrices, or batches of rank 3.
template <bool kRowsOfK, int kOuter>
TensorMap map_operand(const Tensor& x, Stream& stream) {
    return map_rows(x, x.shape[static_cast<size_t>(x.rank - 2)], kRowsOfK ? kOuter : kPanelRows, stream);
}
template <class Form>
TensorMap map_a(const Tensor& a, Stream& stream) {
    return map_operand<!Form::kTransposeA, kRows>(a, stream);
}
template <class Form>
TensorMap map_b(const Tensor& b, Stream& stream) {
    return map_operand<Form::kTransposeB, kColumns>(b, stream);
}
inline dim3 grid_of(const TileList& tiles, Stream& stream) {
    return dim3(static_cast<unsigned>(std::min<int64_t>(tiles.count, multiprocessors(stream))));
}

}  // namespace speedrun::product_wgmma
