// Orthogonal polar factor for Muon (Polar Express, Amsel et al. 2025, algorithm 1), with the matmuls of
// matmul.cu, or on wgmma (polar_express_wgmma.cu). Two of the three matmuls of an iteration are symmetric: one triangle is computed. The matrices
// that fit in the workspace are processed together.
//
// Roofline bound of one matrix, side S = min(R,C), length L = max(R,C): 5 iterations of 2·S²·L (update) +
// S²·L + S³ (halves of gram and square) FLOP; R·C elements read and written once per matmul.
#include <algorithm>
#include <array>

#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/polar_express_wgmma.h"
#include "kernels/cuda/ops/tile_product.h"

namespace speedrun {

namespace polar_express_cu {
namespace {

// A batch [n,R,C] and its scratch matrices: A and B [n,S,S], the next X [n,R,C].
struct Scratch {
    Tensor a, b, next;

    Scratch(Tensor workspace, int64_t n, int64_t rows, int64_t cols) {
        const int64_t side = std::min(rows, cols);
        int64_t at = 0;
        const auto part = [&](int64_t r, int64_t c) {
            auto* const data = static_cast<char*>(workspace.data);
            const Tensor result(data ? data + at * size_of(workspace.dtype) : nullptr, workspace.dtype,
                                {n, r, c});
            at += n * r * c;
            return result;
        };
        a = part(side, side);
        b = part(side, side);
        next = part(rows, cols);
    }
};

int64_t flops_of(Tensor x) {
    const int64_t side = std::min(x.shape[1], x.shape[2]);
    return 10 * x.shape[0] * side * (2 * x.shape[1] * x.shape[2] + side * side);
}

void iterate(Tensor from, Tensor to, const Scratch& scratch, const PolarCoefficients& k, Stream& stream) {
    const bool wide = from.shape[1] <= from.shape[2];  // A = XXᵀ and X ← BX; otherwise A = XᵀX and X ← XB
    const Tensor &a = scratch.a, &b = scratch.b;
    Product gram{a, from, from, !wide, wide};
    gram.symmetric = true;
    tile_product(gram, nullptr, stream);
    Product polynomial{b, a, a, false, true, k.c, k.b, a};  // A is symmetric: A·A = A·Aᵀ
    polynomial.symmetric = true;
    tile_product(polynomial, nullptr, stream);
    tile_product({to, wide ? b : from, wide ? from : b, false, false, 1.0f, k.a, from}, nullptr, stream);
}

}  // namespace
}  // namespace polar_express_cu

void CudaOps::enqueue(const op::PolarExpress& call, Stream& stream) {
    using namespace polar_express_cu;
    // Selected by shape alone: the bits of a matrix do not depend on the other batches. The workspace is used again.
    const auto fits = [&](const Tensor& x) {
        return wgmma_epilogues_ && fits_polar_express_wgmma(x, call.workspace);
    };
    op::PolarExpress fitting = call;
    std::erase_if(fitting.x, [&](const Tensor& x) { return !fits(x); });
    const auto normalize = [&](const Tensor& out, const Tensor& x) {
        polar_normalize(out, x, call.epsilon, stream);
    };
    if (!fitting.x.empty()) polar_express_wgmma(fitting, normalize, stream);
    for (size_t batch = 0; batch < call.x.size(); ++batch) {
        const Tensor x = call.x[batch];
        const int64_t n = x.shape[0], rows = x.shape[1], cols = x.shape[2];
        flops_ += flops_of(x);
        if (n == 0 || fits(x)) continue;
        const Scratch scratch(call.workspace_of(batch), n, rows, cols);
        normalize(scratch.next, x);
        Tensor from = scratch.next, to = x;
        for (const PolarCoefficients& k : kPolarExpress) {
            iterate(from, to, scratch, k, stream);
            std::swap(from, to);
        }
    }
}

}  // namespace speedrun
