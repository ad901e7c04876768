// Epilogues of product_wgmma.cuh with c in bf16. A warp has 16 x 256 sums, in panels of 64 columns: a value per sum in f32, rounded to
// bf16, passes through the warp's shared memory to the lane that has eight columns of its row. A body computes the stored values from
// eight rounded values.
//
//   Value<kScaled, kBias, kAddend>: (scale_a·scale_b·) sum (+ bias[column]) (+ addend)
//   body: kOperand: it also reads eight values of a matrix `operand` at the same place.
//     start(), before the first tile · lines(row, column) → addresses of a tile · store(lines, …, eight, operand, inside) ·
//     finish(), after the last tile
#pragma once

#include "kernels/cuda/blocks/reduce.cuh"
#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/cuda/ops/activation.cuh"
#include "kernels/cuda/ops/product_wgmma.cuh"

namespace speedrun::product_wgmma {

template <bool kScaled, bool kBias_, bool kAddend_>
struct Value {
    static constexpr bool kBias = kBias_, kAddend = kAddend_;
    const float *scale_a, *scale_b;  // with kScaled
    const float* bias;               // with kBias
    Rows<const Bf16> addend;         // with kAddend
    float scale;                     // with kScaled

    __device__ void start() {
        if constexpr (kScaled) scale = *scale_a * *scale_b;
    }
    // Values of two adjacent columns. offset: their bias; addends: bf16.
    __device__ uint32_t rounded(float low, float high, const float2& offset, uint32_t addends) const {
        if constexpr (kScaled) {
            low *= scale;
            high *= scale;
        }
        if constexpr (kBias) {
            low += offset.x;
            high += offset.y;
        }
        if constexpr (kAddend) {
            low += __uint_as_float(addends << 16);
            high += __uint_as_float(addends & 0xffff0000u);
        }
        return ptx::pack_bf16(low, high);
    }
};

using Eight = Packed<8, Bf16>;

// Addresses of a lane's rows at its column of the first panel.
template <class T>
struct Lines {
    T* first[kPasses];

    __device__ Lines(const Rows<T>& rows, int row, int col) {
#pragma unroll
        for (int pass = 0; pass < kPasses; ++pass) first[pass] = rows.at(row + pass * kRowsAtOnce, col);
    }
    __device__ T* at(int pass, int panel) const {
        return first[pass] + panel * kPanelColumns;
    }
};

__device__ inline void store_eight(Bf16* to, const Eight& eight, bool inside) {
    if (inside) ptx::store_global(reinterpret_cast<uint4*>(to), eight.words[0]);
}

struct StoreRounded {
    static constexpr bool kOperand = false;
    Rows<Bf16> c;

    __device__ void start() {}
    __device__ Lines<Bf16> lines(int row, int col) const { return {c, row, col}; }
    __device__ void store(const Lines<Bf16>& to, int pass, int panel, const Eight& eight,
                          const Eight& /*operand*/, bool inside) {
        store_eight(to.at(pass, panel), eight, inside);
    }
    __device__ void finish() {}
};

// The bits are those of relu_squared() in f32, rounded: the square of a bf16 has 16 bits, so that f32 represents it or both results
// are 0.
__device__ inline Eight squares_of(const Eight& eight) {
    Eight squares;
#pragma unroll
    for (int i = 0; i < 4; ++i)
        squares.bits[i] = ptx::multiply_bf16(ptx::larger_bf16(eight.bits[i], 0), eight.bits[i]);
    return squares;
}

// c = relu(r)² for the rounded value r.
struct StoreSquares : StoreRounded {
    __device__ void store(const Lines<Bf16>& to, int pass, int panel, const Eight& eight,
                          const Eight& /*operand*/, bool inside) {
        store_eight(to.at(pass, panel), squares_of(eight), inside);
    }
};

// And the FP8 form of c with its amax, as op::Quantize of c.
struct StoreQuantizedSquares {
    static constexpr bool kOperand = false;
    Rows<Bf16> c;
    Rows<E4m3> quantized;
    float* scale;
    float constant;    // above 0: the scale
    uint32_t* amax;    // bits of a value ≥ 0; null: not requested
    uint32_t largest;  // two bf16
    float inverse;

    struct Outputs {
        Lines<Bf16> c;
        Lines<E4m3> quantized;
    };
    __device__ void start() {
        largest = 0;
        const float divisor = constant > 0.0f ? constant : *scale;
        inverse = divisor == 0.0f ? 0.0f : 1.0f / divisor;
        if (constant > 0.0f && blockIdx.x + threadIdx.x == 0) *scale = divisor;
    }
    __device__ Outputs lines(int row, int col) const { return {{c, row, col}, {quantized, row, col}}; }
    // Outside of c the squares are 0, which does not change the maximum.
    __device__ void store(const Outputs& to, int pass, int panel, const Eight& eight,
                          const Eight& /*operand*/, bool inside) {
        const Eight squares = squares_of(eight);
        store_eight(to.c.at(pass, panel), squares, inside);
        constexpr uint32_t kMagnitudes = 0x7fff7fffu;
#pragma unroll
        for (int i = 0; i < 4; ++i) largest = ptx::larger_halves(largest, squares.bits[i] & kMagnitudes);
        Vector<8> v = unpack<8>(squares);
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] *= inverse;
        const uint2 bytes = make_uint2(ptx::pack_fp8<E4m3>(v[0], v[1], v[2], v[3]),
                                       ptx::pack_fp8<E4m3>(v[4], v[5], v[6], v[7]));
        if (inside) store_word(reinterpret_cast<uint2*>(to.quantized.at(pass, panel)), bytes);
    }
    __device__ void finish() {
        if (amax) note_amax(amax, larger(largest << 16, largest & 0xffff0000u));
    }
};

// c = r · 2√operand for the rounded value r: the gradient through relu².
struct StoreThroughSquares : StoreRounded {
    static constexpr bool kOperand = true;
    Rows<const Bf16> operand;

    __device__ void store(const Lines<Bf16>& to, int pass, int panel, const Eight& eight,
                          const Eight& squares, bool inside) {
        const Vector<8> v = unpack<8>(eight), y = unpack<8>(squares);
        Eight result;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            result.bits[i] = ptx::pack_bf16(v[2 * i] * relu_squared_slope<Bf16>(y[2 * i]),
                                            v[2 * i + 1] * relu_squared_slope<Bf16>(y[2 * i + 1]));
        store_eight(to.at(pass, panel), result, inside);
    }
};

template <class Value, class Body>
struct PanelEpilogue {
    static constexpr bool kReads = Value::kAddend || Body::kOperand;
    static_assert(!(Value::kAddend && Body::kOperand));
    Value value;
    Body body;
    int m, n;  // sizes of c, one matrix of a batch; n is a multiple of 8

    struct Ahead {
        decltype(std::declval<Body>().lines(0, 0)) lines;
        Eight of[kReads ? kPanels : 1][kPasses];  // with kReads
    };

    __device__ void start() {
        value.start();
        body.start();
    }

    __device__ Ahead begin(const Place& place) const {
        Ahead ahead{body.lines(place.batch * m + row_of(place), col_of(place)), {}};
        if constexpr (kReads) {
            const Lines<const Bf16> from(source(), place.batch * m + row_of(place), col_of(place));
#pragma unroll
            for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
                for (int pass = 0; pass < kPasses; ++pass) {
                    Eight& eight = ahead.of[panel][pass];
                    if (inside(place, pass, panel)) eight = load_packed<8>(from.at(pass, panel));
                }
            }
        }
        return ahead;
    }

    __device__ void end(const Place& place, const float (&sums)[wgmma::kWideTiles][4], const Ahead& ahead,
                        void* staging) {
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
            // Two buffers alternate: the barrier of one ends the reads of the other.
            char* const buffer = static_cast<char*>(staging) + panel % 2 * kPanelBytes;
            uint32_t addends[4][4] = {};
            if constexpr (Value::kAddend) exchange_addends(addends, ahead.of[panel], buffer);
#pragma unroll
            for (int four = 0; four < 4; ++four) {
                uint32_t words[4];
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int tile = 8 * panel + 2 * four + i;
                    const float2 offset = bias_at(place.col + 8 * tile + ptx::lane_id() % 4 * 2);
                    words[2 * i] = value.rounded(sums[tile][0], sums[tile][1], offset, addends[four][2 * i]);
                    words[2 * i + 1] =
                        value.rounded(sums[tile][2], sums[tile][3], offset, addends[four][2 * i + 1]);
                }
                ptx::stmatrix_x4(buffer + matrix_offset(four), words);  // over the addends of these words
            }
            __syncwarp();
            Eight eight[kPasses];
#pragma unroll
            for (int pass = 0; pass < kPasses; ++pass)
                eight[pass].words[0] = load_word(reinterpret_cast<const uint4*>(buffer + chunk_offset(pass)));
#pragma unroll
            for (int pass = 0; pass < kPasses; ++pass) {
                const Eight* operand = &eight[pass];
                if constexpr (Body::kOperand) operand = &ahead.of[panel][pass];
                body.store(ahead.lines, pass, panel, eight[pass], *operand, inside(place, pass, panel));
            }
        }
    }

    __device__ void finish() {
        body.finish();
    }

  private:
    // A lane's first row and column.
    __device__ static int row_of(const Place& place) {
        return place.row + ptx::lane_id() / 8;
    }
    __device__ static int col_of(const Place& place) {
        return place.col + ptx::lane_id() % 8 * 8;
    }
    __device__ bool inside(const Place& place, int pass, int panel) const {
        return (row_of(place) + pass * kRowsAtOnce < m) & (col_of(place) + panel * kPanelColumns < n);
    }
    __device__ const Rows<const Bf16>& source() const {
        if constexpr (Value::kAddend)
            return value.addend;
        else
            return body.operand;
    }
    __device__ float2 bias_at(int col) const {
        float2 offset;
        offset.x = offset.y = 0.0f;
        if (Value::kBias && col < n) offset = load_word(reinterpret_cast<const float2*>(value.bias + col));
        return offset;
    }
};

}  // namespace speedrun::product_wgmma
