// The sum of two tensors, and the gradients of a weighted one.
// Floor, real of b bytes: add 3·T·C·b; mix backward 5·T·C·b (dy, x, z read, dx, dz written),
// one more where dz accumulates. mix backward sums its coefficients' gradients in the same pass. Legend: T
// rows, C columns; W elements that a thread handles.
#include "kernels/cuda/blocks/reduction.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace speedrun {

namespace {

template <class Real>
struct Add {
    Rows<Real> y, x, z;

    template <int W>
    __device__ __forceinline__ void operator()(int64_t row, int64_t col, Chunk<W> chunk) const {
        Vector<W> a = chunk.load(x.at(row, col));
        const Vector<W> b = chunk.load(z.at(row, col));
#pragma unroll
        for (int i = 0; i < W; ++i) a[i] += b[i];
        chunk.store(y.at(row, col), a);
    }
};

template <class Real>
struct MixBackward {
    Rows<Real> dx, dz, dy, x, z;
    const float* coefficients;
    bool accumulate_z;

    template <int W>
    __device__ __forceinline__ void operator()(int64_t row, int64_t col, Chunk<W> chunk,
                                               float (&sums)[2]) const {
        const float cx = coefficients[0], cz = coefficients[1];
        const Vector<W> a = chunk.load(x.at(row, col)), b = chunk.load(z.at(row, col));
        Vector<W> da = chunk.load(dy.at(row, col)), db;
        if (accumulate_z) db = chunk.load(dz.at(row, col));
#pragma unroll
        for (int i = 0; i < W; ++i) {
            sums[0] = fmaf(da[i], a[i], sums[0]);
            sums[1] = fmaf(da[i], b[i], sums[1]);
            db[i] = accumulate_z ? cz * da[i] + db[i] : cz * da[i];
            da[i] *= cx;
        }
        chunk.store(dz.at(row, col), db);
        chunk.store(dx.at(row, col), da);
    }
};

}  // namespace

void CudaOps::add(const op::Add& a, Stream& stream) {
    expect(a.y, a.x.dtype, {a.x.rows(), a.x.cols()}, "add y");
    expect(a.z, a.x.dtype, {a.x.rows(), a.x.cols()}, "add z");
    cuda::with_real(a.x.dtype, [&]<class Real>() {
        cuda::with_width<Real>(aligned_rows(kVectorWidth<Real>, {a.y, a.x, a.z}), [&]<int W>() {
            map<W>(map_shape({a.y, a.x, a.z}), Add<Real>{Rows<Real>(a.y), Rows<Real>(a.x), Rows<Real>(a.z)},
                   stream);
        });
    });
}

void CudaOps::mix_backward(const op::MixBackward& a, Stream& stream) {
    for (const Tensor& tensor : {a.dx, a.dz, a.dy, a.z})
        expect(tensor, a.x.dtype, {a.x.rows(), a.x.cols()}, "mix gradient");
    expect(a.coefficients, DType::f32, {2}, "mix coefficients");
    expect(a.dcoefficients, DType::f32, {2}, "mix dcoefficients");
    auto* const partial =
        static_cast<float*>(workspace(stream, reduce_blocks(a.x.numel()) * 2 * int64_t{sizeof(float)}));
    cuda::with_real(a.x.dtype, [&]<class Real>() {
        cuda::with_width<Real>(aligned_rows(kVectorWidth<Real>, {a.dx, a.dz, a.dy, a.x, a.z}), [&]<int W>() {
            reduce<W, 2>(
                a.dcoefficients.as<float>(), partial, map_shape({a.dx, a.dz, a.dy, a.x, a.z}), a.accumulate,
                MixBackward<Real>{Rows<Real>(a.dx), Rows<Real>(a.dz), Rows<Real>(a.dy), Rows<Real>(a.x),
                                  Rows<Real>(a.z), a.coefficients.as<float>(), a.accumulate_z},
                stream);
        });
    });
}

}  // namespace speedrun
