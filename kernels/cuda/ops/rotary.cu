// QK-norm and rotary position embedding of q and k, and the mix of v with a value embedding. A
// group of G lanes owns one head's vector: lane i holds chunk i of the first half and the same chunk of the
// second, which the rotation pairs.
// Roofline bound, real of b bytes: forward 4·T·H·D·b (q and k read and written), with the mix 3·T·H·D·b more,
// backward 6·T·H·D·b; cos and sin are read from L2. Legend: T tokens, H heads, D head size, P positions · W
// elements of a chunk · G lanes of a group.
#include "kernels/cuda/blocks/architecture.h"
#include "kernels/cuda/blocks/reduce.cuh"
#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace speedrun {

namespace rotary_cu {
namespace {

template <class Real>
struct Arguments {
    Rows<Real> q, k, from_q, from_k;  // results and operands, which may be the same
    Rows<Real> out_q, out_k;          // backward: the outputs of the forward
    Rows<float> rstd;
    const float *cos, *sin;
    const int32_t* position;
    int64_t vectors, positions;                  // vectors: T · heads_of_row
    int num_heads, head_dim, group, group_bits;  // group: 2^group_bits
    int value_dim;                               // columns of a head of v; kMix only
    int positions_of_row;                        // head h uses the position of h modulo this
    float epsilon;
    bool normalize, rotate;
    int first_head, heads_of_row;  // heads to process, counted over q, k and v
    Rows<Real> mixed, v, z;        // kMix only, like the coefficients
    const float* coefficients;
};

// Calls body(chunk's column in the half, chunk) for this lane's chunks. All lanes run the same number of
// rounds.
template <int W, class Body>
__device__ __forceinline__ void for_half(int half, int group, Body&& body) {
    for (int col = static_cast<int>(threadIdx.x) % group * W; col < half; col += group * W)
        body(col, Chunk<W>{half - col < W ? half - col : W});
}

// The head's vector of v.
template <int W, class Real>
__device__ __forceinline__ void mix_value(const Arguments<Real>& a, int64_t row, int64_t head) {
    const float cv = a.coefficients[0], cz = a.coefficients[1];
    const int half = a.value_dim / 2;
    const int64_t offset = head * a.value_dim;
    for_half<W>(half, a.group, [&](int col, Chunk<W> chunk) {
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            const int64_t place = offset + part * half + col;
            Vector<W> v = chunk.load(a.v.at(row, place));
            const Vector<W> z = chunk.load(a.z.at(row, place));
#pragma unroll
            for (int i = 0; i < W; ++i) v[i] = cv * v[i] + cz * z[i];
            chunk.store(a.mixed.at(row, place), v);
        }
    });
}

enum class Pass { forward, forward_and_mix, backward };

// Blocks per multiprocessor for which registers are limited; 0: the compiler chooses. Its choice spills in backward
// on sm_80 and sm_89, and on sm_120 in the mix of single elements.
template <int W, Pass kPass>
constexpr int kBlocks = kPass == Pass::backward || (kSm120 && W == 1 && kPass == Pass::forward_and_mix) ? 4
                                                                                                        : 0;

// A lane's part of a head's vector: chunks of both halves. In forward with W > 1, the chunks of a head do not
// exceed the lanes of a group. They stay in registers for both passes over the vector: 80 us for 32,768 x
// 1,536 on an H100, against 98 with a second read. Backward has twice the data and gains nothing.
template <class Real, int W, bool kKept>
struct Halves {
    Packed<W, Real> kept[kKept ? 2 : 1] = {};

    __device__ __forceinline__ void fetch(const Real* vector, int half, int group) {
        if constexpr (kKept) {
            for_half<W>(half, group, [&](int col, Chunk<W>) {
                kept[0] = load_packed<W>(vector + col);
                kept[1] = load_packed<W>(vector + half + col);
            });
        }
    }
    __device__ __forceinline__ Vector<W> at(int part, const Real* vector, int half, int col,
                                            Chunk<W> chunk) const {
        if constexpr (kKept) return unpack<W, Real>(kept[part]);
        return chunk.load(vector + part * half + col);
    }
};

// Row of a vector, and its index among heads_of_row.
__device__ __forceinline__ int64_t row_of(int64_t vector, int64_t vectors, int heads_of_row) {
    if (vectors > 0xffffffffll) return vector / heads_of_row;  // in 64 bits it costs as much as the rotation
    return static_cast<unsigned>(vector) / static_cast<unsigned>(heads_of_row);
}

template <class Real, int W, Pass kPass>
__global__ void __launch_bounds__(sizes::kRowThreads, kBlocks<W, kPass>)
    qk_norm_rotary_kernel(Arguments<Real> a) {
    wait_for_prior_kernels();
    const int64_t vector = (int64_t{blockIdx.x} * sizes::kRowThreads + threadIdx.x) >> a.group_bits;
    constexpr bool kBackward = kPass == Pass::backward;
    bool live = vector < a.vectors;  // other lanes still take part in warp sums
    const int half = a.head_dim / 2;
    const int64_t row = live ? row_of(vector, a.vectors, a.heads_of_row) : 0;
    int head = live ? a.first_head + static_cast<int>(vector - row * a.heads_of_row) : 0;
    if constexpr (kPass == Pass::forward_and_mix) {
        if (head >= 2 * a.num_heads) {
            mix_value<W>(a, row, head - 2 * a.num_heads);
            live = false;
            head = 0;
        }
    }
    const bool of_q = head < a.num_heads;
    const int64_t offset = int64_t{of_q ? head : head - a.num_heads} * a.head_dim;
    Real* const to = of_q ? a.q.at(row, offset) : a.k.at(row, offset);
    const Real* const u = of_q ? a.from_q.at(row, offset) : a.from_k.at(row, offset);
    const Real* const out = of_q ? a.out_q.at(row, offset) : a.out_k.at(row, offset);
    Halves<Real, W, (W > 1 && !kBackward)> of_u;
    Halves<Real, W, false> of_out;
    if (live) of_u.fetch(u, half, a.group);
    const int64_t position =
        a.rotate && live ? a.position[row * a.positions_of_row + head % a.positions_of_row] : 0;

    float r = 1.0f, dot = 0.0f;
    if (a.normalize) {
        // Backward: rotation preserves inner products, so Σ dû·û is computed from the rotated vectors.
        float sum = 0.0f;
        if (live) {
            for_half<W>(half, a.group, [&](int col, Chunk<W> chunk) {
#pragma unroll
                for (int part = 0; part < 2; ++part) {
                    const Vector<W> x = of_u.at(part, u, half, col, chunk);
                    const Vector<W> y = kBackward ? of_out.at(part, out, half, col, chunk) : x;
#pragma unroll
                    for (int i = 0; i < W; ++i) sum += x[i] * y[i];
                }
            });
        }
        sum = group_sum(sum, a.group) / static_cast<float>(a.head_dim);
        if (!live) return;
        if constexpr (kBackward) {
            dot = sum;
            r = *a.rstd.at(row, head);
        } else {
            r = 1.0f / sqrtf(sum + a.epsilon);
            if (threadIdx.x % a.group == 0) *a.rstd.at(row, head) = r;
        }
    }
    if (!live) return;
    const bool known =
        position >= 0 && position < a.positions;  // outside the table: NaN, without access to foreign memory
    for_half<W>(half, a.group, [&](int col, Chunk<W> chunk) {
        Vector<W> x = of_u.at(0, u, half, col, chunk), y = of_u.at(1, u, half, col, chunk);
        if (kBackward && a.normalize) {
            const Vector<W> first = of_out.at(0, out, half, col, chunk),
                            second = of_out.at(1, out, half, col, chunk);
#pragma unroll
            for (int i = 0; i < W; ++i) {
                x[i] -= first[i] * dot;
                y[i] -= second[i] * dot;
            }
        }
        Vector<W> c, s;
        if (a.rotate && known) {
            c = chunk.load(a.cos + position * half + col);
            s = chunk.load(a.sin + position * half + col);
        } else {
#pragma unroll
            for (int i = 0; i < W; ++i) {
                c[i] = a.rotate ? quiet_nan() : 1.0f;
                s[i] = 0.0f;
            }
        }
#pragma unroll
        for (int i = 0; i < W; ++i) {
            const float first = x[i] * r, second = y[i] * r, sine = kBackward ? -s[i] : s[i];
            x[i] = first * c[i] - second * sine;
            y[i] = first * sine + second * c[i];
        }
        chunk.store(to + col, x);
        chunk.store(to + half + col, y);
    });
}

// Results, and operands, absent if they are the results. In backward both are gradients.
struct Vectors {
    Tensor q, k, from_q, from_k;
};

// a: arguments of forward or backward.
template <Pass kPass, class Call>
void run(const Call& a, const Vectors& of, const ValueMix& value, LaunchSite site) {
    const bool apart = of.from_q.present();
    const Tensor q = of.q, k = of.k, from_q = apart ? of.from_q : q, from_k = apart ? of.from_k : k;
    const RotaryOptions& o = a.options;
    const Tensor cos = a.cos, sin = a.sin, position = a.position;
    constexpr bool kMix = kPass == Pass::forward_and_mix;
    const bool rotates = o.normalize || o.rotate;
    const int64_t half = o.head_dim / 2, heads = o.num_heads * ((rotates ? 2 : 0) + (kMix ? 1 : 0));
    const int64_t value_dim = kMix ? value.v.cols() / o.num_heads : 0;
    const int64_t vectors = q.rows() * heads;
    if (vectors == 0) return;
    cuda::with_real(q.dtype, [&]<class Real>() {
        constexpr int kWide = kVectorWidth<Real>;
        const bool aligned =
            half % kWide == 0 && half <= sizes::kWarp * kWide && value_dim % (2 * kWide) == 0 &&
            aligned_rows(kWide,
                         {q, k, from_q, from_k, a.q, a.k, cos, sin, value.mixed, value.v, value.mix.z});
        cuda::with_width<Real>(aligned, [&]<int W>() {
            int bits = 0;
            while ((1 << bits) < sizes::kWarp && (W << bits) < half) ++bits;
            const int group = 1 << bits;
            const Arguments<Real> arguments{Rows<Real>(q),
                                            Rows<Real>(k),
                                            Rows<Real>(from_q),
                                            Rows<Real>(from_k),
                                            Rows<Real>(a.q),
                                            Rows<Real>(a.k),
                                            Rows<float>(a.rstd),
                                            o.rotate ? cos.as<float>() : nullptr,
                                            o.rotate ? sin.as<float>() : nullptr,
                                            o.rotate ? position.as<int32_t>() : nullptr,
                                            vectors,
                                            o.rotate ? cos.rows() : 0,
                                            static_cast<int>(o.num_heads),
                                            static_cast<int>(o.head_dim),
                                            group,
                                            bits,
                                            static_cast<int>(value_dim),
                                            static_cast<int>(position.rank == 2 ? position.cols() : 1),
                                            o.epsilon,
                                            o.normalize,
                                            o.rotate,
                                            static_cast<int>(rotates ? 0 : 2 * o.num_heads),
                                            static_cast<int>(heads),
                                            Rows<Real>(value.mixed),
                                            Rows<Real>(value.v),
                                            Rows<Real>(value.mix.z),
                                            kMix ? value.mix.coefficients.as<float>() : nullptr};
            launch(qk_norm_rotary_kernel<Real, W, kPass>, grid_of(vectors * group, sizes::kRowThreads),
                   sizes::kRowThreads, 0, site, arguments);
        });
    });
}

}  // namespace
}  // namespace rotary_cu

void CudaOps::enqueue(const op::QkNormRotaryForward& a, Stream& stream) {
    using namespace rotary_cu;
    const Vectors vectors{a.q, a.k, a.from_q, a.from_k};
    if (a.value.mixed.present()) return run<Pass::forward_and_mix>(a, vectors, a.value, stream);
    run<Pass::forward>(a, vectors, {}, stream);
}

void CudaOps::enqueue(const op::QkNormRotaryBackward& a, Stream& stream) {
    using namespace rotary_cu;
    run<Pass::backward>(a, Vectors{a.dq, a.dk, a.from_dq, a.from_dk}, {}, stream);
}

}  // namespace speedrun
