// Rows of the loss kernels: their chunks, their targets, and the destination of their gradients.
//
// Gradients are stored without regard to targets. The thread that has stored a target's chunk then stores the
// target's element again: the loops over a row have no branch for targets.
// Legend: W elements of a chunk · z a logit · full: chunks of valid columns alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/blocks/ptx.h"
#include "kernels/cuda/blocks/reduce.cuh"
#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/ops/loss.h"

namespace speedrun::loss {

// Chunks of a row. `cached` is a multiple of the block's threads, or all full ones.
struct RowChunks {
    int cached, full, all;

    // Thread that stores the gradients of a chunk.
    __device__ __forceinline__ int owner(int chunk) const {
        return (chunk < full ? chunk : chunk - full) % static_cast<int>(blockDim.x);
    }
};

// A whole chunk. Indexed by chunks, its address takes one instruction.
template <int W, class Real>
__device__ __forceinline__ Packed<W, Real> load_chunk(const Real* row, int chunk) {
    return load_packed<W>(
        reinterpret_cast<const Real*>(reinterpret_cast<const Packed<W, Real>*>(row) + chunk));
}

// Elements of a chunk among the first `columns`.
template <int W>
__device__ __forceinline__ int count_of(int chunk, int64_t columns) {
    return static_cast<int>(max(int64_t{0}, min(int64_t{W}, columns - int64_t{chunk} * W)));
}

// Targets of a row: the sum of their weights, and a bit for each target whose chunk this thread stores.
struct Counted {
    float weight = 0.0f;
    uint32_t stored_here = 0;
    bool valid = true, counts = false;
};

// A target in these columns, of the thread whose index is its number; otherwise weight 0. value: as Cap::values.
struct OwnTarget {
    float value = 0.0f, weight = 0.0f;
};

// Targets of the rows, over all parts of the vocabulary, and the columns of this part.
struct Targets {
    static constexpr int64_t kSharedBytes = op::CrossEntropy::kMaxTargets * int64_t{sizeof(float)};

    const int32_t* ids;
    int64_t stride;        // stride between targets of a row
    const float* weights;  // null: one target
    int count;
    int64_t first, vocab, whole_vocab;

    template <class Operation>
    Targets(const Operation& a, int64_t first_, int64_t whole_vocab_)
        : ids(a.targets.template as<int32_t>()),
          stride(a.weights.present() ? a.targets.row_stride : 0),
          weights(a.weights.present() ? a.weights.template as<float>() : nullptr),
          count(a.weights.present() ? static_cast<int>(a.weights.numel()) : 1),
          first(first_),
          vocab(a.vocab_size),
          whole_vocab(whole_vocab_) {}

    __device__ __forceinline__ int32_t id(int k, int64_t row) const { return ids[k * stride + row]; }
    __device__ __forceinline__ float weight(int k) const { return weights ? weights[k] : 1.0f; }
    // Column of an id; −1 if it is in another part.
    __device__ __forceinline__ int column(int32_t id) const {
        const int64_t at = id - first;
        return id >= 0 && at >= 0 && at < vocab ? static_cast<int>(at) : -1;
    }
    template <int W>
    __device__ __forceinline__ Counted counted(int64_t row, const RowChunks& chunks) const {
        Counted all;
        for (int k = 0; k < count; ++k) {
            const int32_t of_row = id(k, row);
            all.valid = all.valid && of_row >= -1 && of_row < whole_vocab;
            if (of_row < 0) continue;
            all.counts = true;
            all.weight += weight(k);
            const int at = column(of_row);
            if (at >= 0 && chunks.owner(at / W) == static_cast<int>(threadIdx.x)) all.stored_here |= 1u << k;
        }
        return all;
    }
    // value_of(column): value of the target in this column.
    template <class Value>
    __device__ __forceinline__ OwnTarget own(int64_t row, Value&& value_of) const {
        const int k = static_cast<int>(threadIdx.x);
        const int at = k < count ? column(id(k, row)) : -1;
        return at < 0 ? OwnTarget{} : OwnTarget{value_of(at), weight(k)};
    }

    // Values of targets, in shared memory.
    static __device__ __forceinline__ auto kept(int64_t offset) {
        return shared_memory<float>(offset, op::CrossEntropy::kMaxTargets);
    }
    // Keeps the values of the targets in `all`, since dlogits may alias logits. Only this thread accesses them.
    template <class Value>
    __device__ __forceinline__ void keep(const Counted& all, int64_t row, int64_t offset,
                                         Value&& value_of) const {
        for (int k = 0; k < count && all.stored_here != 0; ++k)
            if ((all.stored_here >> k & 1u) != 0) kept(offset)[k] = value_of(column(id(k, row)));
    }
    // Stores the gradients of the targets in `all`: gradient(value, weight) with the weight of all targets that are equal to it.
    template <class Row, class Gradient>
    __device__ __forceinline__ void store(const Counted& all, int64_t row, const Row& out, int64_t offset,
                                          Gradient&& gradient) const {
        for (int k = 0; k < count && all.stored_here != 0; ++k) {
            if ((all.stored_here >> k & 1u) == 0) continue;
            const int32_t own = id(k, row);
            float of_own = 0.0f;
            for (int j = 0; j < count; ++j) of_own += id(j, row) == own ? weight(j) : 0.0f;
            out.store_one(column(own), gradient(kept(offset)[k], of_own));
        }
    }
};

// Destination of a row's gradients. Their type is that of the logits; E5m2: rounded to that type, multiplied
// by 1/scale, then rounded to FP8.
template <class Real, class Out>
struct GradientRow {
    Out* out;
    float inverse;

    // Stores W elements from `col` on, or the first `count` of them. FP8: always all W.
    template <int W>
    __device__ __forceinline__ void store(int64_t col, int count, const Packed<W, Real>& d) const {
        if constexpr (std::is_same_v<Out, E5m2>) {
            const Vector<W> x = unpack(d);
            Packed<W, E5m2> packed;
#pragma unroll
            for (int i = 0; i < W; i += 4)
                packed.bits[i / 4] = ptx::pack_fp8<E5m2>(x[i] * inverse, x[i + 1] * inverse,
                                                         x[i + 2] * inverse, x[i + 3] * inverse);
            expect_aligned<W>(out + col);
            store_word(reinterpret_cast<typename Packed<W, E5m2>::Word*>(out + col), packed.words[0]);
        } else if constexpr (W == 1) {
            out[col] = d.element;
        } else if (count == W) {
            expect_aligned<16>(out + col);
            store_word(reinterpret_cast<typename Packed<W, Real>::Word*>(out + col), d.words[0]);
        } else {
            Chunk<W>{count}.store(out + col, unpack(d));
        }
    }
    __device__ __forceinline__ void store_one(int64_t col, float d) const {
        if constexpr (std::is_same_v<Out, E5m2>) {
            const float x = to_float(from_float<Real>(d)) * inverse;
            const uint32_t byte = ptx::pack_fp8<E5m2>(x, x, x, x) & 0xffu, shift = 8 * (col % 4);
            auto* const word =
                reinterpret_cast<uint32_t*>(out + col / 4 * 4);  // written before by this thread
            *word = (*word & ~(0xffu << shift)) | byte << shift;
        } else {
            out[col] = from_float<Real>(d);
        }
    }
};
template <class Real, class Out>
struct Gradients {
    Rows<Out> rows;
    const float* scale;  // FP8 only; 0 gives zeros
    int64_t padded;      // columns

    template <class Operation>
    explicit Gradients(const Operation& a)
        : rows(a.dlogits),
          scale(a.scale.template as<float>()),
          padded(a.dlogits.present() ? a.dlogits.cols() : 0) {}
    __device__ __forceinline__ GradientRow<Real, Out> row(int64_t row) const {
        float inverse = 1.0f;
        if constexpr (std::is_same_v<Out, E5m2>) inverse = *scale == 0.0f ? 0.0f : 1.0f / *scale;
        return {rows.at(row), inverse};
    }
    // Zeros from chunk `begin` on.
    template <int W>
    __device__ __forceinline__ void clear(int64_t of_row, int begin, const RowChunks& chunks) const {
        const GradientRow<Real, Out> out = row(of_row);
        for (int chunk = begin + static_cast<int>(threadIdx.x); chunk < chunks.all;
             chunk += static_cast<int>(blockDim.x))
            out.store(int64_t{chunk} * W, count_of<W>(chunk, padded), pack<Real>(Vector<W>{}));
    }
};

// Calls body.template operator()<Out, W>() with the type of dlogits and the elements per access. FP8 rows are
// always aligned.
template <class Real, class Operation, class Body>
void with_gradients(const Operation& a, Body&& body) {
    constexpr int kWidth = kVectorWidth<Real>;
    if (a.scale.present()) return body.template operator()<E5m2, kWidth>();
    if (aligned_rows(kWidth, {a.dlogits, a.logits})) return body.template operator()<Real, kWidth>();
    body.template operator()<Real, 1>();
}

}  // namespace speedrun::loss
