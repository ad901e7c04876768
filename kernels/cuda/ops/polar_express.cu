// Orthogonal polar factor for Muon (Polar Express, Amsel et al. 2025, algorithm 1), with the matmuls of
// matmul.cu. Two of the three matmuls of an iteration are symmetric: one triangle is computed. The matrices
// that fit in the workspace are processed together.
//
// Roofline bound of one matrix, side S = min(R,C), length L = max(R,C): 5 iterations of 2·S²·L (update) +
// S²·L + S³ (halves of gram and square) FLOP; R·C elements read and written once per matmul.
#include <algorithm>
#include <array>

#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/tile_product.h"

namespace speedrun {

namespace polar_express_cu {
namespace {

Tensor matrices_of(Tensor batch, int64_t begin, int64_t count) {
    const int64_t offset = begin * batch.shape[1] * batch.shape[2] * size_of(batch.dtype);
    char* data = batch.data ? static_cast<char*>(batch.data) + offset : nullptr;
    return Tensor(data, batch.dtype, {count, batch.shape[1], batch.shape[2]});
}

}  // namespace
}  // namespace polar_express_cu

void CudaOps::enqueue(const op::PolarExpress& call, Stream& stream) {
    using namespace polar_express_cu;
    const Tensor x = call.x, scratch = call.workspace;
    const int64_t n = x.shape[0], rows = x.shape[1], cols = x.shape[2], side = std::min(rows, cols);
    const bool wide = rows <= cols;  // A = XXᵀ and X ← BX; otherwise A = XᵀX and X ← XB
    const int64_t of_one = 2 * side * side + rows * cols;
    const int64_t together = std::clamp<int64_t>(scratch.numel() / of_one, 1, std::max<int64_t>(n, 1));
    flops_ += 10 * n * side * (2 * rows * cols + side * side);

    for (int64_t begin = 0; begin < n; begin += together) {
        const int64_t count = std::min(together, n - begin);
        const auto part = [&](int64_t offset, int64_t r, int64_t c) {
            char* data =
                scratch.data ? static_cast<char*>(scratch.data) + offset * size_of(x.dtype) : nullptr;
            return Tensor(data, x.dtype, {count, r, c});
        };
        const Tensor given = matrices_of(x, begin, count);
        const Tensor a = part(0, side, side), b = part(count * side * side, side, side);
        Tensor from = given, to = part(2 * count * side * side, rows, cols);
        polar_normalize(given, call.epsilon, stream);
        for (const PolarCoefficients& k : kPolarExpress) {
            Product gram{a, from, from, !wide, wide};
            gram.symmetric = true;
            tile_product(gram, nullptr, stream);
            Product polynomial{b, a, a, false, true, k.c, k.b, a};  // A is symmetric: A·A = A·Aᵀ
            polynomial.symmetric = true;
            tile_product(polynomial, nullptr, stream);
            tile_product({to, wide ? b : from, wide ? from : b, false, false, 1.0f, k.a, from}, nullptr,
                         stream);
            std::swap(from, to);
        }
        cast({.out = given, .in = from}, stream);
    }
}

}  // namespace speedrun
