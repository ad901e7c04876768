// Epilogues of product_wgmma.cuh with c in bf16. A warp has 16 x 256 sums, in panels of 64 columns: a value per sum in f32, rounded to
// bf16, passes through the warp's shared memory to the lane that has eight columns of its row. A body computes what is stored from
// eight rounded values.
//
//   Value<kScaled, kAddend>: (scale_a·scale_b·) sum (+ bias[column]) (+ addend)
//   body: kOperand: it also reads eight values of a matrix `operand` at the same place.
//     start(), before the first tile · store(row, column, eight, operand) · finish(), after the last tile
#pragma once

#include "kernels/cuda/blocks/reduce.cuh"
#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/cuda/ops/activation.cuh"
#include "kernels/cuda/ops/product_wgmma.cuh"

namespace speedrun::product_wgmma {

template <bool kScaled, bool kAddend_>
struct Value {
    static constexpr bool kAddend = kAddend_;
    const float *scale_a, *scale_b;  // with kScaled
    const float* bias;               // null: none
    Rows<const Bf16> addend;         // with kAddend
    float scale = 1.0f;

    __device__ void start() {
        if constexpr (kScaled) scale = *scale_a * *scale_b;
    }
    // Of two adjacent columns. offset: their bias; addends: their addends.
    __device__ uint32_t rounded(float low, float high, const float2& offset, uint32_t addends) const {
        if constexpr (kScaled) {
            low *= scale;
            high *= scale;
        }
        if constexpr (kAddend) {
            low += __uint_as_float(addends << 16);
            high += __uint_as_float(addends & 0xffff0000u);
        }
        return ptx::pack_bf16(low + offset.x, high + offset.y);
    }
};

using Eight = Packed<8, Bf16>;

struct StoreRounded {
    static constexpr bool kOperand = false;
    Rows<Bf16> c;

    __device__ void start() {}
    __device__ void store(int row, int col, const Eight& eight, const Eight& /*operand*/) {
        ptx::store_global(reinterpret_cast<uint4*>(c.at(row, col)), eight.words[0]);
    }
    __device__ void finish() {}
};

__device__ inline Vector<8> squares_of(const Eight& eight) {
    Vector<8> v = unpack<8>(eight);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = relu_squared(v[i]);
    return v;
}

// c = relu(r)² for the rounded value r.
struct StoreSquares {
    static constexpr bool kOperand = false;
    Rows<Bf16> c;

    __device__ void start() {}
    __device__ void store(int row, int col, const Eight& eight, const Eight& /*operand*/) {
        ptx::store_global(reinterpret_cast<uint4*>(c.at(row, col)), pack<Bf16>(squares_of(eight)).words[0]);
    }
    __device__ void finish() {}
};

// And the FP8 form of c with its amax, as op::Quantize of c.
struct StoreQuantizedSquares {
    static constexpr bool kOperand = false;
    Rows<Bf16> c;
    Rows<E4m3> quantized;
    float* scale;
    float constant;        // above 0: the scale
    uint32_t* amax;        // bits of a value ≥ 0; null: not requested
    uint32_t largest = 0;  // two bf16
    float inverse = 0.0f;

    __device__ void start() {
        const float divisor = constant > 0.0f ? constant : *scale;
        inverse = divisor == 0.0f ? 0.0f : 1.0f / divisor;
        if (constant > 0.0f && blockIdx.x + threadIdx.x == 0) *scale = divisor;
    }
    __device__ void store(int row, int col, const Eight& eight, const Eight& /*operand*/) {
        const Eight squares = pack<Bf16>(squares_of(eight));
        ptx::store_global(reinterpret_cast<uint4*>(c.at(row, col)), squares.words[0]);
        constexpr uint32_t kMagnitudes = 0x7fff7fffu;
#pragma unroll
        for (int i = 0; i < 4; ++i) largest = ptx::larger_halves(largest, squares.bits[i] & kMagnitudes);
        Vector<8> v = unpack<8>(squares);
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] *= inverse;
        store_word(reinterpret_cast<uint2*>(quantized.at(row, col)),
                   make_uint2(ptx::pack_fp8<E4m3>(v[0], v[1], v[2], v[3]),
                              ptx::pack_fp8<E4m3>(v[4], v[5], v[6], v[7])));
    }
    __device__ void finish() {
        if (amax) note_amax(amax, larger(largest << 16, largest & 0xffff0000u));
    }
};

// c = r · 2√operand for the rounded value r: the gradient through relu².
struct StoreThroughSquares {
    static constexpr bool kOperand = true;
    Rows<Bf16> c;
    Rows<const Bf16> operand;

    __device__ void start() {}
    __device__ void store(int row, int col, const Eight& eight, const Eight& squares) {
        Vector<8> v = unpack<8>(eight);
        const Vector<8> y = unpack<8>(squares);
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] *= relu_squared_slope<Bf16>(y[i]);
        ptx::store_global(reinterpret_cast<uint4*>(c.at(row, col)), pack<Bf16>(v).words[0]);
    }
    __device__ void finish() {}
};

template <class Value, class Body>
struct PanelEpilogue {
    static constexpr bool kReads = Value::kAddend || Body::kOperand;
    static constexpr int kPanels = kColumns / 64, kRowsAtOnce = 4, kPasses = kWarpRows / kRowsAtOnce;
    static constexpr int kPanelBytes = kWarpRows * kRowBytes;
    static_assert(kStagingBytes == 2 * kPanelBytes && !(Value::kAddend && Body::kOperand));
    Value value;
    Body body;
    int m, n;  // n: a multiple of 8

    struct Nothing {};
    struct Chunks {
        Eight of[kPanels][kPasses];
    };
    using Ahead = std::conditional_t<kReads, Chunks, Nothing>;

    // A lane's row and column of a pass over a panel.
    __device__ static int row_of(const Place& place, int pass) {
        return place.row + pass * kRowsAtOnce + ptx::lane_id() / 8;
    }
    __device__ static int col_of(const Place& place, int panel) {
        return place.col + panel * 64 + ptx::lane_id() % 8 * 8;
    }

    __device__ void start() {
        value.start();
        body.start();
    }

    __device__ Ahead begin(const Place& place) const {
        Ahead ahead;
        if constexpr (kReads) {
#pragma unroll
            for (int panel = 0; panel < kPanels; ++panel) {
#pragma unroll
                for (int pass = 0; pass < kPasses; ++pass) {
                    const int row = row_of(place, pass), col = col_of(place, panel);
                    Eight& eight = ahead.of[panel][pass];
                    eight.words[0] = make_uint4(0, 0, 0, 0);
                    if (row < m && col < n) eight = load_packed<8>(source().at(row, col));
                }
            }
        }
        return ahead;
    }

    // In the buffer of a panel: the chunk of lane's row and column in a pass; the row of a matrix of matrices 4·four … of the 16, two of
    // which are next to each other, then the next eight columns.
    __device__ static int chunk_offset(int pass) {
        const int row = pass * kRowsAtOnce + ptx::lane_id() / 8;
        return row * kRowBytes + ((ptx::lane_id() % 8) ^ (row % 8)) * 16;
    }
    __device__ static int matrix_offset(int four) {
        const int matrix = ptx::lane_id() / 8, i = ptx::lane_id() % 8;
        return (i + matrix % 2 * 8) * kRowBytes + ((2 * four + matrix / 2) ^ i) * 16;
    }

    __device__ void end(const Place& place, const float (&sums)[wgmma::kWideTiles][4], const Ahead& ahead,
                        void* staging) {
#pragma unroll
        for (int panel = 0; panel < kPanels; ++panel) {
            // Of two buffers: a barrier of the other one has ended the reads of this one.
            char* const buffer = static_cast<char*>(staging) + panel % 2 * kPanelBytes;
            uint32_t addends[4][4] = {};
            if constexpr (Value::kAddend) {
#pragma unroll
                for (int pass = 0; pass < kPasses; ++pass)
                    store_word(reinterpret_cast<uint4*>(buffer + chunk_offset(pass)),
                               ahead.of[panel][pass].words[0]);
                __syncwarp();
#pragma unroll
                for (int four = 0; four < 4; ++four)
                    ptx::ldmatrix_x4(addends[four], buffer + matrix_offset(four));
                __syncwarp();
            }
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
                ptx::stmatrix_x4(buffer + matrix_offset(four), words);
            }
            __syncwarp();
            Eight eight[kPasses];
#pragma unroll
            for (int pass = 0; pass < kPasses; ++pass)
                eight[pass].words[0] = load_word(reinterpret_cast<const uint4*>(buffer + chunk_offset(pass)));
#pragma unroll
            for (int pass = 0; pass < kPasses; ++pass) {
                const int row = row_of(place, pass), col = col_of(place, panel);
                if (row >= m || col >= n) continue;
                if constexpr (Body::kOperand)
                    body.store(row, col, eight[pass], ahead.of[panel][pass]);
                else
                    body.store(row, col, eight[pass], eight[pass]);
            }
        }
    }

    __device__ void finish() {
        body.finish();
    }

  private:
    __device__ const Rows<const Bf16>& source() const {
        if constexpr (Value::kAddend)
            return value.addend;
        else
            return body.operand;
    }
    __device__ float2 bias_at(int col) const {
        float2 offset;
        offset.x = offset.y = 0.0f;
        if (value.bias && col < n) offset = load_word(reinterpret_cast<const float2*>(value.bias + col));
        return offset;
    }
};

}  // namespace speedrun::product_wgmma
