// What nodes do with rows that they send to other ranks and receive.
#pragma once

#include "train/model/graph/call.h"
#include "train/model/nodes/key_travel.h"

namespace speedrun {

// Rows may be strided.
inline void copy_rows(const Call& call, const Tensor& to, const Tensor& from, Stream& stream) {
    call.ops.weighted_sum_forward({.y = to, .terms = {{{.source = from}}}, .sequence_length = from.rows()},
                                  stream);
}
inline void copy_rows(const Call& call, const Tensor& to, const Tensor& from) {
    copy_rows(call, to, from, call.stream);
}

// Keys that do not come are nothing, and no number either that multiplied by 0 would not be 0.
inline void fill_absent(const Call& call, const Tensor& keys, const KeyTravel& travel, Stream& stream) {
    for (const KeyTravel::Absent& absent : travel.absent())
        call.ops.fill({.x = keys.row_slice(absent.key, absent.count).reshaped({absent.count * keys.cols()}),
                       .value = 0.0f},
                      stream);
}

// Contiguous rows, as collectives take them.
inline Tensor flat(const Tensor& rows) {
    return rows.reshaped({rows.numel()});
}

}  // namespace speedrun
