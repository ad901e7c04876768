#include <algorithm>
#include <numeric>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace speedrun {

namespace {

struct Limit {
    int64_t rows;
    bool others = false;  // index == rows of the table marks a row of another rank
};

// Throws for an index outside its table, with both values: it must never access foreign memory.
int64_t checked(int32_t index, const Limit& limit, const char* what, int64_t t) {
    if (index < 0 || index >= limit.rows + (limit.others ? 1 : 0)) {
        throw_data("embedding: {} {} at row {} is outside the table of {} rows", what, index, t, limit.rows);
    }
    return index;
}

// Sign bits of the row of token t; null without signs.
const int32_t* sign_bits(const op::RowSigns& signs, int64_t t) {
    if (!signs.present()) return nullptr;
    const int64_t row = checked(signs.row.as<int32_t>()[t], {signs.bits.rows()}, "row of signs", t);
    return signs.bits.as<int32_t>() + row * signs.bits.row_stride;
}

// Applies the signs to v, the columns from `col` on; `col` is a multiple of 16.
cpu::Vec with_signs(const int32_t* bits, cpu::Vec v, int64_t col) {
    return bits ? cpu::flip_signs(v, static_cast<uint32_t>(bits[col / 32]) >> (col % 32)) : v;
}

}  // namespace

void CpuOps::enqueue(const op::EmbeddingForward& a, Stream& stream) {
    const int64_t rows = a.out.rows(), cols = a.out.cols();
    cpu::submit(stream, "embedding_forward", [=] {
        const int32_t* ids = a.index.as<int32_t>();
        const int32_t* positions = a.position_table.present() ? a.position.as<int32_t>() : nullptr;
        for (int64_t t = 0; t < rows;
             ++t) {  // before the threads start: exceptions cannot leave a parallel region
            checked(ids[t], {a.table.rows(), a.others}, "token", t);
            if (positions) checked(positions[t], {a.position_table.rows()}, "position", t);
            sign_bits(a.signs, t);
        }
        cpu::with_real(a.out.dtype, [&]<class Real>() {
            cpu::parallel_for(rows, [&](int64_t t) {
                Real* result = a.out.as<Real>() + t * a.out.row_stride;
                const Real* offset =
                    positions ? a.position_table.as<Real>() + positions[t] * a.position_table.row_stride
                              : nullptr;
                if (ids[t] == a.table.rows()) {  // row of another rank
                    if (offset) {
                        std::copy(offset, offset + cols, result);
                    } else {
                        std::fill(result, result + cols, Real(0.0f));
                    }
                    return;
                }
                const Real* row = a.table.as<Real>() + ids[t] * a.table.row_stride;
                if (!positions && !a.signs.present()) {
                    std::copy(row, row + cols, result);
                    return;
                }
                const int32_t* const signs = sign_bits(a.signs, t);
                cpu::for_vectors(cols, [&](int64_t i, auto width) {
                    cpu::Vec sum = with_signs(signs, cpu::load(row + i, width), i);
                    if (offset) sum += cpu::load(offset + i, width);
                    cpu::store(result + i, sum, width);
                });
            });
        });
    });
}

void CpuOps::enqueue(const op::SortIds& a, Stream& stream) {
    const int64_t count = a.index.numel();
    const int64_t limit = a.limit + (a.others ? 1 : 0);
    auto* const places = static_cast<int32_t*>(workspace(stream, limit * int64_t{sizeof(int32_t)}));
    cpu::submit(stream, "sort_ids", [=] {  // stable counting sort
        const int32_t* ids = a.index.as<int32_t>();
        int32_t *const sorted = a.order.as<int32_t>(), *const tokens = sorted + count;
        std::fill(places, places + limit, 0);
        for (int64_t t = 0; t < count; ++t) ++places[checked(ids[t], {a.limit, a.others}, "token", t)];
        std::exclusive_scan(places, places + limit, places, 0);
        for (int64_t t = 0; t < count; ++t) {
            const int32_t place = places[ids[t]]++;
            sorted[place] = ids[t];
            tokens[place] = static_cast<int32_t>(t);
        }
    });
}

void CpuOps::enqueue(const op::EmbeddingBackward& a, Stream& stream) {
    const int64_t rows = a.dout.rows(), cols = a.dout.cols();
    cpu::submit(stream, "embedding_backward", [=] {
        const int32_t *ids = a.order.as<int32_t>(), *tokens = ids + rows;
        for (int64_t i = 0; i < rows; ++i) {
            checked(ids[i], {a.dtable.rows(), a.others}, "token", tokens[i]);
            sign_bits(a.signs, tokens[i]);
        }
        // Tokens whose row another rank has are sorted last.
        const int64_t own = std::lower_bound(ids, ids + rows, a.dtable.rows()) - ids;
        // Each thread owns a range of columns and visits all tokens in order: no atomics, fixed summation
        // order.
        const int64_t vectors = (cols + cpu::kLanes - 1) / cpu::kLanes;
        const int64_t parts = std::min<int64_t>(cpu::team_size(), vectors);
        cpu::with_real(a.dout.dtype, [&]<class Real>() {
            cpu::parallel_for(parts, [&](int64_t part) {
                const auto [first, last] = cpu::chunk_of(vectors, part, parts);
                const int64_t begin = first * cpu::kLanes, end = std::min(last * cpu::kLanes, cols);
                if (!a.accumulate) {
                    for (int64_t v = 0; v < a.dtable.rows(); ++v) {
                        float* row = a.dtable.as<float>() + v * a.dtable.row_stride;
                        std::fill(row + begin, row + end, 0.0f);
                    }
                }
                for (int64_t i = 0; i < own; ++i) {
                    float* sum = a.dtable.as<float>() + ids[i] * a.dtable.row_stride + begin;
                    const Real* row = a.dout.as<Real>() + tokens[i] * a.dout.row_stride + begin;
                    const int32_t* const signs = sign_bits(a.signs, tokens[i]);
                    cpu::for_vectors(end - begin, [&](int64_t c, auto width) {
                        const cpu::Vec term = with_signs(signs, cpu::load(row + c, width), begin + c);
                        cpu::store(sum + c, cpu::load(sum + c, width) + term, width);
                    });
                }
            });
        });
    });
}

}  // namespace speedrun
