// The sum of two tensors, and the gradients of a weighted one.
// Floor, real of b bytes: add 3·T·C·b; mix backward 5·T·C·b (dy, x, z read, dx, dz written),
// one more where dz accumulates. mix backward sums its coefficients' gradients in the same pass. Legend: T
// rows, C columns; W elements that a thread handles.
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/reduction.cuh"

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

void CudaOps::add(Tensor y, Tensor x, Tensor z, Stream& stream) {
    expect(y, x.dtype, {x.rows(), x.cols()}, "add y");
    expect(z, x.dtype, {x.rows(), x.cols()}, "add z");
    cuda::with_real(x.dtype, [&]<class Real>() {
        cuda::with_width<Real>(aligned_rows(kVectorWidth<Real>, {y, x, z}), [&]<int W>() {
            map<W>(map_shape({y, x, z}), Add<Real>{Rows<Real>(y), Rows<Real>(x), Rows<Real>(z)}, stream);
        });
    });
}

void CudaOps::mix_backward(Tensor dx, Tensor dz, Tensor dcoefficients, Tensor dy, Tensor x, Tensor z,
                           Tensor coefficients, bool accumulate, bool accumulate_z, Stream& stream) {
    for (const Tensor& tensor : {dx, dz, dy, z})
        expect(tensor, x.dtype, {x.rows(), x.cols()}, "mix gradient");
    expect(coefficients, DType::f32, {2}, "mix coefficients");
    expect(dcoefficients, DType::f32, {2}, "mix dcoefficients");
    auto* const partial =
        static_cast<float*>(workspace(stream, reduce_blocks(x.numel()) * 2 * int64_t{sizeof(float)}));
    cuda::with_real(x.dtype, [&]<class Real>() {
        cuda::with_width<Real>(aligned_rows(kVectorWidth<Real>, {dx, dz, dy, x, z}), [&]<int W>() {
            reduce<W, 2>(dcoefficients.as<float>(), partial, map_shape({dx, dz, dy, x, z}), accumulate,
                         MixBackward<Real>{Rows<Real>(dx), Rows<Real>(dz), Rows<Real>(dy), Rows<Real>(x),
                                           Rows<Real>(z), coefficients.as<float>(), accumulate_z},
                         stream);
        });
    });
}

}  // namespace speedrun
