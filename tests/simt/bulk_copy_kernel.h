// A matmul with a producer warp, for tests of the executor and of the race check: a pipeline of bulk copies, as in the kernels for
// compute capability 9.0.
#pragma once

#include "kernels/cuda/blocks/bulk_copy.h"
#include "kernels/cuda/blocks/tile.cuh"

namespace speedrun::testing {

enum class PipelineFault {
    none,
    no_init,
    no_publish,
    no_block_barrier,
    arrival_without_bytes,  // instead of expect_bytes()
    too_few_bytes,
    too_many_bytes,
    no_full_wait,
    no_empty_wait,
    no_empty_arrival,
    second_arrival,
    no_last_wait,  // the block ends with copies in flight
    no_staging_barrier,
    unfenced_write  // plain writes to a tile that a bulk copy overwrites
};

constexpr int kPipelineRows = 64, kPipelineThreads = 256, kPipelineStages = 2;
constexpr int64_t kPipelineBytes = 2 * kPipelineStages * kPipelineRows * 128 + kPipelineStages * 2 * 8;

// c[64 × 64] = a · bᵀ in steps of 64 columns. Warpgroup 0 multiplies, the first thread of warpgroup 1 copies.
inline __global__ void pipeline_kernel(float* c, const __grid_constant__ TensorMap a,
                                       const __grid_constant__ TensorMap b, int steps, PipelineFault fault) {
    using Fault = PipelineFault;
    wait_for_prior_kernels();
    constexpr int kTile = kPipelineRows * 64;
    Bf16* const tiles = shared_memory<Bf16>(0);  // [stage][a, b]
    auto* const full = static_cast<mbarrier::Barrier*>(
        shared_memory<mbarrier::Barrier>(2 * kPipelineStages * kTile * int64_t{sizeof(Bf16)}));
    auto* const empty = full + kPipelineStages;
    const int thread = static_cast<int>(threadIdx.x);
    if (thread == 0 && fault != Fault::no_init) {
        for (int s = 0; s < kPipelineStages; ++s) {
            mbarrier::init(full + s, 1);
            mbarrier::init(empty + s, wgmma::kThreads);
        }
        if (fault != Fault::no_publish) mbarrier::publish();
    }
    if (fault != Fault::no_block_barrier) __syncthreads();
    if (thread >= wgmma::kThreads) {
        registers::decrease<40>();
        if (thread > wgmma::kThreads) return;
        for (int step = 0; step < steps; ++step) {
            const int s = step % kPipelineStages, round = step / kPipelineStages;
            Bf16* const tile = tiles + 2 * s * kTile;
            if (fault != Fault::no_empty_wait) mbarrier::wait(empty + s, (round + 1) % 2);
            const int bytes =
                2 * kTile * 2 + (fault == Fault::too_many_bytes) * 16 - (fault == Fault::too_few_bytes) * 16;
            if (fault == Fault::arrival_without_bytes)
                mbarrier::arrive(full + s);
            else
                mbarrier::expect_bytes(full + s, bytes);
            copy_box(tile, a, full + s, 64 * step, 0, 0);
            copy_box(tile + kTile, b, full + s, 64 * step, 0, 0);
        }
        return;
    }
    registers::increase<256>();
    float sums[8][4] = {};
    for (int step = 0; step < steps; ++step) {
        const int s = step % kPipelineStages, round = step / kPipelineStages;
        Bf16* const tile = tiles + 2 * s * kTile;
        if (fault == Fault::no_last_wait && step + 1 == steps) return;
        if (fault != Fault::no_full_wait) mbarrier::wait(full + s, round % 2);
        float product[8][4];
        wgmma::begin(product);
        wgmma::multiply_rows<64, kPipelineRows>(product, tile, 0, tile + kTile);
        wgmma::wait<0>(product);
        for (int n = 0; n < 8; ++n)
            for (int i = 0; i < 4; ++i) sums[n][i] += product[n][i];
        if (fault == Fault::unfenced_write) {
            named_barrier::sync<wgmma::kThreads>(2);
            tile[thread * 2] = from_float<Bf16>(1.0f);
        }
        if (fault != Fault::no_empty_arrival) mbarrier::arrive(empty + s);
        if (fault == Fault::second_arrival) mbarrier::arrive(empty + s);
    }
    // The results pass through the first tiles: other threads may still wait for products on them.
    named_barrier::sync<wgmma::kThreads>(1);
    auto* const staged = reinterpret_cast<float*>(tiles);
    const int lane = thread % 32, row = thread / 32 * 16 + lane / 4, column = lane % 4 * 2;
    for (int n = 0; n < 8; ++n)
        for (int i = 0; i < 4; ++i) staged[(row + i / 2 * 8) * 64 + 8 * n + column + i % 2] = sums[n][i];
    if (fault != Fault::no_staging_barrier) named_barrier::sync<wgmma::kThreads>(1);
    for (int i = thread; i < kPipelineRows * 64; i += wgmma::kThreads) c[i] = staged[i];
}

}  // namespace speedrun::testing
