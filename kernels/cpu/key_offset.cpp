#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace speedrun {

namespace {

using cpu::Vec;

// Calls body(first column, count, shifted) for all columns of a row.
template <class Body>
void for_parts(const KeyOffsetOptions& o, const Body& body) {
    const int64_t half = o.head_dim / 2;
    for (int64_t begin = 0; begin < o.num_heads * o.head_dim; begin += half) {
        body(begin, o.rotated_pairs, true);
        body(begin + o.rotated_pairs, half - o.rotated_pairs, false);
    }
}

}  // namespace

void CpuOps::enqueue(const op::OffsetKeysForward& a, Stream& stream) {
    cpu::submit(stream, "offset_keys_forward", [=] {
        cpu::with_real(a.x.dtype, [&]<class Real>() {
            cpu::parallel_for(a.x.rows(), [&](int64_t t) {
                const bool first = t % a.options.sequence_length == 0;
                const Real* x = a.x.as<Real>() + t * a.x.row_stride;
                const Real* before = first ? x : x - a.x.row_stride;
                Real* y = a.y.as<Real>() + t * a.y.row_stride;
                for_parts(a.options, [&](int64_t begin, int64_t count, bool rotates) {
                    const Real* const from = (rotates ? x : before) + begin;
                    cpu::for_vectors(count, [&](int64_t i, auto width) {
                        cpu::store(y + begin + i, cpu::load(from + i, width), width);
                    });
                });
            });
        });
    });
}

void CpuOps::enqueue(const op::OffsetKeysBackward& a, Stream& stream) {
    cpu::submit(stream, "offset_keys_backward", [=] {
        cpu::with_real(a.dy.dtype, [&]<class Real>() {
            cpu::parallel_for(a.dy.rows(), [&](int64_t t) {
                const int64_t place = t % a.options.sequence_length;
                const bool first = place == 0, last = place == a.options.sequence_length - 1;
                const Real* dy = a.dy.as<Real>() + t * a.dy.row_stride;
                const Real* after = last ? dy : dy + a.dy.row_stride;
                Real* dx = a.dx.as<Real>() + t * a.dx.row_stride;
                for_parts(a.options, [&](int64_t begin, int64_t count, bool rotates) {
                    cpu::for_vectors(count, [&](int64_t i, auto width) {
                        Vec sum = rotates || first ? cpu::load(dy + begin + i, width) : Vec{};
                        if (!rotates && !last) sum += cpu::load(after + begin + i, width);
                        cpu::store(dx + begin + i, sum, width);
                    });
                });
            });
        });
    });
}

}  // namespace speedrun
