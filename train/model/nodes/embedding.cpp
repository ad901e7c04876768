#include "train/model/nodes/embedding.h"

#include "train/model/graph/graph.h"

namespace speedrun {

Embedding::Embedding(const Ports& ports)
    : Node(Cost::input),
      out_(writes({.value = ports.out})),
      tokens_(reads({.value = ports.tokens, .sorted_below = ports.table_rows})),
      positions_(reads({.value = ports.positions, .sorted_below = ports.position_rows})),
      table_(uses(ports.table, false)),
      position_table_(uses(ports.position_table, false)) {}

std::string Embedding::describe(const NodeGraph& graph) const {
    const auto rows = [&](In port) { return reads()[static_cast<size_t>(port.index)].sorted_below; };
    const int64_t width = graph.width_of(value_of(out_));
    std::string text =
        fmt::format("{}embedding {} x {}", graph.is_shared(uses().front().parameter) ? "tied " : "",
                    rows(tokens_), width);
    if (position_table_.index >= 0) text += fmt::format(" + positions {} x {}", rows(positions_), width);
    return text;
}

void Embedding::forward(const Call& call) const {
    call.ops.embedding_forward({.out = call(out_),
                                .index = call(tokens_),
                                .table = call(table_),
                                .position = call(positions_),
                                .position_table = call(position_table_)},
                               call.stream);
}

void Embedding::backward(const Call& call) const {
    const auto add_rows = [&](In index, Par table) {
        contribute(
            [&](const ParameterGradient& dtable) {
                call.ops.embedding_backward({.dtable = dtable.tensor,
                                             .order = call.order_of(index),
                                             .dout = call.gradient(out_),
                                             .accumulate = dtable.adds},
                                            call.stream);
            },
            call.of(table));
    };
    if (position_table_.index >= 0) add_rows(positions_, position_table_);
    add_rows(tokens_, table_);
}

NgramEmbedding::NgramEmbedding(const Ports& ports, int64_t num_tokens, int64_t width)
    : Node(Cost::input),
      out_(writes({.value = ports.out})),
      x_(reads({.value = ports.x, .gradient = Gives::passed})),
      table_(uses(ports.table, false)),
      gathered_(needs({.rows = num_tokens, .columns = width, .forward = true, .backward = false})) {
    for (const ValueId rows : ports.rows)
        rows_.push_back(reads({.value = rows, .sorted_below = ports.table_rows}));
}

std::string NgramEmbedding::describe(const NodeGraph& graph) const {
    const Read& rows = reads()[static_cast<size_t>(rows_.front().index)];
    return fmt::format("n-gram embedding {} x {}, {} rows a token", rows.sorted_below,
                       graph.width_of(value_of(out_)), rows_.size());
}

void NgramEmbedding::forward(const Call& call) const {
    for (const In rows : rows_) {
        call.ops.embedding_forward({.out = call(gathered_), .index = call(rows), .table = call(table_)},
                                   call.stream);
        call.ops.add({.y = call(out_), .x = call(x_), .z = call(gathered_)}, call.stream);
    }
}

void NgramEmbedding::backward(const Call& call) const {
    contribute(
        [&](const ParameterGradient& dtable) {
            bool adds = dtable.adds;
            for (const In rows : rows_) {
                call.ops.embedding_backward({.dtable = dtable.tensor,
                                             .order = call.order_of(rows),
                                             .dout = call.gradient(out_),
                                             .accumulate = adds},
                                            call.stream);
                adds = true;
            }
        },
        call.of(table_));
}

}  // namespace speedrun
