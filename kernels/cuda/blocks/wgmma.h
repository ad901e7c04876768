// Warpgroup matmuls for compute capability 9.0 (sm_90a): wgmma reads its operands from shared memory
// asynchronously. Inline PTX with a twin for the host executor (tests/simt/warpgroup.cpp), as in ptx.h. The
// twin follows the PTX ISA ("Asynchronous Warpgroup Level Matrix Instructions": "Register Fragments", "Shared
// Memory Matrix Layout", "Strides", "Matrix Descriptor Format").
//
// A warpgroup is four consecutive warps; the index of the first is a multiple of four. All its threads call
// together. Warp w of the group has rows 16w … 16w + 15 of the 64 rows of a matmul, with the fragments of
// ptx::mma_bf16:
//   c[n][i]: row g + 8·(i / 2), column 8n + 2t + i % 2 · a[r]: row g + 8·(r % 2), k = 2t, 2t+1 (+ 8 for r ≥ 2)
// Call order: write the operands to shared memory (stores, or completed cp.async); fence_async_proxy() by the same
// threads; a barrier; begin(), multiply…, commit(), wait(). Between begin and wait no thread may access the
// sums, the registers of a, or the shared memory of a and b.
//
// Operands in shared memory are tiles of tile.cuh's Panels: 64 columns of all rows, then the next 64. Rows
// have 128 bytes with permuted chunks ("128-byte swizzle"). The base address is a multiple of 1024.
#pragma once

#include "kernels/cuda/blocks/ptx.h"

namespace speedrun::wgmma {

// True if this compiler pass has the instructions: kernels have no code otherwise, and are never launched.
#if SPEEDRUN_SIMT || defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool kAvailable = true;
#else
constexpr bool kAvailable = false;
#endif

constexpr int kThreads = 128;   // threads of a warpgroup
constexpr int kRows = 64;       // rows of a matmul
constexpr int kWideTiles = 32;  // tiles of eight columns in multiply_wide()

// 64-bit descriptor of an operand with 16 k ("Matrix Descriptor Format"): its address, the byte distance from
// 64 columns to the next 64 (if its rows are k), and from 8 rows to the next 8.
constexpr uint64_t describe(uint32_t address, int panel_bytes, int rows_bytes) {
    constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
    return kSwizzle128 | static_cast<uint64_t>(rows_bytes >> 4) << 32 |
           static_cast<uint64_t>(panel_bytes >> 4) << 16 | (address & 0x3ffffu) >> 4;
}

#if SPEEDRUN_SIMT

inline uint32_t shared_address(const void* tile) {
    return simt::shared_offset(tile);
}
inline void fence_async_proxy() {
    simt::fence_shared_proxy();
}
template <class... Sums>
void begin(Sums&... /*sums*/) {
    simt::warpgroup_begin();
}
inline void commit() {
    simt::warpgroup_commit();
}
template <int kPending, class... Sums>
void wait(Sums&... /*sums*/) {
    simt::warpgroup_wait(kPending);
}
template <int kTiles>
void finish_before_wait(float (&/*x*/)[kTiles][4]) {}
inline void finish_before_wait(int /*x*/) {}
template <int kTiles>
void multiply(float (&c)[kTiles][4], uint64_t a, uint64_t b, bool add) {
    simt::warpgroup_multiply(&c[0][0], kTiles, nullptr, a, b, {}, add);
}
template <int kTiles>
void multiply_transposed(float (&c)[kTiles][4], const uint32_t (&a)[4], uint64_t b, bool add) {
    simt::warpgroup_multiply(&c[0][0], kTiles, a, 0, b, {.b_transposed = true}, add);
}
template <class Element, bool kTransposedA, bool kTransposedB>
void multiply_wide(float (&c)[kWideTiles][4], uint64_t a, uint64_t b, bool add) {
    simt::warpgroup_multiply(&c[0][0], kWideTiles, nullptr, a, b,
                             {kTransposedA, kTransposedB, sizeof(Element) == 1}, add);
}

#else

__device__ inline uint32_t shared_address(const void* tile) {
    return ptx::shared_address(tile);
}

// Compiler barrier for these registers.
template <int kTiles>
__device__ inline void pin(float (&c)[kTiles][4]) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n)
        asm volatile("" : "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])::"memory");
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Makes this thread's writes to shared memory visible to the matmuls after the next barrier.
__device__ inline void fence_async_proxy() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Orders this thread's earlier accesses to the registers before the matmuls that follow.
template <class... Sums>
__device__ inline void begin(Sums&... sums) {
    (pin(sums), ...);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Ends the group of the matmuls since the last commit.
__device__ inline void commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending of the latest groups are pending. `sums`: the sums that are then complete.
template <int kPending, class... Sums>
__device__ inline void wait(Sums&... sums) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
    (pin(sums), ...);
}

// Call between the computation of these values, all ≥ 0, and a wait. Within a basic block the compiler moves a wait ahead of
// independent code; this is a branch. It is never taken. With a trap instead of a short sleep ptxas needs more registers.
template <int kTiles>
__device__ inline void finish_before_wait(float (&x)[kTiles][4]) {
    pin(x);
    if (__any_sync(~0u, x[0][0] < 0.0f)) asm volatile("nanosleep.u32 0;");
}
__device__ inline void finish_before_wait(int x) {
    if (__any_sync(~0u, x < 0)) asm volatile("nanosleep.u32 0;");
}

#define SPEEDRUN_SUMS_1(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define SPEEDRUN_SUMS_4(n) \
    SPEEDRUN_SUMS_1(n), SPEEDRUN_SUMS_1(n + 1), SPEEDRUN_SUMS_1(n + 2), SPEEDRUN_SUMS_1(n + 3)
#define SPEEDRUN_SUMS_8 SPEEDRUN_SUMS_4(0), SPEEDRUN_SUMS_4(4)
#define SPEEDRUN_SUMS_16 SPEEDRUN_SUMS_8, SPEEDRUN_SUMS_4(8), SPEEDRUN_SUMS_4(12)
#define SPEEDRUN_SUMS_32 \
    SPEEDRUN_SUMS_16, SPEEDRUN_SUMS_4(16), SPEEDRUN_SUMS_4(20), SPEEDRUN_SUMS_4(24), SPEEDRUN_SUMS_4(28)
#define SPEEDRUN_NAMES_32                                                                             \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
    "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SPEEDRUN_NAMES_64                                                                               \
    SPEEDRUN_NAMES_32                                                                                   \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, " \
    "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SPEEDRUN_NAMES_128                                                                         \
    SPEEDRUN_NAMES_64                                                                              \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"             \
    ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"             \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
    ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SPEEDRUN_WGMMA(columns) "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.bf16.bf16 "

// Warpgroup: c (64 × 8·kTiles f32) = a (64×16) · b (16 × 8·kTiles), added to c if `add`. a is stored
// [row][k], b [column][k].
template <int kTiles>
__device__ inline void multiply(float (&c)[kTiles][4], uint64_t a, uint64_t b, bool add) {
    static_assert(kTiles == 8 || kTiles == 16);
    if constexpr (kTiles == 8) {
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n" SPEEDRUN_WGMMA(
                         "64") "{" SPEEDRUN_NAMES_32 "}, %32, %33, add, 1, 1, 0, 0;\n}\n"
                     : SPEEDRUN_SUMS_8
                     : "l"(a), "l"(b), "r"(static_cast<int>(add)));
    } else {
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n" SPEEDRUN_WGMMA(
                         "128") "{" SPEEDRUN_NAMES_64 "}, %64, %65, add, 1, 1, 0, 0;\n}\n"
                     : SPEEDRUN_SUMS_16
                     : "l"(a), "l"(b), "r"(static_cast<int>(add)));
    }
}

// Warpgroup: the same with a's fragments in registers and b stored [k][column].
template <int kTiles>
__device__ inline void multiply_transposed(float (&c)[kTiles][4], const uint32_t (&a)[4], uint64_t b,
                                           bool add) {
    static_assert(kTiles == 8 || kTiles == 16);
    if constexpr (kTiles == 8) {
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n" SPEEDRUN_WGMMA(
                         "64") "{" SPEEDRUN_NAMES_32 "}, {%32, %33, %34, %35}, %36, add, 1, 1, 1;\n}\n"
                     : SPEEDRUN_SUMS_8
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
    } else {
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %69, 0;\n" SPEEDRUN_WGMMA(
                         "128") "{" SPEEDRUN_NAMES_64 "}, {%64, %65, %66, %67}, %68, add, 1, 1, 1;\n}\n"
                     : SPEEDRUN_SUMS_16
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
    }
}

// Warpgroup: c (64 × 256 f32) = a · b, added to c if `add`, over 32 bytes of k: 16 bf16 or 32 e4m3. An operand is stored in rows of k
// or, transposed (bf16 only), in rows of its other index.
template <class Element, bool kTransposedA, bool kTransposedB>
__device__ inline void multiply_wide(float (&c)[kWideTiles][4], uint64_t a, uint64_t b, bool add) {
    if constexpr (sizeof(Element) == 1) {
        static_assert(!kTransposedA && !kTransposedB && Element::kLargest == E4m3::kLargest);
        asm volatile(
            "{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 {" SPEEDRUN_NAMES_128
            "}, %128, %129, add, 1, 1;\n}\n"
            : SPEEDRUN_SUMS_32
            : "l"(a), "l"(b), "r"(static_cast<int>(add)));
    } else {
        asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %130, 0;\n" SPEEDRUN_WGMMA(
                         "256") "{" SPEEDRUN_NAMES_128 "}, %128, %129, add, 1, 1, %131, %132;\n}\n"
                     : SPEEDRUN_SUMS_32
                     : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(static_cast<int>(kTransposedA)),
                       "n"(static_cast<int>(kTransposedB)));
    }
}

#undef SPEEDRUN_SUMS_1
#undef SPEEDRUN_SUMS_4
#undef SPEEDRUN_SUMS_8
#undef SPEEDRUN_SUMS_16
#undef SPEEDRUN_SUMS_32
#undef SPEEDRUN_NAMES_32
#undef SPEEDRUN_NAMES_64
#undef SPEEDRUN_NAMES_128
#undef SPEEDRUN_WGMMA

#else  // another GPU: never launched there (attention_wgmma.cu)

__device__ inline void fence_async_proxy() {
    __trap();
}
template <class... Sums>
__device__ inline void begin(Sums&... /*sums*/) {}
__device__ inline void commit() {}
template <int kPending, class... Sums>
__device__ inline void wait(Sums&... /*sums*/) {}
template <int kTiles>
__device__ inline void finish_before_wait(float (&)[kTiles][4]) {}
__device__ inline void finish_before_wait(int) {}
template <int kTiles>
__device__ inline void multiply(float (&)[kTiles][4], uint64_t, uint64_t, bool) {}
template <int kTiles>
__device__ inline void multiply_transposed(float (&)[kTiles][4], const uint32_t (&)[4], uint64_t, bool) {}
template <class Element, bool kTransposedA, bool kTransposedB>
__device__ inline void multiply_wide(float (&)[kWideTiles][4], uint64_t, uint64_t, bool) {}

#endif
#endif

// ---- matmuls of tiles

// c (64 rows × 8·kTiles) = rows a_row … a_row + 63 of tile a · tile bᵀ, over kWidth columns of both. kARows
// and 8·kTiles are the rows of a and b. Starts the matmuls and ends their group.
template <int kWidth, int kARows, int kTiles>
__device__ inline void multiply_rows(float (&c)[kTiles][4], const Bf16* a_tile, int a_row,
                                     const Bf16* b_tile) {
    constexpr int kRowBytes = 128, kGroupBytes = 8 * kRowBytes;
    const uint64_t a =
        describe(shared_address(a_tile) + static_cast<uint32_t>(a_row * kRowBytes), 16, kGroupBytes);
    const uint64_t b = describe(shared_address(b_tile), 16, kGroupBytes);
#pragma unroll
    for (int k = 0; k < kWidth; k += 16) {
        const int panel = k / 64, inside = k % 64 * 2;
        multiply(c, a + static_cast<uint64_t>((panel * kARows * kRowBytes + inside) >> 4),
                 b + static_cast<uint64_t>((panel * 8 * kTiles * kRowBytes + inside) >> 4), k > 0);
    }
    commit();
}

// c (64 rows × kWidth) = p · tile b, added to c if `add`. p[k]: fragments of columns 16k … of p; b: 16·kSteps
// rows of kWidth. Starts the matmuls and ends their group.
template <int kWidth, int kSteps>
__device__ inline void multiply_columns(float (&c)[kWidth / 8][4], const uint32_t (&p)[kSteps][4],
                                        const Bf16* b_tile, bool add) {
    constexpr int kRowBytes = 128, kGroupBytes = 8 * kRowBytes;
    const uint64_t b = describe(shared_address(b_tile), 16 * kSteps * kRowBytes, kGroupBytes);
#pragma unroll
    for (int k = 0; k < kSteps; ++k)
        multiply_transposed(c, p[k], b + static_cast<uint64_t>((2 * k * kGroupBytes) >> 4), add || k > 0);
    commit();
}

}  // namespace speedrun::wgmma
