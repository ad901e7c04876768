#include "train/model/graph/value_collectives.h"

namespace speedrun {

CollectiveRow value_collectives(const ValueProgram& of, const Mesh& mesh) {
    CollectiveRow row{.name = "values", .bucket = -1, .collectives = {}};
    const auto add = [&](const Step& step) {
        if (step.kind != Step::Kind::forward && step.kind != Step::Kind::backward) return;
        for (const NodeCall& call : step.calls) {
            for (const Node::Sent& sent : call.node->sent(of.graph, step.kind == Step::Kind::backward)) {
                const DType dtype = sent.full_precision ? DType::f32 : of.real;
                row.collectives.push_back(
                    {.kind = sent.kind,
                     .axes = {sent.axis},
                     .group_size = mesh.size(sent.axis),
                     .dtype = dtype,
                     .payload_bytes = sent.elements * size_of(dtype),
                     .padding_bytes = 0,
                     .sent_bytes = sent.sent_elements * static_cast<double>(size_of(dtype)),
                     .when = When::every_microbatch});
            }
        }
    };
    for (const Step& step : of.program.forward) add(step);
    for (const Step& step : of.program.backward) add(step);
    return row;
}

}  // namespace speedrun
