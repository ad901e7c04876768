#include "train/model/parts/smear.h"

#include "kernels/device/error.h"
#include "kernels/ops/combine.h"
#include "train/model/layers.h"
#include "train/model/nodes/previous_token.h"

namespace speedrun {

namespace {

WeightedSum::Term gated_row_before(GraphWriter& w, ValueId x, ValueId gate) {
    const auto borders = w.extents.chunk_borders(w.extents.width());
    if (!borders) return {.value = x, .gate = gate, .shifted = true};
    const ValueId before = w.compute_value("row before", w.extents.tokens(), w.extents.width());
    w.add<PreviousToken>({.y = before, .x = x}, *borders);
    return {.value = before, .gate = gate};
}

}  // namespace

void SmearConfig::fields(FieldVisitor& v) {
    v.field("start", start, "initial factor, for type smear", {-1e6, 1e6});
    v.field("columns", columns, "number of first columns of the row that the gate reads, for type smear",
            {1, kMaxNarrow});
}

void SmearConfig::check(const std::string& key, int64_t model_dim) const {
    if (columns > model_dim) throw_usage("{}.columns {} exceeds model.model_dim {}", key, columns, model_dim);
}

void SmearConfig::build(SmearLayer& layer) const {
    GraphWriter& w = layer.w;
    const ValueId x = layer.x;
    const ValueId gate = w.gate("smear.gate", x, {Dimension::numbers, 1}, columns,
                                "w: sigmoid(w . x[0:columns]) gates the row of the token before");
    const ValueId before = w.sum("gated row before", w.extents.width(), {gated_row_before(w, x, gate)});
    layer.x = w.sum("smeared", w.extents.width(),
                    {{.value = x},
                     {.value = before,
                      .parameter = w.number("smear.scale", start,
                                            "c: x becomes x + c times the gated row of the token before")}});
}

}  // namespace speedrun
