#include "train/model/graph/value_collectives.h"

namespace speedrun {

CollectiveRow value_collectives(const Program& program, const Mesh& mesh, DType real) {
    CollectiveRow row{.name = "values", .bucket = -1, .collectives = {}};
    const AxisSet axes{Axis::context};
    const int ranks = mesh.size(axes);
    const auto add = [&](const Step& step) {
        if (step.kind != Step::Kind::forward && step.kind != Step::Kind::backward) return;
        for (const NodeCall& call : step.calls) {
            for (const Node::Sent& sent : call.node->sent(step.kind == Step::Kind::backward)) {
                const int64_t payload = sent.elements * size_of(real);
                row.collectives.push_back(
                    {.kind = sent.kind,
                     .axes = axes,
                     .group_size = ranks,
                     .dtype = real,
                     .payload_bytes = payload,
                     .padding_bytes = 0,
                     .sent_bytes = sent.sent_elements * static_cast<double>(size_of(real)),
                     .when = When::every_microbatch});
            }
        }
    };
    for (const Step& step : program.forward) add(step);
    for (const Step& step : program.backward) add(step);
    return row;
}

}  // namespace speedrun
