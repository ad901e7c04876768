#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace speedrun {

using cpu::Vec;

namespace {

// A matrix and the scratch tensors of its iterations.
struct PolarMatrix {
    Tensor x;     // [R,C]
    Tensor a, b;  // [side,side]
    Tensor next;  // [R,C]

    PolarMatrix(Tensor batch, Tensor workspace, int64_t index) {
        const int64_t rows = batch.shape[1], cols = batch.shape[2], side = std::min(rows, cols);
        int64_t at = index * op::PolarExpress::workspace_size(1, rows, cols);
        const auto next_part = [&](int64_t r, int64_t c) {
            const Tensor part = matrix_in(workspace, at, r, c);
            at += r * c;
            return part;
        };
        x = matrix_in(batch, index * rows * cols, rows, cols);
        a = next_part(side, side);
        b = next_part(side, side);
        next = next_part(rows, cols);
    }

    // [r,c] from element `first` on. Tensors of a dry run have no memory.
    static Tensor matrix_in(Tensor all, int64_t first, int64_t r, int64_t c) {
        char* data = all.data ? static_cast<char*>(all.data) + first * size_of(all.dtype) : nullptr;
        return Tensor(data, all.dtype, {r, c});
    }
};

// Matmuls of an iteration, from X in `from` to the next X in `to`.
struct PolarProducts {
    cpu::Gemm gram, square, update;

    PolarProducts(const PolarMatrix& m, Tensor from, Tensor to, float factor, Isa isa) {
        const bool wide = m.x.rows() <= m.x.cols();  // A = XXᵀ and X ← BX; otherwise A = XᵀX and X ← XB
        const auto product = [&](Tensor c, Tensor left, Tensor right, const cpu::GemmOptions& options) {
            return cpu::product_of(c, left, right, Tensor{}, options, "polar_express", isa);
        };
        gram = product(m.a, from, from, {.transpose_a = !wide, .transpose_b = wide, .symmetric = true});
        square = product(m.b, m.a, m.a, {.symmetric = true});
        update = product(to, wide ? m.b : from, wide ? from : m.b, {.beta = factor, .base = from});
    }
    int64_t workspace() const {
        return std::max({product_workspace(gram), product_workspace(square), product_workspace(update)});
    }
    int64_t flops() const { return gram.flops() + square.flops() + update.flops(); }
};

// x /= 1.02·‖x‖ + epsilon, with the sum over fixed chunks.
template <class Real>
void normalize(Real* x, int64_t count, float epsilon) {
    std::array<float, cpu::kReductionChunks> partial;
    cpu::parallel_for(cpu::kReductionChunks, [&](int64_t chunk) {
        const auto [begin, end] = cpu::chunk_of(count, chunk, cpu::kReductionChunks);
        Vec squares{};
        cpu::for_vectors(end - begin, [&, first = begin](int64_t i, auto width) {
            const Vec v = cpu::load(x + first + i, width);
            squares = fma(v, v, squares);
        });
        partial[chunk] = cpu::sum(squares);
    });
    float total = 0.0f;
    for (float value : partial) total += value;
    const float factor = 1.0f / (1.02f * std::sqrt(total) + epsilon);
    cpu::for_blocks(count, [&](int64_t begin, int64_t size) {
        cpu::for_vectors(size, [&](int64_t i, auto width) {
            cpu::store(x + begin + i, factor * cpu::load(x + begin + i, width), width);
        });
    });
}

// second ← b·first + c·second
template <class Real>
void polynomial(Real* second, const Real* first, int64_t count, const PolarCoefficients& k) {
    cpu::for_blocks(count, [&](int64_t begin, int64_t size) {
        cpu::for_vectors(size, [&](int64_t i, auto width) {
            const Vec sum =
                k.b * cpu::load(first + begin + i, width) + k.c * cpu::load(second + begin + i, width);
            cpu::store(second + begin + i, sum, width);
        });
    });
}

// Replaces m.x, using loops of the calling thread's team.
template <class Real>
void orthogonalize(const PolarMatrix& m, float epsilon, Isa isa, void* workspace) {
    normalize(m.x.as<Real>(), m.x.numel(), epsilon);
    Tensor from = m.x, to = m.next;
    for (const PolarCoefficients& k : kPolarExpress) {
        const PolarProducts products(m, from, to, k.a, isa);
        run_product(products.gram, workspace);
        run_product(products.square, workspace);
        polynomial(m.b.as<Real>(), m.a.as<Real>(), m.a.numel(), k);
        run_product(products.update, workspace);
        std::swap(from, to);
    }
    if (from.data != m.x.data) std::copy_n(from.as<Real>(), from.numel(), m.x.as<Real>());
}

}  // namespace

// If one matrix had all threads, each loop of each iteration would end with a barrier. So matrices run one
// per thread, in groups of the number of threads. The rest run one by one with all threads. Both give the
// same bits, because the summation order does not depend on the thread.
void CpuOps::enqueue(const op::PolarExpress& call, Stream& stream) {
    const int64_t threads = device_.num_threads();
    for (size_t batch = 0; batch < call.x.size(); ++batch) {
        const Tensor x = call.x[batch], scratch = call.workspace_of(batch);
        const int64_t count = x.shape[0];
        if (count == 0) continue;
        const PolarMatrix first(x, scratch, 0);
        const PolarProducts products(first, first.x, first.next, 1.0f, isa_);
        const auto iterations = static_cast<int64_t>(std::size(kPolarExpress));
        flops_ += count * iterations * products.flops();
        const int64_t bytes = cpu::round_up(products.workspace(), 64);
        auto* const memory = static_cast<char*>(workspace(stream, std::min(threads, count) * bytes));
        cpu::submit(stream, "polar_express", [=, epsilon = call.epsilon, isa = isa_] {
            cpu::with_real(x.dtype, [&]<class Real>() {
                const int64_t together = count / threads * threads;
                const auto one = [&](int64_t i, void* own) {
                    orthogonalize<Real>(PolarMatrix(x, scratch, i), epsilon, isa, own);
                };
                cpu::parallel_for_dynamic(together, [&](int64_t i) {
                    const cpu::AloneScope alone;
                    one(i, memory + cpu::member_index() * bytes);
                });
                for (int64_t i = together; i < count; ++i) one(i, memory);
            });
        });
    }
}

}  // namespace speedrun
