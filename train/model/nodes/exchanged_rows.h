// What nodes do with rows that they send to other ranks and receive.
#pragma once

#include "train/model/graph/call.h"

namespace speedrun {

// Rows may be strided.
inline void copy_rows(const Call& call, const Tensor& to, const Tensor& from, Stream& stream) {
    call.ops.weighted_sum_forward({.y = to, .terms = {{{.source = from}}}, .sequence_length = from.rows()},
                                  stream);
}
inline void copy_rows(const Call& call, const Tensor& to, const Tensor& from) {
    copy_rows(call, to, from, call.stream);
}

// Contiguous rows, as collectives take them.
inline Tensor flat(const Tensor& rows) {
    return rows.reshaped({rows.numel()});
}

}  // namespace speedrun
