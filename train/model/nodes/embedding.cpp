#include "train/model/nodes/embedding.h"

#include "train/model/graph/graph.h"
#include "train/model/nodes/exchanged_rows.h"

namespace speedrun {

namespace {

std::string signs_text(const NodeGraph& graph, ValueId bits) {
    return bits == kNoValue ? "" : fmt::format(", {} rows of signs", graph[bits].extents.front().size);
}

}  // namespace

Embedding::Embedding(const Ports& ports, const SharedTable& shared)
    : Node(Cost::input),
      out_(writes({.value = ports.out})),
      tokens_(
          reads({.value = ports.tokens, .sorted_below = ports.table_rows, .of_others = shared.shares_rows})),
      positions_(reads({.value = ports.positions, .sorted_below = ports.position_rows})),
      sign_bits_(reads({.value = ports.signs.bits, .in_backward = true})),
      sign_row_(reads({.value = ports.signs.row, .in_backward = true})),
      table_(uses(ports.table, false)),
      position_table_(uses(ports.position_table, false)),
      shared_(shared) {}

std::string Embedding::describe(const NodeGraph& graph) const {
    const auto rows = [&](In port) { return reads()[static_cast<size_t>(port.index)].sorted_below; };
    const int64_t width = graph.width_of(value_of(out_));
    std::string text =
        fmt::format("{}embedding {} x {}", graph.is_shared(uses().front().parameter) ? "tied " : "",
                    rows(tokens_), width);
    if (position_table_.index >= 0) text += fmt::format(" + positions {} x {}", rows(positions_), width);
    return text + signs_text(graph, sign_bits_.index < 0 ? kNoValue : value_of(sign_bits_));
}

void Embedding::forward(const Call& call) const {
    const Tensor out = call(out_), own = shared_.own_columns(out);
    if (own.cols() < out.cols()) call.ops.fill({.x = flat(out), .value = 0}, call.stream);
    op::EmbeddingForward lookup{.out = own,
                                .index = call(tokens_),
                                .table = call(table_),
                                .signs = {call(sign_bits_), call(sign_row_)},
                                .others = shared_.shares_rows};
    if (shared_.adds_positions) {
        lookup.position = call(positions_);
        lookup.position_table = call(position_table_);
    }
    call.ops.embedding_forward(lookup, call.stream);
}

void Embedding::backward(const Call& call) const {
    const auto add_rows = [&](In index, Par table, const op::RowSigns& signs, bool others) {
        contribute(
            [&](const ParameterGradient& dtable) {
                call.ops.embedding_backward({.dtable = dtable.tensor,
                                             .order = call.order_of(index),
                                             .dout = shared_.own_columns(call.gradient(out_)),
                                             .signs = signs,
                                             .accumulate = dtable.adds,
                                             .others = others},
                                            call.stream);
            },
            call.of(table));
    };
    if (position_table_.index >= 0) add_rows(positions_, position_table_, {}, false);
    add_rows(tokens_, table_, {call(sign_bits_), call(sign_row_)}, shared_.shares_rows);
}

NgramEmbedding::NgramEmbedding(const Ports& ports, const Options& options)
    : Node(Cost::input),
      out_(writes({.value = ports.out})),
      x_(reads({.value = ports.x, .gradient = GradientRule::passed})),
      sign_bits_(reads({.value = ports.signs.bits, .in_backward = true})),
      sign_row_(reads({.value = ports.signs.row, .in_backward = true})),
      table_(uses(ports.table, false)),
      gathered_(needs({.rows = options.num_tokens,
                       .columns = options.shared.columns,
                       .forward = true,
                       .backward = false})),
      shared_(options.shared) {
    for (const ValueId rows : ports.rows)
        rows_.push_back(reads({.value = rows, .sorted_below = ports.table_rows}));
}

std::string NgramEmbedding::describe(const NodeGraph& graph) const {
    const Read& rows = reads()[static_cast<size_t>(rows_.front().index)];
    return fmt::format("n-gram embedding {} x {}, {} rows a token", rows.sorted_below,
                       graph.width_of(value_of(out_)), rows_.size()) +
           signs_text(graph, sign_bits_.index < 0 ? kNoValue : value_of(sign_bits_));
}

void NgramEmbedding::forward(const Call& call) const {
    for (const In rows : rows_) {
        call.ops.embedding_forward({.out = call(gathered_),
                                    .index = call(rows),
                                    .table = call(table_),
                                    .signs = {call(sign_bits_), call(sign_row_)}},
                                   call.stream);
        call.ops.add(
            {.y = shared_.own_columns(call(out_)), .x = shared_.own_columns(call(x_)), .z = call(gathered_)},
            call.stream);
    }
}

void NgramEmbedding::backward(const Call& call) const {
    contribute(
        [&](const ParameterGradient& dtable) {
            bool adds = dtable.adds;
            for (const In rows : rows_) {
                call.ops.embedding_backward({.dtable = dtable.tensor,
                                             .order = call.order_of(rows),
                                             .dout = shared_.own_columns(call.gradient(out_)),
                                             .signs = {call(sign_bits_), call(sign_row_)},
                                             .accumulate = adds},
                                            call.stream);
                adds = true;
            }
        },
        call.of(table_));
}

}  // namespace speedrun
