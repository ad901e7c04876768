// Portable hand-written matmuls: used where the library (cuBLASLt) has no kernel, and as its reference. One
// kernel for bf16 on tensor cores, one for f32 with multiply-adds; sums in f32.
//
// Roofline bound: 2·M·N·K FLOP. Bytes: op(a) is read once per column of tiles, op(b) once per row of tiles, c
// written once.
//
//   kernel   tile of c   K step   stages   threads       a warp or thread owns   shared memory
//   bf16     128 × 128       64        3       256 (8 warps)      64 × 32              96 KiB
//   f32       64 × 64        16        1       256                 4 × 4              8.5 KiB
//
// If c has few tiles and K is long, K is split into a number of parts that depends on the shape alone. Each
// part goes to the workspace and a second kernel adds them in order: same shapes, same bits.
#include "kernels/cuda/ops/tile_product.h"

#include <algorithm>

#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/matmul_mma.cuh"
#include "kernels/cuda/ops/matmul_portable.cuh"

namespace speedrun {

namespace matmul_cu {
namespace {

using namespace product;

constexpr int64_t kMinSplitK = 512, kFewTiles = 32,
                  kMaxSplits = 32;  // 32 tiles leave most of 132 multiprocessors idle

struct Plan {
    int64_t m, n, k, batch, tiles_of_rows, tiles, steps, splits;
};

Plan plan_of(const Product& x) {
    const bool batched = x.c.rank == 3;
    const int64_t tile = x.a.dtype == DType::bf16 ? kTile : kSmallTile;
    const int64_t step = x.a.dtype == DType::bf16 ? kStep : kSmallStep;
    Plan plan{};
    plan.m = x.c.shape[batched];
    plan.n = x.c.shape[batched + 1];
    plan.k = x.a.shape[batched + (x.transpose_a ? 0 : 1)];
    plan.batch = batched ? x.c.shape[0] : 1;
    plan.tiles_of_rows = (plan.m + tile - 1) / tile;
    plan.tiles = x.symmetric ? plan.tiles_of_rows * (plan.tiles_of_rows + 1) / 2
                             : plan.tiles_of_rows * ((plan.n + tile - 1) / tile);
    plan.steps = (plan.k + step - 1) / step;
    plan.splits = 1;
    if (!batched && !x.symmetric && plan.tiles < kFewTiles) {
        plan.splits =
            std::clamp(std::min(plan.k / kMinSplitK, 4 * kFewTiles / plan.tiles), int64_t{1}, kMaxSplits);
    }
    return plan;
}

template <class In, class Out>
Arguments<In, Out> arguments_of(const Product& x, const Plan& plan) {
    const auto batch_stride = [&](const Tensor& t) { return t.rank == 3 ? t.shape[1] * t.shape[2] : 0; };
    Arguments<In, Out> p{};
    p.c = x.c.as<Out>();
    p.addend = x.addend.present() ? x.addend.as<Out>() : nullptr;
    p.bias = x.bias.present() ? x.bias.as<float>() : nullptr;
    p.c_stride = x.c.row_stride;
    p.a_stride = x.a.row_stride;
    p.b_stride = x.b.row_stride;
    p.addend_stride = x.addend.row_stride;
    p.c_batch = batch_stride(x.c);
    p.a_batch = batch_stride(x.a);
    p.b_batch = batch_stride(x.b);
    p.addend_batch = batch_stride(x.addend);
    p.part_stride = plan.m * plan.n;
    p.m = static_cast<int>(plan.m);
    p.n = static_cast<int>(plan.n);
    p.k = static_cast<int>(plan.k);
    p.steps_of_part = static_cast<int>((plan.steps + plan.splits - 1) / plan.splits);
    p.alpha = x.alpha;
    p.beta = x.beta;
    p.transpose_a = x.transpose_a;
    p.transpose_b = x.transpose_b;
    p.symmetric = x.symmetric;
    p.paired = reinterpret_cast<uintptr_t>(p.c) % (2 * sizeof(Out)) == 0 && p.c_stride % 2 == 0 &&
               p.c_batch % 2 == 0 && (plan.splits == 1 || p.part_stride % 2 == 0);
    return p;
}

bool aligned(const Tensor& x) {  // all rows to 16 bytes
    const bool matrices = x.rank < 3 || x.shape[1] * x.shape[2] % 8 == 0;
    return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.row_stride % 8 == 0 && matrices;
}

template <class Body>
void with_bool(bool value, Body&& body) {
    if (value) return body(std::true_type{});
    return body(std::false_type{});
}

template <class In, class Out>
void launch_tiles(const Product& x, const Plan& plan, Arguments<In, Out> p, Stream& stream) {
    p.a = x.a.as<In>();
    p.b = x.b.as<In>();
    const dim3 grid(static_cast<unsigned>(plan.tiles), static_cast<unsigned>(plan.splits),
                    static_cast<unsigned>(plan.batch));
    if constexpr (std::is_same_v<In, Bf16>) {
        with_bool(x.transpose_a, [&](auto transpose_a) {
            with_bool(x.transpose_b, [&](auto transpose_b) {
                with_bool(aligned(x.a) && aligned(x.b), [&](auto all_aligned) {
                    launch(matmul_mma_kernel<transpose_a(), transpose_b(), all_aligned(), Out>, grid,
                           kThreads, kMmaSharedBytes, stream, p);
                });
            });
        });
    } else {
        launch(matmul_f32_kernel, grid, kThreads, kSmallSharedBytes, stream, p);
    }
}

template <class In, class Out>
void launch_product(const Product& x, void* workspace, Stream& stream) {
    const Plan plan = plan_of(x);
    if (plan.splits == 1) return launch_tiles<In, Out>(x, plan, arguments_of<In, Out>(x, plan), stream);
    auto* parts = static_cast<float*>(workspace);
    Product split = x;
    split.c = Tensor(parts, DType::f32, {plan.m, plan.n});
    split.addend = split.bias = Tensor();
    split.alpha = 1.0f;
    launch_tiles<In, float>(split, plan, arguments_of<In, float>(split, plan), stream);
    const int64_t blocks = (plan.m * plan.n + kThreads - 1) / kThreads;
    launch(matmul_parts_kernel<Out>, dim3(static_cast<unsigned>(blocks)), kThreads, 0, stream,
           arguments_of<float, Out>(x, plan), static_cast<const float*>(parts),
           static_cast<int>(plan.splits));
}

}  // namespace
}  // namespace matmul_cu

int64_t product_workspace(const Product& x) {
    using namespace matmul_cu;
    const Plan plan = plan_of(x);
    return plan.splits > 1 ? plan.splits * plan.m * plan.n * 4 : 0;
}

void tile_product(const Product& x, void* workspace, Stream& stream) {
    using namespace matmul_cu;
    if (x.a.dtype == DType::f32) return launch_product<float, float>(x, workspace, stream);
    if (x.c.dtype == DType::f32) return launch_product<Bf16, float>(x, workspace, stream);
    launch_product<Bf16, Bf16>(x, workspace, stream);
}

void CudaOps::enqueue(const op::Matmul& a, Stream& stream) {
    using namespace matmul_cu;
    const int64_t m = a.c.shape[0], n = a.c.shape[1], k = a.transpose_a ? a.a.shape[0] : a.a.shape[1];
    flops_ += 2 * m * n * k;
    if (by_wgmma(a, stream)) return;
    if (library_) {
        op::Matmul for_library = a;
        if (a.bias.present() && a.c.dtype == DType::bf16) {  // libraries require a bias of c's type
            for_library.bias = Tensor(workspace(stream, n * size_of(DType::bf16)), DType::bf16, {n});
            cast({.out = for_library.bias, .in = a.bias}, stream);
        }
        if (library_->matmul(for_library, stream)) return apply(a.epilogue, a.c, stream);
    }
    Product product{a.c, a.a, a.b, a.transpose_a, a.transpose_b};
    product.addend = a.accumulate ? a.c : a.addend;
    product.beta = product.addend.present() ? 1.0f : 0.0f;
    product.bias = a.bias;
    tile_product(product, workspace(stream, product_workspace(product)), stream);
    apply(a.epilogue, a.c, stream);
}

}  // namespace speedrun
