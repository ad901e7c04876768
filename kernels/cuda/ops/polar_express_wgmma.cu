// Iterations of Polar Express on wgmma, for compute capability 9.0. Batches of one side share the launches of A·A.
//
//   matmul                    operands      tiles                      epilogue
//   A = XXᵀ or XᵀX            nt or tn      128 x 256, of a triangle   mirrored
//   B = bA + cA²              nt            128 x 256, of a triangle   addend, mirrored
//   X ← aX + BX or aX + XB    nn or nt      128 x 256                  addend
#include "kernels/cuda/ops/polar_express_wgmma.h"

#include <algorithm>
#include <map>

#include "kernels/cuda/ops/polar_express_wgmma.cuh"

namespace speedrun {

namespace polar_express_wgmma_cu {
namespace {

using namespace polar_wgmma;
using Nt = Form<Bf16, false, true>;
using Nn = Form<Bf16, false, false>;
using Tn = Form<Bf16, true, false>;

// c [n,M,N] = alpha·op(a) op(b) (+ beta·addend)
struct Batch {
    Tensor c, a, b, addend;
    float alpha, beta;
};

template <class Form, bool kSymmetric, bool kAddend>
void multiply(const Batch& x, Stream& stream) {
    using Tiles = std::conditional_t<kSymmetric, TriangleList, TileList>;
    const int64_t n = x.c.shape[0], rows = x.c.shape[1], cols = x.c.shape[2];
    const auto k = static_cast<int>(x.a.shape[Form::kTransposeA ? 1 : 2]);
    const Epilogue<kAddend, kSymmetric> epilogue{x.c.as<Bf16>(),
                                                 kAddend ? x.addend.as<Bf16>() : nullptr,
                                                 rows * cols,
                                                 static_cast<int>(rows),
                                                 static_cast<int>(cols),
                                                 x.alpha,
                                                 x.beta};
    const auto tiles = [&] {
        if constexpr (kSymmetric)
            return TriangleList(rows, n);
        else
            return TileList(rows, cols, n);
    }();
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(tiles.count, multiprocessors(stream)));
    launch(polar_product_kernel<Form, Tiles, Epilogue<kAddend, kSymmetric>>, blocks, kThreads, kSharedBytes,
           stream, map_a<Form>(x.a, stream), map_b<Form>(x.b, stream), k, tiles, epilogue);
}

// A batch [n,R,C] in two buffers, with its slices of A and B.
struct Matrices {
    Tensor from, to;
    Tensor a, b;
    bool wide() const { return from.shape[1] <= from.shape[2]; }
};

// Batches with one side S: their A and B [n,S,S] are adjacent.
struct Group {
    Tensor a, b;
    std::vector<Matrices> batches;
};

std::vector<Group> groups_of(const op::PolarExpress& call) {
    std::map<int64_t, std::vector<Tensor>> by_side;
    for (const Tensor& x : call.x)
        if (x.shape[0] > 0) by_side[std::min(x.shape[1], x.shape[2])].push_back(x);
    auto* const memory = static_cast<char*>(call.workspace.data);
    int64_t used = 0;
    const auto take = [&](int64_t n, int64_t rows, int64_t cols) {
        char* const data = memory ? memory + used * size_of(DType::bf16) : nullptr;
        used += n * rows * cols;
        return Tensor(data, DType::bf16, {n, rows, cols});
    };
    std::vector<Group> groups;
    for (const auto& [side, all] : by_side) {
        Group& group = groups.emplace_back();
        int64_t matrices = 0, first = 0;
        for (const Tensor& x : all) matrices += x.shape[0];
        group.a = take(matrices, side, side);
        group.b = take(matrices, side, side);
        for (const Tensor& x : all) {
            const auto slice = [&, side = side](const Tensor& of) {
                auto* const data = of.as<Bf16>();
                return Tensor(data ? data + first * side * side : nullptr, DType::bf16,
                              {x.shape[0], side, side});
            };
            group.batches.push_back({.from = take(x.shape[0], x.shape[1], x.shape[2]),
                                     .to = x,
                                     .a = slice(group.a),
                                     .b = slice(group.b)});
            first += x.shape[0];
        }
    }
    return groups;
}

void iterate(Group& group, const PolarCoefficients& k, Stream& stream) {
    for (const Matrices& x : group.batches) {
        const Batch gram{x.a, x.from, x.from, {}, 1.0f, 0.0f};
        if (x.wide())
            multiply<Nt, true, false>(gram, stream);
        else
            multiply<Tn, true, false>(gram, stream);
    }
    multiply<Nt, true, true>({group.b, group.a, group.a, group.a, k.c, k.b}, stream);  // A = Aᵀ
    for (Matrices& x : group.batches) {
        if (x.wide())
            multiply<Nn, false, true>({x.to, x.b, x.from, x.from, 1.0f, k.a}, stream);
        else
            multiply<Nt, false, true>({x.to, x.from, x.b, x.from, 1.0f, k.a}, stream);  // B = Bᵀ
        std::swap(x.from, x.to);
    }
}

}  // namespace
}  // namespace polar_express_wgmma_cu

bool fits_polar_express_wgmma(const Tensor& x, const Tensor& workspace) {
    return x.dtype == DType::bf16 && x.shape[1] % 8 == 0 && x.shape[2] % 8 == 0 &&
           aligned_rows(8, {x, workspace});
}

void polar_express_wgmma(const op::PolarExpress& call, const PolarNormalize& normalize, Stream& stream) {
    using namespace polar_express_wgmma_cu;
    for (Group& group : groups_of(call)) {
        for (const Matrices& x : group.batches) normalize(x.from, x.to);
        for (const PolarCoefficients& k : kPolarExpress) iterate(group, k, stream);
    }
}

}  // namespace speedrun
