#include "train/model/graph/value_collectives.h"

namespace speedrun {

BucketCollectives value_collectives(const ValueProgram& of, const Mesh& mesh) {
    BucketCollectives row{.name = "values", .bucket = -1, .collectives = {}};
    const auto add = [&](const Instruction& instruction) {
        if (instruction.kind != Instruction::Kind::forward && instruction.kind != Instruction::Kind::backward)
            return;
        for (const NodeCall& call : instruction.calls) {
            for (const Node::Sent& sent :
                 call.node->sent(of.graph, instruction.kind == Instruction::Kind::backward)) {
                const DType dtype = sent.full_precision ? DType::f32 : of.compute_dtype;
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
    for (const Instruction& instruction : of.program.forward) add(instruction);
    for (const Instruction& instruction : of.program.backward) add(instruction);
    return row;
}

}  // namespace speedrun
