// Attention backward by wgmma: the store of dq or dk, with the backward of QK-norm and rotary (op::RotaryOfInputs). The gradients are
// rounded to bf16 in the staging tile, and a group of lanes then owns a row, as in rotary.cu: the results are bitwise those of its pass.
#pragma once

#include "kernels/cuda/blocks/reduce.cuh"
#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/cuda/ops/attention_wgmma.cuh"
#include "kernels/cuda/ops/rotary.cuh"

namespace speedrun::attention {

// Operands of rotary for the queries or for the keys, of all heads.
struct Rotary {
    bool normalize, rotate;  // both false: the gradients are stored unchanged
    const float* rstd;       // rows rstd_stride apart, a column per head
    int rstd_stride;
    const float *cos, *sin;   // rows of D/2
    const int32_t* position;  // positions_of_row in a row; head h has number h modulo that
    int positions_of_row;
    unsigned positions;  // rows of the tables

    __device__ bool present() const { return normalize || rotate; }
};

// A warp's 16 rows of the owned tile, of heads of D columns. kLanes lanes share a row; lane n of them has the chunks n and n + D/16.
template <int D, class Layout>
class RotaryRows {
  public:
    // Reads the operands of rows i … i + 15 of a tile, which starts at row `begin` of the sequence with this first row. The tile may be
    // overwritten afterwards.
    __device__ void read(const Rotary& of, const Bf16* tile, int i, int64_t first_row, int head, int begin,
                         int end) {
        const int column =
            static_cast<int>(static_cast<unsigned>(head) % static_cast<unsigned>(of.positions_of_row));
        const float* const rstd = of.rstd + first_row * of.rstd_stride + head;
        const int32_t* const position = of.position + first_row * of.positions_of_row + column;
#pragma unroll
        for (int n = 0; n < kRounds; ++n) {
            const int row = i + row_of_lane(n), at = begin + row;
            rstd_[n] = 1.0f;
            position_[n] = 0;
            if (of.normalize) {
                u_[n] = load_halves(tile, row);
                if (at < end) rstd_[n] = rstd[at * of.rstd_stride];
            }
            if (of.rotate && at < end) position_[n] = position[at * of.positions_of_row];
        }
    }

    // Stores rows i … i + 15, staged in a tile by tile::stage_rows().
    __device__ void store(const Rotary& of, const Bf16* tile, int i, Bf16* matrix, int64_t stride, int begin,
                          int end) const {
        if (of.rotate) return store<true>(of, tile, i, matrix, stride, begin, end);
        store<false>(of, tile, i, matrix, stride, begin, end);
    }

  private:
    static constexpr int kLanes = D == 64 ? 4 : 8, kRowsOfRound = 32 / kLanes, kRounds = 16 / kRowsOfRound;
    static_assert(D % 16 == 0 && D / 16 <= kLanes);

    struct Halves {
        Packed<8, Bf16> first, second;
    };
    struct Vectors {
        Vector<8> first, second;
    };
    struct Angles {
        Vector<8> cosine, sine;
    };

    // Eight lanes read different banks of a tile: four lanes of a row have the other half of the banks in the row four further.
    __device__ static int row_of_lane(int n) {
        const int group = ptx::lane_id() / kLanes;
        return n * kRowsOfRound + (kLanes == 4 ? group % 2 * 4 + group / 2 : group);
    }
    __device__ static bool is_idle() {
        return ptx::lane_id() % kLanes >= D / 16;
    }
    __device__ static int chunk_of_lane() {
        return is_idle() ? 0 : ptx::lane_id() % kLanes;
    }
    __device__ static Halves load_halves(const Bf16* tile, int row) {
        const int chunk = chunk_of_lane();
        return {load_packed<8>(tile + Layout::offset(row, chunk)),
                load_packed<8>(tile + Layout::offset(row, chunk + D / 16))};
    }
    __device__ static void store_words(Bf16* to, const Vector<8>& x) {
        ptx::store_global(reinterpret_cast<uint4*>(to), speedrun::pack<Bf16>(x).words[0]);
    }
    __device__ static Vectors unpacked(const Halves& halves) {
        return {unpack(halves.first), unpack(halves.second)};
    }
    __device__ bool is_known(const Rotary& of, int n) const {
        return static_cast<unsigned>(position_[n]) < of.positions;
    }
    __device__ Angles angles_of(const Rotary& of, int n) const {
        const int offset = (is_known(of, n) ? position_[n] : 0) * (D / 2) + 8 * chunk_of_lane();
        return {load_vector<8>(of.cos + offset), load_vector<8>(of.sin + offset)};
    }

    __device__ static void subtract_projection(Vectors& g, const Vectors& u) {
        float sum = 0.0f;
#pragma unroll
        for (int c = 0; c < 8; ++c) sum = rotary::add_product(g.first[c], u.first[c], sum);
#pragma unroll
        for (int c = 0; c < 8; ++c) sum = rotary::add_product(g.second[c], u.second[c], sum);
        const float mean = group_sum(is_idle() ? 0.0f : sum, kLanes) * (1.0f / D);
#pragma unroll
        for (int c = 0; c < 8; ++c) {
            g.first[c] = rotary::without_projection(g.first[c], u.first[c], mean);
            g.second[c] = rotary::without_projection(g.second[c], u.second[c], mean);
        }
    }

    template <bool kRotate>
    __device__ void store(const Rotary& of, const Bf16* tile, int i, Bf16* matrix, int64_t stride, int begin,
                          int end) const {
        Angles angles[2];
        if constexpr (kRotate) angles[0] = angles_of(of, 0);
        Bf16* to = matrix + (begin + i + row_of_lane(0)) * stride + 8 * chunk_of_lane();
#pragma unroll
        for (int n = 0; n < kRounds; ++n, to += kRowsOfRound * stride) {
            if (kRotate && n + 1 < kRounds) angles[(n + 1) % 2] = angles_of(of, n + 1);
            const int row = i + row_of_lane(n);
            Vectors g = unpacked(load_halves(tile, row));
            if (of.normalize) subtract_projection(g, unpacked(u_[n]));
            // A position outside of the tables gives NaN.
            const float r = !kRotate || is_known(of, n) ? rstd_[n] : quiet_nan();
#pragma unroll
            for (int c = 0; c < 8; ++c) {
                const float cosine = kRotate ? angles[n % 2].cosine[c] : 1.0f,
                            sine = kRotate ? angles[n % 2].sine[c] : 0.0f;
                const rotary::Pair back = rotary::rotated_back(g.first[c] * r, g.second[c] * r, cosine, sine);
                g.first[c] = back.first;
                g.second[c] = back.second;
            }
            if (begin + row < end && !is_idle()) {
                store_words(to, g.first);
                store_words(to + D / 2, g.second);
            }
        }
    }

    // Initialised: undefined registers would be live in the loop over the other side's tiles.
    Halves u_[kRounds] = {};
    float rstd_[kRounds] = {};
    int position_[kRounds] = {};
};

// As tile::store_rows(), but after the backward of rotary if it is present.
template <int D, class Layout, int kTiles>
__device__ inline void store_gradient(Bf16* matrix, int64_t stride, int begin, int end, Bf16* tile, int i,
                                      const float (&c)[kTiles][4], float factor, const Rotary& of,
                                      const RotaryRows<D, Layout>& rows) {
    tile::stage_rows<D, Layout>(tile, i, c, factor, factor);
    if (of.present()) return rows.store(of, tile, i, matrix, stride, begin, end);
    tile::store_staged_rows<D, Layout>(matrix, stride, begin, end, tile, i);
}

}  // namespace speedrun::attention
