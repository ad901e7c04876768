// All inline PTX except wgmma.h: tensor-core matmuls, conversions, matrix loads from shared memory,
// asynchronous copies into it, vector stores. Each function has a twin for the host executor (tests/simt)
// that follows the fragment layouts of the PTX ISA ("Matrix fragments for mma.m16n8k16" and "ldmatrix"). So a
// wrong index in a kernel gives a wrong result there too. Non-goal: TMA.
//
// Legend: lane 0…31 of a warp · g = lane / 4 · t = lane % 4. All functions with "warp" are called by all 32
// lanes together; blocks are one-dimensional.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/cuda/blocks/launch.h"
#include "kernels/device/dtype.h"

namespace speedrun::ptx {

__device__ inline int lane_id() {
    return static_cast<int>(threadIdx.x) & 31;
}

#if SPEEDRUN_SIMT

inline float half_of(uint32_t pair, int index) {
    return std::bit_cast<float>(index ? pair & 0xffff0000u : pair << 16);
}

inline uint32_t pack_bf16(float low, float high) {
    return static_cast<uint32_t>(Bf16(high).bits) << 16 | Bf16(low).bits;
}

inline float exp2_approx(float x) {
    return std::exp2(x);
}

inline float reciprocal_approx(float x) {
    return 1.0f / x;
}

inline float sqrt_approx(float x) {
    return std::sqrt(x);
}

inline uint32_t larger_bf16(uint32_t a, uint32_t b) {
    const auto larger = [&](int i) { return half_of(a, i) > half_of(b, i) ? half_of(a, i) : half_of(b, i); };
    return pack_bf16(larger(0), larger(1));
}
inline uint32_t multiply_bf16(uint32_t a, uint32_t b) {
    return pack_bf16(half_of(a, 0) * half_of(b, 0), half_of(a, 1) * half_of(b, 1));
}
inline uint32_t larger_halves(uint32_t a, uint32_t b) {
    constexpr uint32_t kLow = 0xffffu;
    return std::max(a & ~kLow, b & ~kLow) | std::max(a & kLow, b & kLow);
}

inline void store_global(uint4* to, const uint4& word) {
    store_word(to, word);
}

inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    struct Registers {
        uint32_t a[4], b[2];
    };
    struct Sums {
        float c[4];
    };
    const auto multiply = [&](auto&& of) {
        const int g = lane_id() / 4, t = lane_id() % 4;
        float a_rows[2][16], b_columns[2][16];  // rows and columns that this lane's sums read
        for (int holder = 0; holder < 4; ++holder) {
            const Registers row = of(4 * g + holder),
                            columns[] = {of(8 * t + holder), of(8 * t + 4 + holder)};
            for (int i = 0; i < 2; ++i) {
                for (int upper = 0; upper < 2; ++upper) {
                    for (int half = 0; half < 2; ++half) {
                        const int k = 8 * upper + 2 * holder + half;
                        a_rows[i][k] = half_of(row.a[2 * upper + i], half);
                        b_columns[i][k] = half_of(columns[i].b[upper], half);
                    }
                }
            }
        }
        Sums sums{{c[0], c[1], c[2], c[3]}};
        for (int k = 0; k < 16; ++k) {
            for (int i = 0; i < 4; ++i) sums.c[i] += a_rows[i / 2][k] * b_columns[i % 2][k];
        }
        return sums;
    };
    simt::count_mma();
    const Sums sums = simt::exchange(~0u, Registers{{a[0], a[1], a[2], a[3]}, {b0, b1}}, multiply);
    std::copy_n(sums.c, 4, c);
}

// Table of the 256 values of an FP8 type.
template <class Fp8>
inline const std::array<float, 256> kNumbersOf = [] {
    std::array<float, 256> all{};
    for (unsigned bits = 0; bits < all.size(); ++bits) {
        Fp8 number;
        number.bits = static_cast<uint8_t>(bits);
        all[bits] = number;
    }
    return all;
}();

template <class A, class B>
void mma_fp8(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    struct Registers {
        uint32_t a[4], b[2];
    };
    struct Sums {
        float c[4];
    };
    simt::count_mma();
    const Sums sums = simt::exchange(~0u, Registers{{a[0], a[1], a[2], a[3]}, {b0, b1}}, [&](auto&& of) {
        const int g = lane_id() / 4, t = lane_id() % 4;
        float a_rows[2][32], b_columns[2][32];
        for (int holder = 0; holder < 4; ++holder) {
            const Registers row = of(4 * g + holder),
                            columns[] = {of(8 * t + holder), of(8 * t + 4 + holder)};
            for (int i = 0; i < 2; ++i) {
                for (int upper = 0; upper < 2; ++upper) {
                    for (int byte = 0; byte < 4; ++byte) {
                        const int k = 16 * upper + 4 * holder + byte;
                        a_rows[i][k] = kNumbersOf<A>[row.a[2 * upper + i] >> 8 * byte & 0xffu];
                        b_columns[i][k] = kNumbersOf<B>[columns[i].b[upper] >> 8 * byte & 0xffu];
                    }
                }
            }
        }
        Sums own{{c[0], c[1], c[2], c[3]}};
        for (int k = 0; k < 32; ++k) {
            for (int i = 0; i < 4; ++i) own.c[i] += a_rows[i / 2][k] * b_columns[i % 2][k];
        }
        return own;
    });
    std::copy_n(sums.c, 4, c);
}

template <class To>
uint32_t pack_fp8(float x0, float x1, float x2, float x3) {
    return static_cast<uint32_t>(To(x3).bits) << 24 | static_cast<uint32_t>(To(x2).bits) << 16 |
           static_cast<uint32_t>(To(x1).bits) << 8 | To(x0).bits;
}

template <bool kTransposed, int kCount>
void ldmatrix_emulated(uint32_t (&r)[kCount], const void* row) {
    struct alignas(16) Row {
        uint16_t elements[8];
    };
    if (reinterpret_cast<uintptr_t>(row) % sizeof(Row) != 0) {
        simt::fail("ldmatrix: an address is not aligned to 16 bytes", simt::Where::current());
    }
    Row own{};  // addresses of lanes after the last matrix are ignored
    if (lane_id() < 8 * kCount) own = simt::load_word(static_cast<const Row*>(row));
    simt::exchange(~0u, own, [&](auto&& of) {
        const int g = lane_id() / 4, t = lane_id() % 4;
        for (int m = 0; m < kCount; ++m) {
            const int first = 8 * m + (kTransposed ? 2 * t : g), second = first + (kTransposed ? 1 : 0);
            const int low = kTransposed ? g : 2 * t, high = kTransposed ? g : 2 * t + 1;
            r[m] = static_cast<uint32_t>(of(second).elements[high]) << 16 | of(first).elements[low];
        }
        return 0;
    });
}
inline void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
    ldmatrix_emulated<false>(r, row);
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
    ldmatrix_emulated<true>(r, row);
}

inline void stmatrix_x4(void* row, const uint32_t (&r)[4]) {
    struct Registers {
        uint32_t r[4];
    };
    if (reinterpret_cast<uintptr_t>(row) % sizeof(uint4) != 0)
        simt::fail("stmatrix: an address is not aligned to 16 bytes", simt::Where::current());
    const uint4 own = simt::exchange(~0u, Registers{{r[0], r[1], r[2], r[3]}}, [&](auto&& of) {
        const int m = lane_id() / 8, first = lane_id() % 8 * 4;
        return make_uint4(of(first).r[m], of(first + 1).r[m], of(first + 2).r[m], of(first + 3).r[m]);
    });
    simt::store_word(static_cast<uint4*>(row), own);
}

inline void copy_async_16(void* shared, const void* global, int valid_bytes) {
    simt::copy_async(shared, global, 16, valid_bytes);
}
inline void copy_async_4(void* shared, const void* global, int valid_bytes) {
    simt::copy_async(shared, global, 4, valid_bytes);
}
inline void copy_async_commit() {
    simt::copy_async_commit();
}
template <int kPending>
void copy_async_wait() {
    simt::copy_async_wait(kPending);
}

#else

// Two f32 rounded to bf16, `low` in the lower half.
__device__ inline uint32_t pack_bf16(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// 2^x within 2 ulp; 2^−∞ = 0.
__device__ inline float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1/x within 1 ulp; 1/∞ = 0, as is that of |x| > 2^126.
__device__ inline float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// √x, relative error 2^-23; 0 below 2^-126.
__device__ inline float sqrt_approx(float x) {
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Larger values of two pairs of bf16, b for a NaN in a; their products. Compute capability 9.0 and above.
__device__ inline uint32_t larger_bf16(uint32_t a, uint32_t b) {
    uint32_t larger = 0;
#if __CUDA_ARCH__ >= 900
    asm("max.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
#else
    __trap();
#endif
    return larger;
}
__device__ inline uint32_t multiply_bf16(uint32_t a, uint32_t b) {
    uint32_t products = 0;
#if __CUDA_ARCH__ >= 900
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(products) : "r"(a), "r"(b));
#else
    __trap();
#endif
    return products;
}
// Larger of each unsigned 16-bit half; compute capability 9.0 and above.
__device__ inline uint32_t larger_halves(uint32_t a, uint32_t b) {
    uint32_t larger = 0;
#if __CUDA_ARCH__ >= 900
    asm("max.u16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
#else
    __trap();
#endif
    return larger;
}

// Stores 16 bytes to global memory with one instruction, for kernels whose stores the compiler would split.
__device__ inline void store_global(uint4* to, const uint4& word) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(word.x),
                 "r"(word.y), "r"(word.z), "r"(word.w)
                 : "memory");
}

// Warp: c (16×8 f32) += a (16×16 bf16) · b (16×8 bf16).
//   a[r]: row g + 8·(r % 2), columns 2t, 2t+1 (+ 8 for r ≥ 2) · b_r: rows 2t, 2t+1 (+ 8 for b1), column g
//   c[i]: row g + 8·(i / 2), column 2t + i % 2
__device__ inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Warp: c (16×8 f32) += a (16×32) · b (32×8), FP8; GPUs from sm_89 on.
//   a[r]: row g + 8·(r % 2), columns 4t … 4t+3 (+ 16 for r ≥ 2) · b_r: rows 4t … 4t+3 (+ 16 for b1), column g
//   c[i]: as in mma_bf16
template <class A, class B>
__device__ inline void mma_fp8(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 890
#define SPEEDRUN_MMA_FP8(types)                                                \
    asm("mma.sync.aligned.m16n8k32.row.col.f32." types                         \
        ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                       \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if constexpr (A::kLargest == E5m2::kLargest) {
        SPEEDRUN_MMA_FP8("e5m2.e4m3");
    } else if constexpr (B::kLargest == E5m2::kLargest) {
        SPEEDRUN_MMA_FP8("e4m3.e5m2");
    } else {
        SPEEDRUN_MMA_FP8("e4m3.e4m3");
    }
#undef SPEEDRUN_MMA_FP8
#else
    __trap();
#endif
}

// Four f32 rounded as the constructors of Fp8 round, x0 in the lowest byte; GPUs from sm_89 on.
template <class To>
__device__ inline uint32_t pack_fp8(float x0, float x1, float x2, float x3) {
#if __CUDA_ARCH__ >= 890
    uint16_t low, high;
    if constexpr (To::kLargest == E5m2::kLargest) {
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x1), "f"(x0));
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x3), "f"(x2));
    } else {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x1), "f"(x0));
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x3), "f"(x2));
    }
    return static_cast<uint32_t>(high) << 16 | low;
#else
    __trap();
#endif
}

__device__ inline uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Warp: loads 8×8 matrices of 16-bit elements; lane 8m + i passes the address of row i of matrix m (16 bytes,
// aligned). r[m] gets elements 2t, 2t+1 of row g; transposed: of column g.
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
__device__ inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Warp: stores 8×8 matrices of 16-bit elements, from the fragments that ldmatrix_x4 loads; compute capability 9.0 and above.
__device__ inline void stmatrix_x4(void* row, const uint32_t (&r)[4]) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
        "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
        : "memory");
#else
    __trap();
#endif
}

// Starts a copy of 16 aligned bytes. Bytes from valid_bytes on are not read and become zero. Visible to this
// thread after the wait for its group, to others after a barrier that follows.
__device__ inline void copy_async_16(void* shared, const void* global, int valid_bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                 "r"(valid_bytes)
                 : "memory");
}
// Starts a copy of 4 bytes. With valid_bytes 0 nothing is read and they become zero.
__device__ inline void copy_async_4(void* shared, const void* global, int valid_bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)), "l"(global),
                 "r"(valid_bytes)
                 : "memory");
}
// Ends the group of the copies started since the last commit.
__device__ inline void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kPending of the latest groups are pending.
template <int kPending>
__device__ inline void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

#endif

}  // namespace speedrun::ptx
