// Operations on rows that are exchanged between ranks.
#pragma once

#include "train/model/graph/call.h"
#include "train/model/nodes/key_routes.h"

namespace speedrun {

// Returns rows first, first + step, ... of `rows`.
inline Tensor strided_rows(const Tensor& rows, int64_t first, int64_t step) {
    Tensor apart = rows.row_slice(first, (rows.rows() - first + step - 1) / step);
    apart.row_stride = step * rows.row_stride;
    return apart;
}

// Rows may be strided.
inline void copy_rows(const Call& call, const Tensor& to, const Tensor& from, Stream& stream) {
    call.ops.weighted_sum_forward({.y = to, .terms = {{{.source = from}}}, .sequence_length = from.rows()},
                                  stream);
}
inline void copy_rows(const Call& call, const Tensor& to, const Tensor& from) {
    copy_rows(call, to, from, call.stream);
}

// sum += x; rows of both may be strided.
inline void add_rows(const Call& call, const Tensor& sum, const Tensor& x) {
    call.ops.weighted_sum_forward(
        {.y = sum, .terms = {{{.source = sum}, {.source = x}}}, .sequence_length = x.rows()}, call.stream);
}

// Zeroes keys that are not received: a stale NaN or Inf would survive a weight of 0.
inline void fill_absent(const Call& call, const Tensor& keys, const KeyRoutes& routes) {
    for (const KeyRoutes::Absent& absent : routes.absent())
        call.ops.fill({.x = keys.row_slice(absent.key, absent.count).reshaped({absent.count * keys.cols()}),
                       .value = 0.0f},
                      call.stream);
}

// Flattens contiguous rows for a collective.
inline Tensor flat(const Tensor& rows) {
    return rows.reshaped({rows.numel()});
}

}  // namespace speedrun
