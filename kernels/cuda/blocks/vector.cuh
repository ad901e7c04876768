// Vectors of up to 16 bytes: a thread handles W adjacent elements of a row, and the last ones of a row one by
// one. W is 1 if a pointer or a row stride is not aligned. `map` is the kernel of all elementwise operations.
//
// Legend: W elements of a chunk · row, col of its first element · Body: a functor of the operation.
#pragma once

#include <initializer_list>

#include "kernels/cuda/blocks/kernel_sizes.h"
#include "kernels/cuda/blocks/launch.h"

namespace speedrun {

template <int W>
struct Vector {
    float v[W];
    __device__ __forceinline__ float& operator[](int i) { return v[i]; }
    __device__ __forceinline__ const float& operator[](int i) const { return v[i]; }
};

// 32-bit words loaded or stored together.
template <int Words>
struct WordsOf;
template <>
struct WordsOf<1> {
    using Type = unsigned;
};
template <>
struct WordsOf<2> {
    using Type = uint2;
};
template <>
struct WordsOf<4> {
    using Type = uint4;
};

// Fails in the executor on a misaligned address: a GPU faults there, the host does not.
template <int kBytes>
__device__ __forceinline__ void expect_aligned([[maybe_unused]] const void* p) {
#if SPEEDRUN_SIMT
    if (reinterpret_cast<uintptr_t>(p) % kBytes != 0) {
        simt::fail("a vector is not aligned to its size", simt::Where::current());
    }
#endif
}

// W elements in storage format. Loads under a condition should use it: a conversion would turn the predicate
// into a branch.
template <int W, class Real>
struct Packed {
    static constexpr int kBytes = W * static_cast<int>(sizeof(Real)), kPart = kBytes < 16 ? kBytes : 16;
    using Word = typename WordsOf<kPart / 4>::Type;
    union {
        Word words[kBytes / kPart];
        unsigned bits[kBytes / 4];
    };
};
template <class Real>
struct Packed<1, Real> {
    Real element;
};

// W elements at an address aligned to their size, up to 16 bytes.
template <int W, class Real>
__device__ __forceinline__ Packed<W, Real> load_packed(const Real* p) {
    Packed<W, Real> result;
    if constexpr (W == 1) {
        result.element = *p;
    } else {
        using Word = typename Packed<W, Real>::Word;
        constexpr int kPart = Packed<W, Real>::kPart;
        expect_aligned<kPart>(p);
#pragma unroll
        for (int i = 0; i < Packed<W, Real>::kBytes / kPart; ++i)
            result.words[i] = load_word(reinterpret_cast<const Word*>(p) + i);
    }
    return result;
}
template <int W, class Real>
__device__ __forceinline__ Vector<W> unpack(const Packed<W, Real>& packed) {
    Vector<W> result;
    if constexpr (W == 1) {
        result[0] = to_float(packed.element);
    } else {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            if constexpr (sizeof(Real) == 4) {
                result[i] = __uint_as_float(packed.bits[i]);
            } else {
                const unsigned pair = packed.bits[i / 2];
                result[i] = __uint_as_float(i % 2 ? pair & 0xffff0000u : pair << 16);
            }
        }
    }
    return result;
}
template <int W, class Real>
__device__ __forceinline__ Vector<W> load_vector(const Real* p) {
    return unpack(load_packed<W>(p));
}

template <class Real, int W>
__device__ __forceinline__ Packed<W, Real> pack(const Vector<W>& x) {
    Packed<W, Real> result;
    if constexpr (W == 1) {
        result.element = from_float<Real>(x[0]);
    } else if constexpr (sizeof(Real) == 4) {
#pragma unroll
        for (int i = 0; i < W; ++i) result.bits[i] = __float_as_uint(x[i]);
    } else {
#pragma unroll
        for (int i = 0; i < W / 2; ++i) {
            result.bits[i] = static_cast<unsigned>(from_float<Real>(x[2 * i]).bits) |
                             static_cast<unsigned>(from_float<Real>(x[2 * i + 1]).bits) << 16;
        }
    }
    return result;
}
template <int W, class Real>
__device__ __forceinline__ void store_vector(Real* p, const Vector<W>& x) {
    const Packed<W, Real> packed = pack<Real>(x);
    if constexpr (W == 1) {
        *p = packed.element;
    } else {
        using Word = typename Packed<W, Real>::Word;
        constexpr int kPart = Packed<W, Real>::kPart;
        expect_aligned<kPart>(p);
#pragma unroll
        for (int i = 0; i < Packed<W, Real>::kBytes / kPart; ++i)
            store_word(reinterpret_cast<Word*>(p) + i, packed.words[i]);
    }
}

// W positions of a row; the first `count` exist.
template <int W>
struct Chunk {
    int count;

    // Missing elements are 0.
    template <class Real>
    __device__ __forceinline__ Vector<W> load(const Real* p) const {
        if (count == W) return load_vector<W>(p);
        Vector<W> result;
#pragma unroll
        for (int i = 0; i < W; ++i) result[i] = i < count ? to_float(p[i]) : 0.0f;
        return result;
    }
    // Loads without conversion, for kernels that load a whole row before they convert any of it.
    template <class Real>
    __device__ __forceinline__ Packed<W, Real> load_packed(const Real* p) const {
        return count == W ? speedrun::load_packed<W>(p) : pack<Real>(load(p));
    }
    template <class Real>
    __device__ __forceinline__ void store(Real* p, const Vector<W>& x) const {
        if (count == W) return store_vector<W>(p, x);
#pragma unroll
        for (int i = 0; i < W; ++i) {
            if (i < count) p[i] = from_float<Real>(x[i]);
        }
    }
};

// A matrix with a row stride.
template <class Real>
struct Rows {
    Real* data;
    int64_t stride;

    Rows() = default;
    explicit Rows(const Tensor& tensor) : data(static_cast<Real*>(tensor.data)), stride(tensor.row_stride) {}
    __device__ __forceinline__ Real* at(int64_t row, int64_t col = 0) const {
        return data + row * stride + col;
    }
};

// ---- on the host

template <class Real>
constexpr int kVectorWidth = 16 / static_cast<int>(sizeof(Real));

// True if rows of these tensors can be read and written W elements at a time.
inline bool aligned_rows(int width, std::initializer_list<Tensor> tensors) {
    for (const Tensor& tensor : tensors) {
        if (!tensor.present()) continue;
        const int64_t bytes = std::min<int64_t>(16, width * size_of(tensor.dtype));
        if (reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(bytes) != 0) return false;
        if (tensor.rows() > 1 && tensor.row_stride * size_of(tensor.dtype) % bytes != 0) return false;
    }
    return true;
}

// Rows and columns of an elementwise operation; contiguous tensors form one long row.
struct MapShape {
    int64_t rows, cols;
};
inline MapShape map_shape(std::initializer_list<Tensor> tensors) {
    const Tensor& first = *tensors.begin();
    for (const Tensor& tensor : tensors) {
        if (!tensor.contiguous()) return {first.rows(), first.cols()};
    }
    return {1, first.numel()};
}

inline unsigned grid_of(int64_t items, int64_t per_block) {
    const int64_t blocks = (items + per_block - 1) / per_block;
    if (blocks > 0x7fffffff) throw_internal("a launch of {} blocks is too large", blocks);
    return static_cast<unsigned>(blocks);
}

// Calls body(row, col, chunk) for every chunk. The functor is copied into the kernel's arguments.
template <int W, class Body>
__global__ void __launch_bounds__(sizes::kMapThreads) map_kernel(MapShape shape, int64_t chunks, Body body) {
    wait_for_prior_kernels();
    const int64_t item = int64_t{blockIdx.x} * sizes::kMapThreads + threadIdx.x;
    if (item >= shape.rows * chunks) return;
    int64_t row = 0, chunk = item;
    if (shape.rows > 1) {
        if (shape.rows * chunks <= 0xffffffffll) {  // a 64-bit division costs as much as a whole kernel
            row = static_cast<unsigned>(item) / static_cast<unsigned>(chunks);
        } else {
            row = item / chunks;
        }
        chunk = item - row * chunks;
    }
    const int64_t col = chunk * W, left = shape.cols - col;
    body(row, col, Chunk<W>{left < W ? static_cast<int>(left) : W});
}

template <int W, class Body>
void map(MapShape shape, Body body, LaunchSite site) {
    const int64_t chunks = (shape.cols + W - 1) / W;
    if (shape.rows * chunks == 0) return;
    launch(map_kernel<W, Body>, grid_of(shape.rows * chunks, sizes::kMapThreads), sizes::kMapThreads, 0, site,
           shape, chunks, body);
}

}  // namespace speedrun
