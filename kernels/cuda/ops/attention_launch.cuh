// Common code of attention launchers: argument sizes, grids, and the two kernels that precede every backward
// pass.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "kernels/cuda/blocks/reduce.cuh"
#include "kernels/cuda/ops/attention.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace speedrun::attention {

// ---- rows: Σ dout·o per query and head (Dao et al. 2022, algorithm 4, line 19), one warp each.
template <class Real>
__global__ void attention_delta_kernel(float* delta, View<const Real> dout, View<const Real> o, Sizes p) {
    wait_for_prior_kernels();
    const int64_t row = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= p.rows) return;
    const int64_t head = blockIdx.y;
    const Real* x = dout.head(row, head * p.value_dim);
    const Real* y = o.head(row, head * p.value_dim);
    float sum = 0.0f;
    for (int d = ptx::lane_id(); d < p.value_dim; d += 32) sum += to_float(x[d]) * to_float(y[d]);
    sum = warp_sum(sum);
    if (ptx::lane_id() == 0) delta[head * p.rows + row] = sum;
}

// Lowest first visible key per group of queries; one warp each.
template <bool kPlaced>
__global__ void attention_group_low_kernel(int32_t* group_low, Problem<kPlaced> p) {
    wait_for_prior_kernels();
    const int64_t groups = (p.queries() + kGroup - 1) / kGroup;
    const int64_t index = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
    if (index >= groups * p.num_sequences) return;
    const FirstRows first = p.first_of(index / groups);
    const int lowest = low_range<kGroup>(p, first, static_cast<int>(index % groups) * kGroup).lowest;
    if (ptx::lane_id() == 0) group_low[index] = lowest;
}

template <class Arguments>
Sizes sizes_of(const Arguments& a) {  // arguments must be checked
    const AttentionOptions& o = a.options;
    const int64_t value_dim = value_dim_of(a.v, o);
    for (const int64_t dim : {o.head_dim, value_dim})
        if (dim < 1 || dim > kMaxHeadDim)
            throw_internal("attention: head size {} is not in 1 … {}", dim, kMaxHeadDim);
    const int64_t rows = std::max(a.q.rows(), a.k.rows());
    if (rows >= (int64_t{1} << 31)) throw_internal("attention: {} rows do not fit first_key", rows);
    const AttentionRows counts = attention_rows(a);
    const int64_t window = o.window < o.sequence_length ? o.window : 0;
    return {a.first_key.template as<int32_t>(),
            a.q.rows(),
            static_cast<int>(counts.sequences),
            static_cast<int>(counts.keys),
            static_cast<int>(window),
            static_cast<int>(o.head_dim),
            static_cast<int>(value_dim),
            o.scale,
            a.place.present() ? a.place.template as<int32_t>() : nullptr,
            static_cast<int>(counts.queries)};
}

// True if the operands suit tensor cores and 16-byte accesses.
inline bool suit_tensor_cores(std::initializer_list<Tensor> operands) {
    return std::all_of(operands.begin(), operands.end(), [](const Tensor& x) {
        return x.dtype == DType::bf16 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
               x.row_stride % 8 == 0;
    });
}
inline HeadWidths widths_of(const Sizes& p) {
    return {p.head_dim, p.value_dim};
}
inline bool uses_mma(std::initializer_list<Tensor> operands, const Sizes& p) {
    return has_mma_kernels(widths_of(p)) && suit_tensor_cores(operands);
}

template <class Real>
View<Real> view(const Tensor& x) {
    return {x.as<std::remove_const_t<Real>>(), x.row_stride};
}

// One block per head and tile of `rows` queries or keys of a sequence.
struct Grid {
    int64_t sequences, heads;
    dim3 of(int64_t rows, int64_t rows_of_tile) const {
        const int64_t tiles = (rows + rows_of_tile - 1) / rows_of_tile;
        return dim3(static_cast<unsigned>(tiles * sequences), static_cast<unsigned>(heads));
    }
};

template <class Body>
void with_head_dim(int64_t head_dim, Body&& body) {
    if (head_dim == 64) return body.template operator()<64>();
    return body.template operator()<128>();
}

struct BackwardScratch {
    float* delta;        // [H,Tq]
    int32_t* group_low;  // lowest first key per group of queries, for each sequence
};
inline int64_t num_groups(const Sizes& p) {
    return p.num_sequences * ((int64_t{p.num_queries} + kGroup - 1) / kGroup);
}
inline int64_t scratch_bytes(const Sizes& p, int64_t num_heads) {
    return (num_heads * p.rows + num_groups(p)) * 4;
}
inline BackwardScratch scratch_at(void* memory, const Sizes& p, int64_t num_heads) {
    auto* const delta = static_cast<float*>(memory);
    return {delta, reinterpret_cast<int32_t*>(delta + num_heads * p.rows)};
}

// Fills the scratch.
template <bool kPlaced>
void launch_backward_inputs(const op::AttentionBackward& a, const Problem<kPlaced>& p,
                            const BackwardScratch& scratch, Stream& stream) {
    const auto blocks_of_warps = [](int64_t warps) { return static_cast<unsigned>((warps + 7) / 8); };
    launch(attention_group_low_kernel<kPlaced>, dim3(blocks_of_warps(num_groups(p))), 256, 0, stream,
           scratch.group_low, p);
    cuda::with_real(a.q.dtype, [&]<class Real>() {
        launch(attention_delta_kernel<Real>,
               dim3(blocks_of_warps(p.rows), static_cast<unsigned>(a.options.num_heads)), 256, 0, stream,
               scratch.delta, view<const Real>(a.dout), view<const Real>(a.o), static_cast<const Sizes&>(p));
    });
}

}  // namespace speedrun::attention
