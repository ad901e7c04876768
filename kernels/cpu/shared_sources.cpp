#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd.h"

namespace speedrun {

namespace {

using cpu::row_of;
using cpu::Vec;

// Row t of all sums, for one source.
template <class Real>
void shared_source_row(const op::SharedSourcesBackward& a, int m, int64_t t) {
    const SharedSource& shared = a.sources[m];
    const Real* dy[kMaxTerms];
    float weights[kMaxTerms];
    const SharedTerm* terms[kMaxTerms];
    int count = 0;
    for (int l = 0; l < count_sums(a.sums); ++l) {
        const SharedTerm& term = a.sums[l].terms[m];
        if (!term.coefficient.present()) continue;
        dy[count] = row_of<Real>(a.sums[l].dy, t);
        weights[count] = term.factor * *row_of<float>(term.coefficient, t);
        terms[count++] = &term;
    }
    const Real* source = row_of<Real>(shared.source, t);
    Real* dsource = row_of<Real>(shared.dsource, t);
    Vec dots[kMaxTerms] = {};
    cpu::for_vectors(shared.source.cols(), [&](int64_t i, auto width) {
        const Vec s = cpu::load(source + i, width);
        Vec sum = shared.accumulate ? cpu::load(dsource + i, width) : Vec();
        for (int l = 0; l < count; ++l) {
            const Vec g = cpu::load(dy[l] + i, width);
            dots[l] = fma(g, s, dots[l]);
            sum += weights[l] * g;
        }
        cpu::store(dsource + i, sum, width);
    });
    for (int l = 0; l < count; ++l) {
        float& out = *row_of<float>(terms[l]->dcoefficient, t);
        const float dot = terms[l]->factor * cpu::sum(dots[l]);
        out = terms[l]->accumulate ? out + dot : dot;
    }
}

}  // namespace

void CpuOps::enqueue(const op::SharedSourcesBackward& a, Stream& stream) {
    cpu::submit(stream, "shared_sources_backward", [a] {
        cpu::with_real(a.sources[0].source.dtype, [&]<class Real>() {
            cpu::parallel_for(a.sources[0].source.rows(), [&](int64_t t) {
                for (int m = 0; m < count_sources(a.sources); ++m) shared_source_row<Real>(a, m, t);
            });
        });
    });
}

}  // namespace speedrun
