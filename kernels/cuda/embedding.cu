// Embedding lookup, and its gradient without atomics on floats: tokens are sorted by their id (a stable radix
// sort: of integers, so exact), then one block per distinct id adds the rows of its run in order of t.
//
// Floor, real of b bytes: forward 2·T·C·b (3 with positions); backward T·C·b read + 8·C bytes for each
// distinct id; where it overwrites, 4·V·C more for the rows that no token has. The sort moves 8·T bytes a
// pass of 8 bits of the id: two passes for V < 2^16. A block's time grows with its run: the most frequent id
// is the longest. Legend: T tokens, C columns, V rows of the table · key = id, or V where it lies outside the
// table (such tokens sort last and are left out) · digit = 8 bits of the key · W elements of a chunk.
#include <bit>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector.cuh"

namespace speedrun {

namespace {

constexpr int kDigits = 1 << tiles::kSortDigitBits;
static_assert(kDigits == tiles::kSortThreads, "a thread per value of a digit");

template <class Real>
struct Lookup {
    Rows<Real> out, table, position_table;
    const int32_t *index, *position;  // position: null without position_table
    int64_t table_rows, position_rows;

    template <int W>
    __device__ __forceinline__ void operator()(int64_t row, int64_t col, Chunk<W> chunk) const {
        const int64_t id = index[row], place = position ? position[row] : 0;
        Vector<W> v;
        if (id < 0 || id >= table_rows || (position && (place < 0 || place >= position_rows))) {
#pragma unroll
            for (int i = 0; i < W; ++i) v[i] = quiet_nan();
        } else {
            v = chunk.load(table.at(id, col));
            if (position) {
                const Vector<W> offset = chunk.load(position_table.at(place, col));
#pragma unroll
                for (int i = 0; i < W; ++i) v[i] += offset[i];
            }
        }
        chunk.store(out.at(row, col), v);
    }
};

struct Zero {
    Rows<float> x;

    template <int W>
    __device__ __forceinline__ void operator()(int64_t row, int64_t col, Chunk<W> chunk) const {
        Vector<W> v;
#pragma unroll
        for (int i = 0; i < W; ++i) v[i] = 0.0f;
        chunk.store(x.at(row, col), v);
    }
};

// Keys and the tokens that they belong to. Null tokens: token i is i, and keys are ids that nobody has
// checked.
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

// The digits of this block's tile into shared memory, −1 past the end; returns how many there are.
__device__ inline int load_digits(const Pairs& from, int64_t count, int shift) {
    const auto digits = shared_memory<int>(0, tiles::kSortTile);
    const int64_t begin = int64_t{blockIdx.x} * tiles::kSortTile;
    const int size = static_cast<int>(min(count - begin, int64_t{tiles::kSortTile}));
    for (int i = static_cast<int>(threadIdx.x); i < tiles::kSortTile; i += tiles::kSortThreads)
        digits[i] = i < size ? from.key(begin + i) >> shift & (kDigits - 1) : -1;
    __syncthreads();
    return size;
}

// counts[digit][tile]: thread d counts digit d in its block's tile. Every thread reads the same word: a
// broadcast.
__global__ void __launch_bounds__(tiles::kSortThreads)
    sort_count_kernel(int32_t* counts, Pairs from, int64_t count, int shift) {
    load_digits(from, count, shift);
    const auto digits = shared_memory<int4>(0, tiles::kSortTile / 4);
    const int own = static_cast<int>(threadIdx.x);
    int32_t number = 0;
#pragma unroll 4
    for (int i = 0; i < tiles::kSortTile / 4; ++i) {
        const int4 d = load_word(&digits[i]);
        number += (d.x == own) + (d.y == own) + (d.z == own) + (d.w == own);
    }
    counts[int64_t{own} * gridDim.x + blockIdx.x] = number;
}

// counts becomes what comes before: its exclusive sum in order of digit, then tile. One block.
__global__ void __launch_bounds__(tiles::kSortThreads) sort_scan_kernel(int32_t* counts, int64_t num_tiles) {
    const auto sums = shared_memory<int>(0, kDigits);
    const int own = static_cast<int>(threadIdx.x);
    int32_t* const of_digit = counts + own * num_tiles;
    int32_t total = 0;
    for (int64_t tile = 0; tile < num_tiles; ++tile) total += of_digit[tile];
    sums[own] = total;
    __syncthreads();
    int32_t before = 0;
    for (int d = 0; d < own; ++d) before += sums[d];
    for (int64_t tile = 0; tile < num_tiles; ++tile) {
        const int32_t number = of_digit[tile];
        of_digit[tile] = before;
        before += number;
    }
}

// Thread d walks the tile and places the pairs of digit d, in order: the sort is stable.
__global__ void __launch_bounds__(tiles::kSortThreads)
    sort_place_kernel(int32_t* keys, int32_t* tokens, const int32_t* counts, Pairs from, int64_t count,
                      int shift) {
    const int size = load_digits(from, count, shift);
    const auto digits = shared_memory<int>(0, tiles::kSortTile);
    const int own = static_cast<int>(threadIdx.x);
    const int64_t begin = int64_t{blockIdx.x} * tiles::kSortTile;
    int32_t place = counts[int64_t{own} * gridDim.x + blockIdx.x];
    for (int i = 0; i < size; ++i) {
        if (digits[i] != own) continue;
        keys[place] = from.key(begin + i);
        tokens[place] = from.token(begin + i);
        ++place;
    }
}

// Block p: if position p starts the run of an id, that id's row += Σ of the run's rows, in order.
template <class Real, int W>
__global__ void __launch_bounds__(tiles::kEmbeddingThreads)
    embedding_sum_kernel(Rows<float> dtable, Rows<Real> dout, const int32_t* keys, const int32_t* tokens,
                         int64_t count, int32_t limit, int64_t cols) {
    constexpr int kAhead = tiles::kEmbeddingAhead;
    const int64_t begin = blockIdx.x;
    const int32_t id = keys[begin];
    if (id >= limit || (begin > 0 && keys[begin - 1] == id)) return;
    for (int64_t col = int64_t{threadIdx.x} * W; col < cols; col += tiles::kEmbeddingThreads * W) {
        const Chunk<W> chunk{cols - col < W ? static_cast<int>(cols - col) : W};
        Vector<W> sum = chunk.load(dtable.at(id, col));
        for (int64_t p = begin; p < count && keys[p] == id; p += kAhead) {
            Vector<W> rows[kAhead];
#pragma unroll
            for (int j = 0; j < kAhead; ++j) {
                const bool inside = p + j < count && keys[p + j] == id;
                // Past the run: count 0 loads nothing, and adding 0 changes nothing but the sign of a zero
                // sum.
                rows[j] = Chunk<W>{inside ? chunk.count : 0}.load(dout.at(inside ? tokens[p + j] : 0, col));
            }
#pragma unroll
            for (int j = 0; j < kAhead; ++j) {
#pragma unroll
                for (int i = 0; i < W; ++i) sum[i] += rows[j][i];
            }
        }
        chunk.store(dtable.at(id, col), sum);
    }
}

}  // namespace

void CudaOps::embedding_forward(Tensor out, Tensor index, Tensor table, Tensor position,
                                Tensor position_table, Stream& stream) {
    const int64_t rows = out.rows(), cols = out.cols();
    expect(index, DType::i32, {rows}, "embedding index");
    expect(table, out.dtype, {table.rows(), cols}, "embedding table");
    if (position_table.present()) {
        expect(position, DType::i32, {rows}, "embedding position");
        expect(position_table, out.dtype, {position_table.rows(), cols}, "embedding position_table");
    }
    cuda::with_real(out.dtype, [&]<class Real>() {
        const bool positions = position_table.present();
        const Lookup<Real> body{Rows<Real>(out),
                                Rows<Real>(table),
                                Rows<Real>(position_table),
                                index.as<int32_t>(),
                                positions ? position.as<int32_t>() : nullptr,
                                table.rows(),
                                position_table.rows()};
        const bool aligned = aligned_rows(kVectorWidth<Real>, {out, table, position_table});
        cuda::with_width<Real>(aligned, [&]<int W>() { map<W>({rows, cols}, body, stream); });
    });
}

void CudaOps::embedding_backward(Tensor dtable, Tensor index, Tensor dout, bool accumulate, Stream& stream) {
    const int64_t rows = dout.rows(), cols = dout.cols(), limit = dtable.rows();
    expect(index, DType::i32, {rows}, "embedding index");
    expect(dtable, DType::f32, {limit, cols}, "embedding dtable");
    if (limit > 0x7ffffffe || rows > 0x7fffffff)
        throw_internal("embedding: {} rows are too many", std::max(limit, rows));
    if (!accumulate) {
        cuda::with_width<float>(aligned_rows(4, {dtable}), [&]<int W>() {
            map<W>(map_shape({dtable}), Zero{Rows<float>(dtable)}, stream);
        });
    }
    if (rows == 0 || cols == 0) return;

    // Workspace, i32: keys and tokens of one pass and of the next, [4][T]; then counts.
    const int64_t num_tiles = (rows + tiles::kSortTile - 1) / tiles::kSortTile;
    auto* const scratch = static_cast<int32_t*>(workspace(stream, (4 * rows + kDigits * num_tiles) * 4));
    int32_t* const counts = scratch + 4 * rows;
    Pairs from{index.as<int32_t>(), nullptr, static_cast<int32_t>(limit)};
    const int bits = std::bit_width(static_cast<uint64_t>(limit));
    int which = 0;
    for (int shift = 0; shift < bits; shift += tiles::kSortDigitBits) {
        int32_t* const keys = scratch + which * 2 * rows;
        int32_t* const tokens = keys + rows;
        const unsigned blocks = static_cast<unsigned>(num_tiles);
        launch(sort_count_kernel, blocks, tiles::kSortThreads, tiles::kSortTile * 4, stream, counts, from,
               rows, shift);
        launch(sort_scan_kernel, 1, tiles::kSortThreads, kDigits * 4, stream, counts, num_tiles);
        launch(sort_place_kernel, blocks, tiles::kSortThreads, tiles::kSortTile * 4, stream, keys, tokens,
               counts, from, rows, shift);
        from.keys = keys;
        from.tokens = tokens;
        which ^= 1;
    }
    cuda::with_real(dout.dtype, [&]<class Real>() {
        cuda::with_width<Real>(aligned_rows(kVectorWidth<Real>, {dtable, dout}), [&]<int W>() {
            launch(embedding_sum_kernel<Real, W>, grid_of(rows, 1), tiles::kEmbeddingThreads, 0, stream,
                   Rows<float>(dtable), Rows<Real>(dout), from.keys, from.tokens, rows,
                   static_cast<int32_t>(limit), cols);
        });
    });
}

}  // namespace speedrun
