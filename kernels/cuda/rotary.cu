// QK-norm and rotary position embedding, in place on q and k. A group of G lanes owns one head's vector: lane
// i holds chunk i of the first half and the same chunk of the second, which the rotation pairs. Floor, real
// of b bytes: forward 4·T·H·D·b (q and k read and written), backward 6·T·H·D·b; cos and sin come from L2.
// Legend: T tokens, H heads, D head size, P positions · W elements of a chunk · G lanes of a group.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/op_checks.h"

namespace speedrun {

namespace {

template <class Real>
struct Arguments {
    Rows<Real> q, k, out_q, out_k;  // changed in place; backward: the outputs of the forward
    Rows<float> rstd;
    const float *cos, *sin;
    const int32_t* position;
    int64_t vectors, positions;  // T·2H
    int num_heads, head_dim, group;
    bool normalize, rotate;
};

// body(chunk's column in the half, chunk) for this lane's chunks. All lanes run the same number of rounds.
template <int W, class Body>
__device__ __forceinline__ void for_half(int half, int group, Body&& body) {
    for (int col = static_cast<int>(threadIdx.x) % group * W; col < half; col += group * W)
        body(col, Chunk<W>{half - col < W ? half - col : W});
}

template <class Real, int W, bool kBackward>
__global__ void __launch_bounds__(tiles::kRowThreads) qk_norm_rotary_kernel(Arguments<Real> a) {
    const int64_t vector = (int64_t{blockIdx.x} * tiles::kRowThreads + threadIdx.x) / a.group;
    const bool live = vector < a.vectors;  // the others still take part in the sums of their warp
    const int heads = 2 * a.num_heads, half = a.head_dim / 2;
    const int64_t row = live ? vector / heads : 0;
    const int head = live ? static_cast<int>(vector - row * heads) : 0;
    const bool of_q = head < a.num_heads;
    const int64_t offset = int64_t{of_q ? head : head - a.num_heads} * a.head_dim;
    Real* const u = of_q ? a.q.at(row, offset) : a.k.at(row, offset);
    const Real* const out = of_q ? a.out_q.at(row, offset) : a.out_k.at(row, offset);

    float r = 1.0f, dot = 0.0f;
    if (a.normalize) {
        // Backward: a rotation keeps inner products, so Σ dû·û can be taken of the rotated vectors as they
        // are.
        float sum = 0.0f;
        if (live) {
            for_half<W>(half, a.group, [&](int col, Chunk<W> chunk) {
#pragma unroll
                for (int part = 0; part < 2; ++part) {
                    const Vector<W> x = chunk.load(u + part * half + col);
                    const Vector<W> y = kBackward ? chunk.load(out + part * half + col) : x;
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
            r = 1.0f / sqrtf(sum + kNormEpsilon);
            if (threadIdx.x % a.group == 0) *a.rstd.at(row, head) = r;
        }
    }
    if (!live) return;
    const int64_t position = a.rotate ? a.position[row] : 0;
    const bool known =
        position >= 0 && position < a.positions;  // outside its table: NaN, and no foreign memory
    for_half<W>(half, a.group, [&](int col, Chunk<W> chunk) {
        Vector<W> x = chunk.load(u + col), y = chunk.load(u + half + col);
        if (kBackward && a.normalize) {
            const Vector<W> first = chunk.load(out + col), second = chunk.load(out + half + col);
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
        chunk.store(u + col, x);
        chunk.store(u + half + col, y);
    });
}

// q, k change in place; backward: they are gradients, and out_q, out_k the outputs of the forward.
template <bool kBackward>
void run(Tensor q, Tensor k, Tensor out_q, Tensor out_k, Tensor rstd, Tensor cos, Tensor sin, Tensor position,
         const RotaryOptions& o, LaunchSite site) {
    const int64_t vectors = q.rows() * 2 * o.num_heads, half = o.head_dim / 2;
    if (vectors == 0) return;
    cuda::with_real(q.dtype, [&]<class Real>() {
        constexpr int kWide = kVectorWidth<Real>;
        const bool aligned = half % kWide == 0 && aligned_rows(kWide, {q, k, out_q, out_k, cos, sin});
        cuda::with_width<Real>(aligned, [&]<int W>() {
            int group = 1;
            while (group < tiles::kWarp && group * W < half) group *= 2;
            const Arguments<Real> arguments{Rows<Real>(q),
                                            Rows<Real>(k),
                                            Rows<Real>(out_q),
                                            Rows<Real>(out_k),
                                            Rows<float>(rstd),
                                            o.rotate ? cos.as<float>() : nullptr,
                                            o.rotate ? sin.as<float>() : nullptr,
                                            o.rotate ? position.as<int32_t>() : nullptr,
                                            vectors,
                                            o.rotate ? cos.rows() : 0,
                                            static_cast<int>(o.num_heads),
                                            static_cast<int>(o.head_dim),
                                            group,
                                            o.normalize,
                                            o.rotate};
            launch(qk_norm_rotary_kernel<Real, W, kBackward>, grid_of(vectors * group, tiles::kRowThreads),
                   tiles::kRowThreads, 0, site, arguments);
        });
    });
}

}  // namespace

void CudaOps::qk_norm_rotary_forward(Tensor q, Tensor k, Tensor rstd, Tensor cos, Tensor sin, Tensor position,
                                     const RotaryOptions& options, Stream& stream) {
    check_rotary(q, k, rstd, cos, sin, position, options);
    run<false>(q, k, q, k, rstd, cos, sin, position, options, stream);
}

void CudaOps::qk_norm_rotary_backward(Tensor dq, Tensor dk, Tensor q, Tensor k, Tensor rstd, Tensor cos,
                                      Tensor sin, Tensor position, const RotaryOptions& options,
                                      Stream& stream) {
    check_rotary(q, k, rstd, cos, sin, position, options);
    expect(dq, q.dtype, {q.rows(), q.cols()}, "rotary dq");
    expect(dk, q.dtype, {q.rows(), q.cols()}, "rotary dk");
    run<true>(dq, dk, q, k, rstd, cos, sin, position, options, stream);
}

}  // namespace speedrun
