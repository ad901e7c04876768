// CUDA names for the host compiler: the .cu files of kernels/cuda compile against this header with
// SPEEDRUN_SIMT. They run in the executor of executor.h, every thread of a block on its own fiber.
//
// Barriers, shuffles, votes and warp exchanges are the switch points. Rules stricter than the hardware's:
// - every thread of the block must reach a barrier at the same source location, also threads that could return;
// - every lane of its mask must reach a warp exchange;
// - a shuffle may read only from lanes of the mask;
// - shared memory starts as NaN, is surrounded by red zones, and indexing it is checked.
// Non-goals: waiting for another block (blocks run one after the other), timing, float atomics (not deterministic).
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __grid_constant__
#define __constant__ static const

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
inline float2 make_float2(float x, float y) {
    return {x, y};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
    return {x, y};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}
inline int2 make_int2(int x, int y) {
    return {x, y};
}

namespace speedrun::simt {

// Subset of std::source_location, which clang has since version 16.
class Where {
  public:
    static constexpr Where current(const char* file = __builtin_FILE(), uint32_t line = __builtin_LINE()) {
        Where where;
        where.file_ = file;
        where.line_ = line;
        return where;
    }
    constexpr const char* file_name() const { return file_; }
    constexpr uint32_t line() const { return line_; }

  private:
    const char* file_ = "";
    uint32_t line_ = 0;
};

constexpr int kWarpSize = 32;
constexpr int kMaxLaneBytes = 128;

// Position of the running fiber. Set by the executor at every switch.
struct Position {
    dim3 thread, block, block_dim, grid_dim;
    unsigned linear;       // index of the thread in its block
    std::byte* shared;     // dynamic shared memory of the block
    int64_t shared_bytes;  // size of it
};
inline constinit thread_local Position* position = nullptr;

// Ends the launch with an Error that names kernel, block and thread.
[[noreturn]] void fail(const char* what, Where where);
[[noreturn]] void fail_index(int64_t index, int64_t low, int64_t high, Where where);

void barrier(Where where);
void warp_barrier(uint32_t mask, Where where);

// Values that the lanes of a mask pass to one exchange.
struct Exchange {
    alignas(16) std::byte data[kWarpSize][kMaxLaneBytes];
    uint32_t mask;
    uint32_t arrived;
    uint32_t left;
    size_t bytes;
    Where where;
};
const Exchange& arrive(uint32_t mask, const void* value, size_t bytes, Where where);
void leave(const Exchange& exchange);

// Every lane of the mask passes a value; read(lane_value) sees all of them: lane_value(i) is the value of
// lane i. Shuffles, votes, mma and ldmatrix are built on this primitive.
template <class T, class Read>
auto exchange(uint32_t mask, const T& value, Read&& read, Where where = Where::current()) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kMaxLaneBytes);
    const Exchange& all = arrive(mask, &value, sizeof value, where);
    auto result = read([&](int lane) {
        if (lane < 0 || lane >= kWarpSize || !(all.mask >> lane & 1u))
            fail("reads a lane outside the mask", where);
        T other;
        std::memcpy(&other, all.data[lane], sizeof other);
        return other;
    });
    leave(all);
    return result;
}

inline int lane() {
    return static_cast<int>(position->linear % kWarpSize);
}

// A pointer into shared memory with checked accesses: inside [low, high), the array (if its size was given) or the
// rest of the block's shared memory. Converts to a plain pointer; red zones detect some of its out-of-bounds
// accesses.
template <class T>
class SharedPointer {
  public:
    SharedPointer(T* data, T* low, T* high) : data_(data), low_(low), high_(high) {}

    T& operator*() const { return (*this)[0]; }
    T* operator->() const { return &(*this)[0]; }
    template <class Index>
    requires std::is_integral_v<Index> T& operator[](Index index) const {
        T* const element = data_ + index;
        if (element < low_ || element >= high_) fail_index(element - low_, 0, high_ - low_, Where::current());
        return *element;
    }
    template <class Index>
    requires std::is_integral_v<Index> SharedPointer operator+(Index offset) const {
        return {data_ + offset, low_, high_};
    }
    template <class Index>
    requires std::is_integral_v<Index> SharedPointer operator-(Index offset) const {
        return {data_ - offset, low_, high_};
    }
    operator T*() const { return data_; }
    T* get() const { return data_; }

  private:
    T *data_, *low_, *high_;
};

template <class T>
SharedPointer<T> shared_memory(int64_t byte_offset, int64_t count, Where where) {
    const int64_t bytes = position->shared_bytes;
    if (byte_offset < 0 || byte_offset % static_cast<int64_t>(alignof(T)) != 0)
        fail("shared memory at an offset that does not suit its type", where);
    const int64_t room = (bytes - byte_offset) / static_cast<int64_t>(sizeof(T));
    if (byte_offset > bytes || count > room) fail("shared memory beyond the bytes of the launch", where);
    T* const data = reinterpret_cast<T*>(position->shared + byte_offset);
    return {data, data, data + (count < 0 ? room : count)};
}

// Words accessed by one instruction. A watched build (watch.h) sees each as one access, however the compiler
// splits the struct.
void copy_word(void* to, const void* from, size_t bytes);
template <class Word>
Word load_word(const Word* from) {
#if SPEEDRUN_SIMT_WATCHED
    Word word;
    copy_word(&word, from, sizeof word);
    return word;
#else
    return *from;
#endif
}
template <class Word>
void store_word(Word* to, const Word& word) {
#if SPEEDRUN_SIMT_WATCHED
    copy_word(to, &word, sizeof word);
#else
    *to = word;
#endif
}
void note_waited();  // thread called wait_for_prior_kernels() (launch.h)
void count_mma();    // called by each lane of a tensor-core matmul

// Device-wide fences and atomics order accesses of different blocks (watch.h).
void note_fence();
void note_atomic(const void* address);
// Returns the old value. Blocks run one after the other, so no other thread intervenes. A watch records an
// atomic, not two accesses.
template <class T, class Next>
__attribute__((no_sanitize("thread"))) T atomic(T* address, Next&& next) {
    note_atomic(address);
    const T old = *address;
    *address = next(old);
    return old;
}

// cp.async: bytes arrive when the copying thread waits for their group; until then the destination is
// poisoned. valid_bytes < bytes: the rest becomes zero.
void copy_async(void* shared, const void* global, int bytes, int valid_bytes);
void copy_async_commit();
void copy_async_wait(int groups_in_flight);

template <class T>
T exchange_lane(uint32_t mask, T value, int source, Where where) {
    return exchange(
        mask, value, [&](auto&& of) { return of(source); }, where);
}
// Lane `lane` of a segment of `width` lanes reads from lane `other` of it, or keeps its own value outside.
inline int source_lane(int target_in_segment, int width) {
    const int self = lane(), first = self / width * width;
    return target_in_segment < 0 || target_in_segment >= width ? self : first + target_in_segment;
}

}  // namespace speedrun::simt

#define threadIdx (::speedrun::simt::position->thread)
#define blockIdx (::speedrun::simt::position->block)
#define blockDim (::speedrun::simt::position->block_dim)
#define gridDim (::speedrun::simt::position->grid_dim)
#define warpSize (::speedrun::simt::kWarpSize)

inline void __syncthreads(speedrun::simt::Where where = speedrun::simt::Where::current()) {
    speedrun::simt::barrier(where);
}
inline void __syncwarp(uint32_t mask = 0xffffffffu,
                       speedrun::simt::Where where = speedrun::simt::Where::current()) {
    speedrun::simt::warp_barrier(mask, where);
}
inline void __threadfence() {
    speedrun::simt::note_fence();
}

template <class T>
T __shfl_sync(uint32_t mask, T value, int source, int width = 32,
              speedrun::simt::Where where = speedrun::simt::Where::current()) {
    return speedrun::simt::exchange_lane(mask, value, speedrun::simt::source_lane(source % width, width),
                                         where);
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int bits, int width = 32,
                  speedrun::simt::Where where = speedrun::simt::Where::current()) {
    const int inside = speedrun::simt::lane() % width ^ bits;
    return speedrun::simt::exchange_lane(mask, value, speedrun::simt::source_lane(inside, width), where);
}
template <class T>
T __shfl_up_sync(uint32_t mask, T value, unsigned delta, int width = 32,
                 speedrun::simt::Where where = speedrun::simt::Where::current()) {
    const int inside = speedrun::simt::lane() % width - static_cast<int>(delta);
    return speedrun::simt::exchange_lane(mask, value, speedrun::simt::source_lane(inside, width), where);
}
template <class T>
T __shfl_down_sync(uint32_t mask, T value, unsigned delta, int width = 32,
                   speedrun::simt::Where where = speedrun::simt::Where::current()) {
    const int inside = speedrun::simt::lane() % width + static_cast<int>(delta);
    return speedrun::simt::exchange_lane(mask, value, speedrun::simt::source_lane(inside, width), where);
}
inline uint32_t __ballot_sync(uint32_t mask, int predicate,
                              speedrun::simt::Where where = speedrun::simt::Where::current()) {
    return speedrun::simt::exchange(
        mask, predicate != 0,
        [&](auto&& of) {
            uint32_t votes = 0;
            for (int i = 0; i < 32; ++i) {
                if (mask >> i & 1u && of(i)) votes |= 1u << i;
            }
            return votes;
        },
        where);
}
inline int __any_sync(uint32_t mask, int predicate,
                      speedrun::simt::Where where = speedrun::simt::Where::current()) {
    return __ballot_sync(mask, predicate, where) != 0;
}
inline int __all_sync(uint32_t mask, int predicate,
                      speedrun::simt::Where where = speedrun::simt::Where::current()) {
    return __ballot_sync(mask, predicate, where) == mask;
}

// Integers only: the order of float additions would change the bits.
template <class T>
requires std::is_integral_v<T> T atomicAdd(T* address, T value) {
    return speedrun::simt::atomic(address, [&](T old) { return static_cast<T>(old + value); });
}
template <class T>
requires std::is_integral_v<T> T atomicMax(T* address, T value) {
    return speedrun::simt::atomic(address, [&](T old) { return std::max(old, value); });
}

// One result byte for each of the four low hexadecimal digits of `selector`: digit d selects byte d of the
// eight bytes of (b, a), with a's as the low ones (CUDA Math API, "__byte_perm").
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i)
        result |= static_cast<uint32_t>(bytes >> 8 * (selector >> 4 * i & 7u) & 0xffu) << 8 * i;
    return result;
}

// CUDA's min and max, for device code that calls them without std.
template <class T>
requires std::is_arithmetic_v<T>
constexpr T min(T a, T b) {
    return b < a ? b : a;
}
template <class T>
requires std::is_arithmetic_v<T>
constexpr T max(T a, T b) {
    return a < b ? b : a;
}

template <class T>
T __ldcg(const T* p) {
    if constexpr (sizeof(T) >= 8) {
        return speedrun::simt::load_word(p);
    } else {
        return *p;
    }
}

inline unsigned __float_as_uint(float x) {
    return std::bit_cast<unsigned>(x);
}
inline float __uint_as_float(unsigned x) {
    return std::bit_cast<float>(x);
}
inline int __popc(unsigned x) {
    return std::popcount(x);
}
inline float rsqrtf(float x) {
    return 1.0f / std::sqrt(x);
}
inline float __expf(float x) {
    return std::exp(x);
}
inline float __fdividef(float x, float y) {
    return x / y;
}
inline float cospif(float x) {
    return static_cast<float>(std::cos(std::numbers::pi * static_cast<double>(x)));
}
inline float sinpif(float x) {
    return static_cast<float>(std::sin(std::numbers::pi * static_cast<double>(x)));
}
