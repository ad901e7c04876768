// Embedding lookup, and its gradient without floating-point atomics. Tokens are sorted by id (sort_ids.cu),
// and one block per 16 sorted tokens adds the runs that start among them, each in order. Long runs of frequent
// tokens are split: segments of 64 sorted tokens with one id are summed first, one block each, and enter their
// run as partial sums. So a block adds less than two segments of rows, and at most T/64 partial sums. The order
// of each sum depends on the ids alone.
//
// Roofline bound, real of b bytes: forward 2·T·C·b (3 with positions; signs T·C/8 more, from a table in L2).
// Backward T·C·b read + 8·C bytes per distinct id, and 8·C per whole segment; without accumulation 4·V·C more
// for the rows without tokens. Legend: T tokens, C columns, V rows of the table · key = id, or V if it is
// outside the table or another rank has the row (such tokens are sorted last and skipped) · W elements of a
// chunk.
#include <algorithm>

#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace speedrun {

namespace embedding_cu {
namespace {

// Signs to flip in a token's row. Without kSigned it is empty, and no sign changes.
template <bool kSigned>
struct Signs {
    explicit Signs(const op::RowSigns& /*signs*/) {}
    __device__ __forceinline__ bool has(int64_t /*token*/) const { return true; }
    __device__ __forceinline__ unsigned bits_of(int64_t /*token*/, int64_t /*col*/) const { return 0; }
};
template <>
struct Signs<true> {
    Rows<const unsigned> bits;
    const int32_t* row;
    int64_t rows;

    explicit Signs(const op::RowSigns& signs)
        : bits(signs.bits), row(signs.row.as<int32_t>()), rows(signs.bits.rows()) {}
    __device__ __forceinline__ bool has(int64_t token) const { return row[token] >= 0 && row[token] < rows; }
    // Sign bits of the columns from `col` on, lowest bit first; 0 for a token without a row.
    __device__ __forceinline__ unsigned bits_of(int64_t token, int64_t col) const {
        return has(token) ? *bits.at(row[token], col / 32) >> (col % 32) : 0;
    }
};

template <int W>
__device__ __forceinline__ void flip_signs(Vector<W>& v, unsigned bits) {
#pragma unroll
    for (int i = 0; i < W; ++i) v[i] = __uint_as_float(__float_as_uint(v[i]) ^ ((bits >> i & 1u) << 31));
}

template <class Real, bool kSigned>
struct Lookup {
    Rows<Real> out, table, position_table;
    const int32_t *index, *position;  // position: null without position_table
    int64_t table_rows, position_rows;
    bool others;  // id == table rows marks a row of another rank
    Signs<kSigned> signs;

    template <int W>
    __device__ __forceinline__ void operator()(int64_t row, int64_t col, Chunk<W> chunk) const {
        const int64_t id = index[row], place = position ? position[row] : 0;
        Vector<W> v;
        if (id < 0 || id >= table_rows + (others ? 1 : 0) || !signs.has(row) ||
            (position && (place < 0 || place >= position_rows))) {
#pragma unroll
            for (int i = 0; i < W; ++i) v[i] = quiet_nan();
        } else {
            if (id < table_rows) {
                v = chunk.load(table.at(id, col));
                if constexpr (kSigned) flip_signs(v, signs.bits_of(row, col));
            } else {
#pragma unroll
                for (int i = 0; i < W; ++i) v[i] = 0.0f;
            }
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

// Tokens in order of their ids.
struct Sorted {
    const int32_t *keys, *tokens;
    int64_t count;
};

// Rows, and the signs to read them with.
template <class Real, bool kSigned>
struct Signed {
    Rows<Real> rows;
    Signs<kSigned> signs;
};

constexpr int kAhead = sizes::kEmbeddingAhead;
constexpr int64_t kSegment = sizes::kEmbeddingSegment;
constexpr int64_t kPlaces = sizes::kEmbeddingPlaces;
static_assert(kSegment % kPlaces == 0 && kPlaces % kAhead == 0, "a segment is whole rounds of loads");

// sum += the rows of dout, with their signs, at sorted places [from, to), in order, up to the first row of
// another id. kWhole: there is no other id, and the range is whole rounds. The loads of a round have no
// branch between them, so that all of them are in flight together.
template <bool kWhole, class Real, int W, bool kSigned>
__device__ __forceinline__ void add_rows(Vector<W>& sum, const Signed<Real, kSigned>& dout, int64_t col,
                                         const Sorted& sorted, int32_t id, int64_t from, int64_t to) {
    for (int64_t p = from; p < to && (kWhole || sorted.keys[p] == id); p += kAhead) {
        bool inside[kAhead];
        int32_t token[kAhead];
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            const bool exists = kWhole || j == 0 || p + j < to;
            const int64_t place = exists ? p + j : p;
            inside[j] = exists && (kWhole || j == 0 || sorted.keys[place] == id);
            token[j] = sorted.tokens[place];
        }
        Vector<W> rows[kAhead] = {};  // adding 0 can only change the sign of a zero sum
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            if (inside[j]) rows[j] = load_vector<W>(dout.rows.at(token[j], col));
        }
        if constexpr (kSigned) {
            unsigned bits[kAhead];
#pragma unroll
            for (int j = 0; j < kAhead; ++j) bits[j] = dout.signs.bits_of(token[j], col);
#pragma unroll
            for (int j = 0; j < kAhead; ++j) flip_signs(rows[j], bits[j]);
        }
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
#pragma unroll
            for (int i = 0; i < W; ++i) sum[i] += rows[j][i];
        }
    }
}

// Block s: if the sorted tokens of segment s have one id, partial[s] = Σ of their rows, in order.
template <class Real, int W, bool kSigned>
__global__ void __launch_bounds__(sizes::kEmbeddingThreads)
    embedding_segment_kernel(Rows<float> partial, Signed<Real, kSigned> dout, Sorted sorted, int32_t limit,
                             int64_t cols) {
    wait_for_prior_kernels();
    const int64_t segment = blockIdx.x, begin = segment * kSegment, end = begin + kSegment;
    const int32_t id = sorted.keys[begin];
    if (id >= limit || sorted.keys[end - 1] != id) return;
    for (int64_t col = int64_t{threadIdx.x} * W; col < cols; col += blockDim.x * W) {
        Vector<W> sum = {};
        add_rows<true>(sum, dout, col, sorted, id, begin, end);
        store_vector(partial.at(segment, col), sum);
    }
}

// sum += the rest of a run of `id`, from place `from` on, a multiple of kPlaces: rows before the first whole
// segment, partial sums of the whole segments, rows after.
template <class Real, int W, bool kSigned>
__device__ __forceinline__ void add_rest(Vector<W>& sum, const Signed<Real, kSigned>& dout,
                                         Rows<float> partial, int64_t col, const Sorted& sorted, int32_t id,
                                         int64_t from) {
    int64_t place = (from + kSegment - 1) / kSegment * kSegment;
    const auto is_whole = [&](int64_t at) {  // segment at this place, not before the begin of the run
        return at + kSegment <= sorted.count && sorted.keys[at + kSegment - 1] == id;
    };
    add_rows<false>(sum, dout, col, sorted, id, from, min(place, sorted.count));
    while (is_whole(place)) {
        bool whole[kAhead];
#pragma unroll
        for (int j = 0; j < kAhead; ++j) whole[j] = is_whole(place + j * kSegment);
        Vector<W> sums[kAhead] = {};
        const int64_t first = place / kSegment;
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            if (whole[j]) sums[j] = load_vector<W>(partial.at(first + j, col));
        }
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
            if (whole[j]) place += kSegment;
#pragma unroll
            for (int i = 0; i < W; ++i) sum[i] += sums[j][i];
        }
    }
    add_rows<false>(sum, dout, col, sorted, id, place, min(place + kSegment, sorted.count));
}

// Block b adds the runs that start at its kPlaces places to their rows of dtable, each in order. The loads of
// kAhead places, of rows and of the table, are in flight together whatever the runs.
template <class Real, int W, bool kSigned>
__global__ void __launch_bounds__(sizes::kEmbeddingThreads, 2)
    embedding_sum_kernel(Rows<float> dtable, Signed<Real, kSigned> dout, Rows<float> partial, Sorted sorted,
                         int32_t limit, int64_t cols) {
    wait_for_prior_kernels();
    const int64_t first = int64_t{blockIdx.x} * kPlaces, end = min(first + kPlaces, sorted.count),
                  segment = first / kSegment * kSegment;
    const int32_t front = sorted.keys[first], before = first > 0 ? sorted.keys[first - 1] : -1;
    // A whole segment is added by the block in which its run starts.
    const bool in_whole =
        segment + kSegment <= sorted.count && sorted.keys[segment] == sorted.keys[segment + kSegment - 1];
    if (front >= limit || (in_whole && (first > segment || before == front))) return;
    for (int64_t col = int64_t{threadIdx.x} * W; col < cols; col += blockDim.x * W) {
        Vector<W> sum = {};
        int32_t id = before;   // at the previous place
        bool started = false;  // the run of `id` starts in this block
        if (in_whole) {
            sum = load_vector<W>(dtable.at(front, col));
            add_rest(sum, dout, partial, col, sorted, front, first);
            store_vector(dtable.at(front, col), sum);
            continue;
        }
        for (int64_t p = first; p < end; p += kAhead) {
            int32_t key[kAhead + 1], token[kAhead];
            bool starts[kAhead], added[kAhead];
#pragma unroll
            for (int j = 0; j <= kAhead; ++j) key[j] = p + j < sorted.count ? sorted.keys[p + j] : limit;
#pragma unroll
            for (int j = 0; j < kAhead; ++j) {
                token[j] = sorted.tokens[p + j < sorted.count ? p + j : p];
                starts[j] = key[j] != (j > 0 ? key[j - 1] : id) && key[j] < limit;
                added[j] = starts[j] || (started && key[j] < limit);
                started = added[j];
            }
            id = key[kAhead - 1];
            Vector<W> rows[kAhead] = {}, table[kAhead] = {};
#pragma unroll
            for (int j = 0; j < kAhead; ++j) {
                if (added[j]) rows[j] = load_vector<W>(dout.rows.at(token[j], col));
            }
#pragma unroll
            for (int j = 0; j < kAhead; ++j) {
                if (starts[j]) table[j] = load_vector<W>(dtable.at(key[j], col));
            }
            if constexpr (kSigned) {
#pragma unroll
                for (int j = 0; j < kAhead; ++j) flip_signs(rows[j], dout.signs.bits_of(token[j], col));
            }
#pragma unroll
            for (int j = 0; j < kAhead; ++j) {
                if (starts[j]) sum = table[j];
                if (!added[j]) continue;
#pragma unroll
                for (int i = 0; i < W; ++i) sum[i] += rows[j][i];
                if (key[j + 1] == key[j] && (j + 1 < kAhead || p + kAhead < end)) continue;
                if (key[j + 1] == key[j]) add_rest(sum, dout, partial, col, sorted, key[j], end);
                store_vector(dtable.at(key[j], col), sum);
            }
        }
    }
}

// Calls body.operator()<kSigned>(); kSigned: there are signs.
template <class Body>
void with_signs(const op::RowSigns& signs, Body&& body) {
    signs.present() ? body.template operator()<true>() : body.template operator()<false>();
}

}  // namespace
}  // namespace embedding_cu

void CudaOps::enqueue(const op::EmbeddingForward& a, Stream& stream) {
    using namespace embedding_cu;
    const int64_t rows = a.out.rows(), cols = a.out.cols();
    cuda::with_real(a.out.dtype, [&]<class Real>() {
        const bool positions = a.position_table.present();
        const bool aligned = aligned_rows(kVectorWidth<Real>, {a.out, a.table, a.position_table});
        with_signs(a.signs, [&]<bool kSigned>() {
            const Lookup<Real, kSigned> body{Rows<Real>(a.out),
                                             Rows<Real>(a.table),
                                             Rows<Real>(a.position_table),
                                             a.index.as<int32_t>(),
                                             positions ? a.position.as<int32_t>() : nullptr,
                                             a.table.rows(),
                                             a.position_table.rows(),
                                             a.others,
                                             Signs<kSigned>(a.signs)};
            cuda::with_width<Real>(aligned, [&]<int W>() { map<W>({rows, cols}, body, stream); });
        });
    });
}

void CudaOps::enqueue(const op::EmbeddingBackward& a, Stream& stream) {
    using namespace embedding_cu;
    const int64_t rows = a.dout.rows(), cols = a.dout.cols(), limit = a.dtable.rows();
    if (limit > 0x7fffffff) throw_internal("embedding: {} rows are too many", limit);
    if (!a.accumulate) {
        cuda::with_width<float>(aligned_rows(4, {a.dtable}), [&]<int W>() {
            map<W>(map_shape({a.dtable}), Zero{Rows<float>(a.dtable)}, stream);
        });
    }
    if (rows == 0 || cols == 0) return;

    const int64_t segments = rows / kSegment;
    Rows<float> partial;  // [segments][C]
    partial.stride = cols;
    partial.data = static_cast<float*>(workspace(stream, segments * partial.stride * int64_t{sizeof(float)}));
    const Sorted sorted{a.order.as<int32_t>(), a.order.as<int32_t>() + rows, rows};
    // Four elements per thread for any type: f32 rows are then stored in whole sectors.
    cuda::with_real(a.dout.dtype, [&]<class Real>() {
        cuda::with_width<float>(cols % 4 == 0 && aligned_rows(4, {a.dtable, a.dout}), [&]<int W>() {
            const int64_t warps = (cols + sizes::kWarp * W - 1) / (sizes::kWarp * W);
            const auto threads =
                static_cast<unsigned>(std::min<int64_t>(warps * sizes::kWarp, sizes::kEmbeddingThreads));
            with_signs(a.signs, [&]<bool kSigned>() {
                const Signed<Real, kSigned> dout{Rows<Real>(a.dout), Signs<kSigned>(a.signs)};
                if (segments > 0) {
                    launch(embedding_segment_kernel<Real, W, kSigned>, grid_of(segments, 1), threads, 0,
                           stream, partial, dout, sorted, static_cast<int32_t>(limit), cols);
                }
                launch(embedding_sum_kernel<Real, W, kSigned>, grid_of(rows, kPlaces), threads, 0, stream,
                       Rows<float>(a.dtable), dout, partial, sorted, static_cast<int32_t>(limit), cols);
            });
        });
    });
}

}  // namespace speedrun
