// Matrix products. Portable and hand-written: it serves where the library in front of it (cuBLASLt) has no
// answer, and is what it is checked against. One kernel for bf16 on tensor cores, one for f32 with
// multiply-adds; sums in f32.
//
// Floor: 2·M·N·K FLOP; bytes: op(a) is read once per column of tiles, op(b) once per row of tiles, c written
// once.
//
//   kernel   tile of c   K step   stages   threads       a warp or thread owns   shared memory
//   bf16     128 × 128       64        3       256 (8 warps)      64 × 32              96 KiB
//   f32       64 × 64        16        1       256                 4 × 4              8.5 KiB
//
// Where c has few tiles and K is long, the sum is split into a number of parts that depends on the shape
// alone; each part goes to the workspace and a second kernel adds them in order: same shapes, same bits.
#include "kernels/cuda/matmul.h"

#include <algorithm>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tile.cuh"

namespace speedrun {

namespace {

constexpr int kTile = 128, kStep = 64, kStages = 3;  // bf16
constexpr int kWarpRows = 64, kWarpCols = 32;
constexpr int kSmallTile = 64, kSmallStep = 16, kSmallPitch = kSmallTile + 4;  // f32
constexpr int kThreads = 256;
constexpr int64_t kMinSplitK = 512, kFewTiles = 32,
                  kMaxSplits = 32;  // 32 tiles leave most of 132 processors idle

template <class In, class Out>
struct Arguments {
    Out* c;
    const In *a, *b;
    const Out* addend;                                             // null: none
    const float* bias;                                             // null: none
    int64_t c_stride, a_stride, b_stride, addend_stride;           // of rows
    int64_t c_batch, a_batch, b_batch, addend_batch, part_stride;  // of matrices; of the parts of a split sum
    int m, n, k, steps_of_part;
    float alpha, beta;
    bool transpose_a, transpose_b, symmetric,
        paired;  // paired: two adjacent elements of c can be written at once
};

struct TileIndex {
    int row, col;
};
// The tile of this block: row by row, of the lower triangle where c is symmetric.
__device__ inline TileIndex tile_of_block(bool symmetric, int cols_of_tiles) {
    int index = static_cast<int>(blockIdx.x);
    if (!symmetric) return {index / cols_of_tiles, index % cols_of_tiles};
    int row = 0;
    while (index > row) index -= ++row;
    return {row, index};
}

// What c holds at one element, from its sum.
template <class In, class Out>
__device__ inline float value_of(const Arguments<In, Out>& p, const Out* addend, int row, int col,
                                 float sum) {
    float value = p.alpha * sum;
    if (addend) value += p.beta * to_float(addend[row * p.addend_stride + col]);
    if (p.bias) value += p.bias[col];
    return value;
}

template <class In, class Out>
__device__ inline void store(const Arguments<In, Out>& p, Out* c, const Out* addend, int row, int col,
                             float sum, bool mirror) {
    if (row >= p.m || col >= p.n) return;
    const Out value = from_float<Out>(value_of(p, addend, row, col, sum));
    c[row * p.c_stride + col] = value;
    if (mirror) c[col * p.c_stride + row] = value;
}

__device__ inline void write_pair(float* at, float x, float y) {
    *reinterpret_cast<float2*>(at) = make_float2(x, y);
}
__device__ inline void write_pair(Bf16* at, float x, float y) {
    *reinterpret_cast<uint32_t*>(at) = ptx::pack_bf16(x, y);
}

// Elements col and col + 1, col even.
template <class In, class Out>
__device__ inline void store_pair(const Arguments<In, Out>& p, Out* c, const Out* addend, int row, int col,
                                  float sum, float next_sum, bool mirror) {
    if (mirror || !p.paired || col + 1 >= p.n) {
        store(p, c, addend, row, col, sum, mirror);
        store(p, c, addend, row, col + 1, next_sum, mirror);
    } else if (row < p.m) {
        write_pair(c + row * p.c_stride + col, value_of(p, addend, row, col, sum),
                   value_of(p, addend, row, col + 1, next_sum));
    }
}

// ---- bf16

// Starts loading kRows × kWidth elements of a stored matrix from (row, col) into a tile; beyond (row_end,
// col_end) zeros.
template <int kRows, int kWidth, bool kAligned>
__device__ inline void fetch_tile(Bf16* tile, const Bf16* matrix, int64_t stride, int row0, int row_end,
                                  int col0, int col_end) {
    constexpr int kChunks = kWidth / 8;
#pragma unroll
    for (int i = 0; i < kRows * kChunks / kThreads; ++i) {
        const int index = i * kThreads + static_cast<int>(threadIdx.x);
        const int row = index / kChunks, chunk = index % kChunks, col = col0 + chunk * 8;
        Bf16* destination = tile + tile::chunk_offset<kWidth>(row, chunk);
        const int valid = row0 + row < row_end ? max(0, min(8, col_end - col)) : 0;
        const Bf16* source = matrix + (valid > 0 ? (row0 + row) * stride + col : 0);
        if constexpr (kAligned) {
            ptx::copy_async_16(destination, source, valid * 2);
        } else {
            uint32_t pairs[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const uint32_t low = 2 * j < valid ? source[2 * j].bits : 0;
                const uint32_t high = 2 * j + 1 < valid ? source[2 * j + 1].bits : 0;
                pairs[j] = high << 16 | low;
            }
            *reinterpret_cast<uint4*>(destination) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
    }
}

template <bool kTransposeA, bool kTransposeB, bool kAligned, class Out>
__global__ void __launch_bounds__(kThreads) matmul_mma_kernel(Arguments<Bf16, Out> p) {
    constexpr int kTileElements = kTile * kStep, kWidthA = kTransposeA ? kTile : kStep,
                  kWidthB = kTransposeB ? kStep : kTile;
    constexpr int kRowTiles = kWarpRows / 16, kColTiles = kWarpCols / 8;
    Bf16* stages = shared_memory<Bf16>(0);  // [kStages][a, b]
    const auto [tile_row, tile_col] = tile_of_block(p.symmetric, (p.n + kTile - 1) / kTile);
    const int row0 = tile_row * kTile, col0 = tile_col * kTile;
    const int64_t matrix = blockIdx.z;
    const Bf16* a = p.a + matrix * p.a_batch;
    const Bf16* b = p.b + matrix * p.b_batch;
    const int begin = static_cast<int>(blockIdx.y) * p.steps_of_part;
    const int end = min(begin + p.steps_of_part, (p.k + kStep - 1) / kStep);

    const auto fetch = [&](int step) {
        if (step < end) {
            Bf16* tile_a = stages + (step - begin) % kStages * 2 * kTileElements;
            Bf16* tile_b = tile_a + kTileElements;
            if constexpr (kTransposeA) {
                fetch_tile<kStep, kTile, kAligned>(tile_a, a, p.a_stride, step * kStep, p.k, row0, p.m);
            } else {
                fetch_tile<kTile, kStep, kAligned>(tile_a, a, p.a_stride, row0, p.m, step * kStep, p.k);
            }
            if constexpr (kTransposeB) {
                fetch_tile<kTile, kStep, kAligned>(tile_b, b, p.b_stride, col0, p.n, step * kStep, p.k);
            } else {
                fetch_tile<kStep, kTile, kAligned>(tile_b, b, p.b_stride, step * kStep, p.k, col0, p.n);
            }
        }
        ptx::copy_async_commit();  // an empty group too, so that the count of groups is that of steps
    };
    for (int s = 0; s < kStages - 1; ++s) fetch(begin + s);

    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int warp_row = warp / (kTile / kWarpCols) * kWarpRows,
              warp_col = warp % (kTile / kWarpCols) * kWarpCols;
    float sums[kRowTiles][kColTiles][4] = {};
    for (int step = begin; step < end; ++step) {
        ptx::copy_async_wait<kStages - 2>();
        __syncthreads();  // this stage is here, and nobody reads the one that is fetched next any more
        fetch(step + kStages - 1);
        const Bf16* tile_a = stages + (step - begin) % kStages * 2 * kTileElements;
        const Bf16* tile_b = tile_a + kTileElements;
#pragma unroll
        for (int k = 0; k < kStep; k += 16) {
            uint32_t fragment_a[kRowTiles][4], fragment_b[kColTiles / 2][4];
#pragma unroll
            for (int i = 0; i < kRowTiles; ++i) {
                if constexpr (kTransposeA) {
                    tile::load_a_transposed<kWidthA>(fragment_a[i], tile_a, warp_row + 16 * i, k);
                } else {
                    tile::load_a<kWidthA>(fragment_a[i], tile_a, warp_row + 16 * i, k);
                }
            }
#pragma unroll
            for (int j = 0; j < kColTiles / 2; ++j) {
                if constexpr (kTransposeB) {
                    tile::load_b<kWidthB>(fragment_b[j], tile_b, warp_col + 16 * j, k);
                } else {
                    tile::load_b_transposed<kWidthB>(fragment_b[j], tile_b, warp_col + 16 * j, k);
                }
            }
#pragma unroll
            for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
                for (int j = 0; j < kColTiles; ++j) {
                    ptx::mma_bf16(sums[i][j], fragment_a[i], fragment_b[j / 2][j % 2 * 2],
                                  fragment_b[j / 2][j % 2 * 2 + 1]);
                }
            }
        }
    }
    ptx::copy_async_wait<0>();

    Out* c = p.c + matrix * p.c_batch + static_cast<int64_t>(blockIdx.y) * p.part_stride;
    const Out* addend = p.addend ? p.addend + matrix * p.addend_batch : nullptr;
    const bool mirror = p.symmetric && tile_row != tile_col;
    const int g = ptx::lane_id() / 4, t = ptx::lane_id() % 4;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kColTiles; ++j) {
            const int row = row0 + warp_row + 16 * i + g, col = col0 + warp_col + 8 * j + 2 * t;
            store_pair(p, c, addend, row, col, sums[i][j][0], sums[i][j][1], mirror);
            store_pair(p, c, addend, row + 8, col, sums[i][j][2], sums[i][j][3], mirror);
        }
    }
}

// ---- f32

// Elements (i, k) of op(a), or (j, k) of op(b): a tile [kSmallStep][kSmallTile] with k as rows.
__device__ inline void load_small_tile(float* tile, const float* matrix, int64_t stride, bool k_is_row,
                                       int first, int end, int k0, int k_end) {
    for (int index = static_cast<int>(threadIdx.x); index < kSmallTile * kSmallStep; index += kThreads) {
        const int k = k_is_row ? index / kSmallTile : index % kSmallStep;  // neighbours read neighbours
        const int i = k_is_row ? index % kSmallTile : index / kSmallStep;
        const bool valid = first + i < end && k0 + k < k_end;
        const int64_t row = k_is_row ? k0 + k : first + i, col = k_is_row ? first + i : k0 + k;
        tile[k * kSmallPitch + i] = valid ? matrix[row * stride + col] : 0.0f;
    }
}

__global__ void __launch_bounds__(kThreads) matmul_f32_kernel(Arguments<float, float> p) {
    const auto tile_a = shared_memory<float>(0);
    const auto tile_b = shared_memory<float>(kSmallStep * kSmallPitch * 4);
    const auto [tile_row, tile_col] = tile_of_block(p.symmetric, (p.n + kSmallTile - 1) / kSmallTile);
    const int row0 = tile_row * kSmallTile, col0 = tile_col * kSmallTile;
    const int64_t matrix = blockIdx.z;
    const int begin = static_cast<int>(blockIdx.y) * p.steps_of_part;
    const int end = min(begin + p.steps_of_part, (p.k + kSmallStep - 1) / kSmallStep);
    const int own_row = static_cast<int>(threadIdx.x) / 16 * 4,
              own_col = static_cast<int>(threadIdx.x) % 16 * 4;

    float sums[4][4] = {};
    for (int step = begin; step < end; ++step) {
        __syncthreads();  // nobody reads the last tiles any more
        load_small_tile(tile_a, p.a + matrix * p.a_batch, p.a_stride, p.transpose_a, row0, p.m,
                        step * kSmallStep, p.k);
        load_small_tile(tile_b, p.b + matrix * p.b_batch, p.b_stride, !p.transpose_b, col0, p.n,
                        step * kSmallStep, p.k);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < kSmallStep; ++k) {
            float x[4], y[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                x[i] = tile_a[k * kSmallPitch + own_row + i];
                y[i] = tile_b[k * kSmallPitch + own_col + i];
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int j = 0; j < 4; ++j) sums[i][j] += x[i] * y[j];
            }
        }
    }
    float* c = p.c + matrix * p.c_batch + static_cast<int64_t>(blockIdx.y) * p.part_stride;
    const float* addend = p.addend ? p.addend + matrix * p.addend_batch : nullptr;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            store(p, c, addend, row0 + own_row + i, col0 + own_col + j, sums[i][j],
                  p.symmetric && tile_row != tile_col);
        }
    }
}

// ---- the parts of a split sum, added in order; a thread per element
template <class Out>
__global__ void matmul_parts_kernel(Arguments<float, Out> p, const float* parts, int num_parts) {
    const int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (index >= static_cast<int64_t>(p.m) * p.n) return;
    float sum = 0.0f;
    for (int part = 0; part < num_parts; ++part) sum += parts[part * p.part_stride + index];
    store(p, p.c, p.addend, static_cast<int>(index / p.n), static_cast<int>(index % p.n), sum, false);
}

// ---- launchers

struct Plan {
    int64_t m, n, k, batch, tiles_of_rows, tiles, steps, splits;
};

Plan plan_of(const Product& x) {
    const bool batched = x.c.rank == 3;
    const int64_t tile = x.a.dtype == DType::bf16 ? kTile : kSmallTile;
    const int64_t step = x.a.dtype == DType::bf16 ? kStep : kSmallStep;
    Plan plan{};
    plan.m = x.c.shape[batched];
    plan.n = x.c.shape[batched + 1];
    plan.k = x.a.shape[batched + (x.transpose_a ? 0 : 1)];
    plan.batch = batched ? x.c.shape[0] : 1;
    plan.tiles_of_rows = (plan.m + tile - 1) / tile;
    plan.tiles = x.symmetric ? plan.tiles_of_rows * (plan.tiles_of_rows + 1) / 2
                             : plan.tiles_of_rows * ((plan.n + tile - 1) / tile);
    plan.steps = (plan.k + step - 1) / step;
    plan.splits = 1;
    if (!batched && !x.symmetric && plan.tiles < kFewTiles) {
        plan.splits =
            std::clamp(std::min(plan.k / kMinSplitK, 4 * kFewTiles / plan.tiles), int64_t{1}, kMaxSplits);
    }
    return plan;
}

template <class In, class Out>
Arguments<In, Out> arguments_of(const Product& x, const Plan& plan) {
    const auto batch_stride = [&](const Tensor& t) { return t.rank == 3 ? t.shape[1] * t.shape[2] : 0; };
    Arguments<In, Out> p{};
    p.c = x.c.as<Out>();
    p.addend = x.addend.present() ? x.addend.as<Out>() : nullptr;
    p.bias = x.bias.present() ? x.bias.as<float>() : nullptr;
    p.c_stride = x.c.row_stride;
    p.a_stride = x.a.row_stride;
    p.b_stride = x.b.row_stride;
    p.addend_stride = x.addend.row_stride;
    p.c_batch = batch_stride(x.c);
    p.a_batch = batch_stride(x.a);
    p.b_batch = batch_stride(x.b);
    p.addend_batch = batch_stride(x.addend);
    p.part_stride = plan.m * plan.n;
    p.m = static_cast<int>(plan.m);
    p.n = static_cast<int>(plan.n);
    p.k = static_cast<int>(plan.k);
    p.steps_of_part = static_cast<int>((plan.steps + plan.splits - 1) / plan.splits);
    p.alpha = x.alpha;
    p.beta = x.beta;
    p.transpose_a = x.transpose_a;
    p.transpose_b = x.transpose_b;
    p.symmetric = x.symmetric;
    p.paired = reinterpret_cast<uintptr_t>(p.c) % (2 * sizeof(Out)) == 0 && p.c_stride % 2 == 0 &&
               p.c_batch % 2 == 0 && (plan.splits == 1 || p.part_stride % 2 == 0);
    return p;
}

bool aligned(const Tensor& x) {  // all its rows to 16 bytes
    const bool matrices = x.rank < 3 || x.shape[1] * x.shape[2] % 8 == 0;
    return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.row_stride % 8 == 0 && matrices;
}

template <class Body>
void with_bool(bool value, Body&& body) {
    if (value) return body(std::true_type{});
    return body(std::false_type{});
}

template <class In, class Out>
void launch_tiles(const Product& x, const Plan& plan, Arguments<In, Out> p, Stream& stream) {
    p.a = x.a.as<In>();
    p.b = x.b.as<In>();
    const dim3 grid(static_cast<unsigned>(plan.tiles), static_cast<unsigned>(plan.splits),
                    static_cast<unsigned>(plan.batch));
    if constexpr (std::is_same_v<In, Bf16>) {
        with_bool(x.transpose_a, [&](auto transpose_a) {
            with_bool(x.transpose_b, [&](auto transpose_b) {
                with_bool(aligned(x.a) && aligned(x.b), [&](auto all_aligned) {
                    launch(matmul_mma_kernel<transpose_a(), transpose_b(), all_aligned(), Out>, grid,
                           kThreads, kStages * 2 * kTile * kStep * 2, stream, p);
                });
            });
        });
    } else {
        launch(matmul_f32_kernel, grid, kThreads, 2 * kSmallStep * kSmallPitch * 4, stream, p);
    }
}

template <class In, class Out>
void launch_product(const Product& x, void* workspace, Stream& stream) {
    const Plan plan = plan_of(x);
    if (plan.splits == 1) return launch_tiles<In, Out>(x, plan, arguments_of<In, Out>(x, plan), stream);
    auto* parts = static_cast<float*>(workspace);
    Product split = x;
    split.c = Tensor(parts, DType::f32, {plan.m, plan.n});
    split.addend = split.bias = Tensor();
    split.alpha = 1.0f;
    launch_tiles<In, float>(split, plan, arguments_of<In, float>(split, plan), stream);
    const int64_t blocks = (plan.m * plan.n + kThreads - 1) / kThreads;
    launch(matmul_parts_kernel<Out>, dim3(static_cast<unsigned>(blocks)), kThreads, 0, stream,
           arguments_of<float, Out>(x, plan), static_cast<const float*>(parts),
           static_cast<int>(plan.splits));
}

}  // namespace

int64_t product_workspace(const Product& x) {
    const Plan plan = plan_of(x);
    return plan.splits > 1 ? plan.splits * plan.m * plan.n * 4 : 0;
}

void tile_product(const Product& x, void* workspace, Stream& stream) {
    if (x.a.dtype == DType::f32) return launch_product<float, float>(x, workspace, stream);
    if (x.c.dtype == DType::f32) return launch_product<Bf16, float>(x, workspace, stream);
    launch_product<Bf16, Bf16>(x, workspace, stream);
}

void CudaOps::matmul(Tensor c, Tensor a, Tensor b, Tensor bias, const MatmulOptions& options,
                     Stream& stream) {
    if (options.accumulate && bias.present())
        throw_internal("matmul: bias and accumulate exclude each other");
    if (a.rank != 2 || b.rank != 2 || c.rank != 2) {
        throw_internal("matmul: three matrices are needed: c {}, a {}, b {}", c.describe(), a.describe(),
                       b.describe());
    }
    const int64_t m = c.shape[0], n = c.shape[1], k = options.transpose_a ? a.shape[0] : a.shape[1];
    expect_shape(a, {options.transpose_a ? k : m, options.transpose_a ? m : k}, "matmul a");
    expect_shape(b, {options.transpose_b ? n : k, options.transpose_b ? k : n}, "matmul b");
    if (a.dtype != b.dtype || (c.dtype != a.dtype && c.dtype != DType::f32)) {
        throw_internal("matmul: types do not fit: c {}, a {}, b {}", c.describe(), a.describe(),
                       b.describe());
    }
    if (bias.present()) expect(bias, DType::f32, {n}, "matmul bias");
    if (m == 0 || n == 0 || k == 0) throw_internal("matmul: an empty product {} x {} x {}", m, n, k);
    if (std::max({m, n, k}) >= int64_t{1} << 31) throw_internal("matmul: too large: {} x {} x {}", m, n, k);

    flops_ += 2 * m * n * k;
    if (library_) {
        Tensor library_bias = bias;
        if (bias.present() && c.dtype == DType::bf16) {  // libraries take a bias of c's type
            library_bias = Tensor(workspace(stream, n * size_of(DType::bf16)), DType::bf16, {n});
            cast(library_bias, bias, stream);
        }
        if (library_->matmul(c, a, b, library_bias, options, stream)) return;
    }
    Product product{c, a, b, options.transpose_a, options.transpose_b};
    if (options.accumulate) {
        product.beta = 1.0f;
        product.addend = c;
    }
    product.bias = bias;
    tile_product(product, workspace(stream, product_workspace(product)), stream);
}

}  // namespace speedrun
