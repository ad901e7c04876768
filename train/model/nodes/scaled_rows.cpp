#include "train/model/nodes/scaled_rows.h"

#include "train/model/nodes/exchanged_rows.h"

namespace speedrun {

Tensor ScaledRows::scale(const Call& call, const Operands& operands) const {
    const Tensor& rows = operands.rows;
    const Tensor to = call(scaled);
    const int64_t plain = rows.rows() - count;
    if (plain > 0) copy_rows(call, to.row_slice(0, plain), rows.row_slice(0, plain));
    call.ops.weighted_sum_forward(
        {.y = to.row_slice(plain, count),
         .terms = {{{.source = rows.row_slice(plain, count), .coefficient = operands.factor}}},
         .sequence_length = count},
        call.stream);
    return to;
}

void ScaledRows::add_gradients(const Call& call, const Operands& operands, const Gradients& gradients,
                               const std::function<void(const Product&)>& multiply) const {
    const Tensor& dm = gradients.rows.tensor;
    const int64_t plain = dm.rows() - count;
    const Tensor to = dm.row_slice(plain, count);
    Tensor g = to;
    if (gradients.rows.adds) {
        g = call(gradient);
        if (plain > 0) multiply({.gradient = dm.row_slice(0, plain), .first = 0, .accumulate = true});
        multiply({.gradient = g, .first = plain, .accumulate = false});
    } else {
        multiply({.gradient = dm, .first = 0, .accumulate = false});
    }
    Tensor last = operands.rows.row_slice(plain, count);
    if (last.dtype != DType::f32) {
        const Tensor copy = call(unrounded);
        call.ops.cast({.out = flat(copy), .in = flat(last)}, call.stream);
        last = copy;
    }
    call.ops.weighted_sum_backward({.gradients = {{{.dsource = to,
                                                    .dcoefficient = gradients.factor.tensor,
                                                    .accumulate_source = gradients.rows.adds,
                                                    .accumulate_coefficient = gradients.factor.adds}}},
                                    .dy = g,
                                    .terms = {{{.source = last, .coefficient = operands.factor}}},
                                    .sequence_length = count},
                                   call.stream);
}

}  // namespace speedrun
