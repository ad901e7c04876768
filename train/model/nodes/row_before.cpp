#include "train/model/nodes/row_before.h"

#include "train/model/graph/graph.h"
#include "train/model/nodes/exchanged_rows.h"

namespace speedrun {

RowBefore::RowBefore(const Ports& ports, const Options& options)
    : Node(Cost::product),
      options_(options),
      tokens_(options.rows * options.part.local_length(options.sequence_length)),
      chunks_(tokens_ / options.part.chunk_length(options.sequence_length)),
      y_(writes({.value = ports.y})),
      x_(reads({.value = ports.x, .gradient = Gives::written})) {
    plan();
    starts_ = needs({.rows = chunks_, .columns = options.columns, .forward = true, .backward = true});
    came_ = needs({.rows = static_cast<int64_t>(homes_.size()),
                   .columns = options.columns,
                   .forward = false,
                   .backward = true});
}

void RowBefore::plan() {
    const ContextPart& part = options_.part;
    const int64_t S = options_.sequence_length, K = chunk_length(), W = options_.columns;
    const auto in = [&](const ContextPart& of, int64_t place) {
        return place / K == of.index || place / K == 2 * of.size - 1 - of.index;
    };
    for (int member = 0; member < part.size; ++member) {
        const ContextPart other = part.of(member);
        for (int64_t row = 0; row < options_.rows; ++row) {
            for (const PlaceRange& chunk : chunks_of(other, S)) {  // that begin behind a token of this rank
                const int64_t before = chunk.begin - 1;
                if (before < 0 || !in(part, before)) continue;
                const int64_t token = row * 2 * K + before % K + (before / K == part.index ? 0 : K);
                bring_.receives.push_back({member, static_cast<int64_t>(homes_.size()) * W, W});
                fetch_.sends.push_back({member, token * W, W});
                homes_.push_back(token);
            }
            for (const PlaceRange& chunk : chunks_of(part, S)) {  // that begin behind one of the other's
                const int64_t before = chunk.begin - 1;
                if (before < 0 || !in(other, before)) continue;
                const int64_t start = row * 2 + (chunk.begin / K == part.index ? 0 : 1);
                fetch_.receives.push_back({member, start * W, W});
                bring_.sends.push_back({member, start * W, W});
            }
        }
    }
}

std::vector<Node::Sent> RowBefore::sent(const NodeGraph& /*graph*/, bool /*backward*/) const {
    int64_t all = 0, foreign = 0;  // rows of all ranks
    for (int member = 0; member < options_.part.size; ++member) {
        for (const PlaceRange& chunk : chunks_of(options_.part.of(member), options_.sequence_length)) {
            if (chunk.begin == 0) continue;
            ++all;
            // Chunks C−1 and C are neighbours on one rank.
            foreign += chunk.begin != options_.part.size * chunk_length();
        }
    }
    const int64_t numbers = options_.rows * options_.columns;
    return {{.kind = Collective::all_to_all,
             .axis = Axis::context,
             .elements = all * numbers,
             .sent_elements = static_cast<double>(foreign * numbers) / options_.part.size}};
}

Tensor RowBefore::starts(const Tensor& tokens) const {
    return tokens.reshaped({chunks_, chunk_length() * options_.columns}).column_slice(0, options_.columns);
}

void RowBefore::forward(const Call& call) const {
    const Tensor x = call(x_), y = call(y_), before = call(starts_);
    call.ops.fill({.x = flat(before), .value = 0.0f}, call.stream);
    call.exchange([&](Stream& stream) {
        if (call.peers.context) call.peers.context->all_to_all(flat(before), flat(x), fetch_, stream);
    });
    call.ops.weighted_sum_forward(
        {.y = y, .terms = {{{.source = x, .shifted = true}}}, .sequence_length = chunk_length()},
        call.stream);
    copy_rows(call, starts(y), before);
}

void RowBefore::backward(const Call& call) const {
    const Tensor dx = call.gradient(x_).tensor, dy = call.gradient(y_), own = call(starts_),
                 came = call(came_);
    call.ops.weighted_sum_backward(
        {.gradients = {{{.dsource = dx, .accumulate_source = false, .accumulate_coefficient = false}}},
         .dy = dy,
         .terms = {{{.source = dy, .shifted = true}}},  // whose values nobody asks for
         .sequence_length = chunk_length()},
        call.stream);
    copy_rows(call, own, starts(dy));
    call.exchange([&](Stream& stream) {
        if (call.peers.context) call.peers.context->all_to_all(flat(came), flat(own), bring_, stream);
    });
    for (size_t i = 0; i < homes_.size(); ++i) {
        const Tensor to = dx.row_slice(homes_[i], 1);
        call.ops.add({.y = to, .x = to, .z = came.row_slice(static_cast<int64_t>(i), 1)}, call.stream);
    }
}

}  // namespace speedrun
