// Keys with some dimensions taken from the token before, one thread per chunk of the result. Roofline bound,
// real of b bytes: 2·T·H·D·b in either direction; a chunk from the adjacent row is read once. Legend: T rows,
// H heads of D columns · W elements of a chunk, which are shifted together or not at all.
#include "kernels/cuda/blocks/vector.cuh"
#include "kernels/cuda/ops/cuda_ops.h"

namespace speedrun {

namespace key_offset_cu {
namespace {

template <class Real, bool kBackward>
struct OffsetKeys {
    Rows<Real> to, from;
    unsigned half, rotated, sequence_length;

    template <int W>
    __device__ __forceinline__ void operator()(int64_t row, int64_t col, Chunk<W>) const {
        const bool rotates = static_cast<unsigned>(col) % half < rotated;
        const unsigned place = static_cast<unsigned>(row) % sequence_length;
        const bool first = place == 0, last = place == sequence_length - 1;
        if constexpr (!kBackward) {
            const int64_t source = rotates || first ? row : row - 1;
            store_vector<W>(to.at(row, col), load_vector<W>(from.at(source, col)));
        } else {
            // Unneeded values are not loaded and are 0.
            Packed<W, Real> own = {}, after = {};
            if (rotates || first) own = load_packed<W>(from.at(row, col));
            if (!rotates && !last) after = load_packed<W>(from.at(row + 1, col));
            Vector<W> sum = unpack(own);
            const Vector<W> more = unpack(after);
#pragma unroll
            for (int i = 0; i < W; ++i) sum[i] += more[i];
            store_vector<W>(to.at(row, col), sum);
        }
    }
};

template <bool kBackward>
void run(const Tensor& to, const Tensor& from, const KeyOffsetOptions& o, LaunchSite site) {
    const int64_t half = o.head_dim / 2;
    cuda::with_real(from.dtype, [&]<class Real>() {
        constexpr int kWide = kVectorWidth<Real>;
        const bool whole = half % kWide == 0 && o.rotated_pairs % kWide == 0;
        cuda::with_width<Real>(whole && aligned_rows(kWide, {to, from}), [&]<int W>() {
            map<W>({from.rows(), from.cols()},
                   OffsetKeys<Real, kBackward>{Rows<Real>(to), Rows<Real>(from), static_cast<unsigned>(half),
                                               static_cast<unsigned>(o.rotated_pairs),
                                               static_cast<unsigned>(o.sequence_length)},
                   site);
        });
    });
}

}  // namespace
}  // namespace key_offset_cu

void CudaOps::enqueue(const op::OffsetKeysForward& a, Stream& stream) {
    using namespace key_offset_cu;
    run<false>(a.y, a.x, a.options, stream);
}

void CudaOps::enqueue(const op::OffsetKeysBackward& a, Stream& stream) {
    using namespace key_offset_cu;
    run<true>(a.dx, a.dy, a.options, stream);
}

}  // namespace speedrun
