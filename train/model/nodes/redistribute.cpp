#include "train/model/nodes/redistribute.h"

#include "kernels/device/error.h"
#include "train/comm/communicator.h"
#include "train/model/graph/graph.h"
#include "train/model/nodes/exchanged_rows.h"

namespace speedrun {

namespace {

constexpr Placement kAll = Placement::replicate(), kTerm = Placement::partial(), kShare = Placement::shard(0);

std::string words_of(Placement placement) {
    if (placement == kTerm) return "terms";
    return placement == kShare ? "shares" : "all";
}

// Where the gradient is what it was, as the reader has it.
Gives gives(const Redistribution& how) {
    return how.in_place() && how.gradient_from == how.gradient_to ? Gives::passed : Gives::written;
}

}  // namespace

Redistribution Redistribution::enter() {
    return {kAll, kAll, kTerm, kAll};
}
Redistribution Redistribution::gather() {
    return {kShare, kAll, kTerm, kShare};
}
Redistribution Redistribution::sum() {
    return {kTerm, kAll, kAll, kAll};
}
Redistribution Redistribution::scatter() {
    return {kTerm, kShare, kShare, kAll};
}
Redistribution Redistribution::slice() {
    return {kAll, kShare, kShare, kAll};
}
Redistribution Redistribution::term() {
    return {kAll, kTerm, kAll, kAll};
}

Redistribute::Redistribute(const Ports& ports, const Redistribution& how, const TensorPart& part)
    : Node(how.from == how.to || how.to == kTerm ? Cost::pointwise : Cost::product),  // nothing is sent
      how_(how),
      part_(part),
      y_(writes({.value = ports.y})),
      x_(reads({.value = ports.x, .gradient = gives(how), .in_place = how.in_place()})) {}

std::string Redistribute::describe(const NodeGraph& /*graph*/) const {
    return fmt::format("{} to {}, gradient {} to {}", words_of(how_.from), words_of(how_.to),
                       words_of(how_.gradient_from), words_of(how_.gradient_to));
}

std::vector<Node::Sent> Redistribute::sent(const NodeGraph& graph, bool backward) const {
    const Move move = backward ? Move{how_.gradient_from, how_.gradient_to} : Move{how_.from, how_.to};
    if (move.to == kTerm) return {};
    const auto kind = collective_between(move.from, move.to);
    if (!kind) return {};
    const int64_t whole = std::max(graph[value_of(x_)].numel(), graph[value_of(y_)].numel());
    return {{.kind = *kind,
             .axis = Axis::tensor,
             .elements = whole,
             .sent_elements = wire_bytes(*kind, part_.size, whole)}};
}

void Redistribute::move(const Call& call, const Tensor& into, const Tensor& out_of, const Move& move) const {
    const auto in_place = [&] {
        if (into.data != out_of.data) copy_rows(call, into, out_of);
    };
    if (move.to == kTerm) {  // of all but the first, nothing
        in_place();
        if (part_.index > 0) call.ops.fill({.x = flat(into), .value = 0.0f}, call.stream);
        return;
    }
    if (move.from == move.to) return in_place();
    if (move.from == kAll)  // this rank's share
        return copy_rows(call, into, out_of.row_slice(part_.index * into.rows(), into.rows()));
    Communicator* const peers = call.peers.tensor;
    switch (collective_between(move.from, move.to).value()) {
        case Collective::all_reduce:
            in_place();
            if (peers) peers->all_reduce(flat(into), call.stream);
            return;
        case Collective::reduce_scatter:
            if (peers) peers->reduce_scatter(flat(into), flat(out_of), call.stream);
            return;
        case Collective::all_gather:
            if (peers) peers->all_gather(flat(into), flat(out_of), call.stream);
            return;
        default:
            throw_internal("no way from {} to {} on the tensor axis", move.from.describe(),
                           move.to.describe());
    }
}

void Redistribute::forward(const Call& call) const {
    move(call, call(y_), call(x_), {how_.from, how_.to});
}

void Redistribute::backward(const Call& call) const {
    const ValueGradient dx = call.gradient(x_);
    if (dx.tensor.present()) move(call, dx.tensor, call.gradient(y_), {how_.gradient_from, how_.gradient_to});
}

}  // namespace speedrun
