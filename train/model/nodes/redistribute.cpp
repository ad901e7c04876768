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

// A gradient with unchanged placement is passed on.
GradientRule gradient_rule(const Redistribution& how) {
    return how.in_place() && how.gradient_from == how.gradient_to ? GradientRule::passed
                                                                  : GradientRule::written;
}

}  // namespace

Redistribution Redistribution::enter() {
    return {kAll, kAll, kTerm, kAll};
}
Redistribution Redistribution::gather() {
    return {kShare, kAll, kTerm, kShare};
}
Redistribution Redistribution::whole() {
    return {kShare, kAll, kAll, kShare};
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

Redistribute::Redistribute(const Ports& ports, const Redistribution& how, const Options& options)
    : Node(how.from == how.to || how.to == kTerm ? Cost::pointwise : Cost::product),  // no communication
      how_(how),
      options_(options),
      y_(writes({.value = ports.y})),
      x_(reads({.value = ports.x, .gradient = gradient_rule(how), .in_place = how.in_place()})) {}

std::string Redistribute::describe(const NodeGraph& /*graph*/) const {
    return fmt::format("{} to {}, gradient {} to {}", words_of(how_.from), words_of(how_.to),
                       words_of(how_.gradient_from), words_of(how_.gradient_to));
}

Redistribute::Move Redistribute::move_of(bool backward) const {
    return backward ? Move{how_.gradient_from, how_.gradient_to} : Move{how_.from, how_.to};
}

std::optional<Collective> Redistribute::collective(bool backward) const {
    const Move move = move_of(backward);
    return move.to == kTerm ? std::nullopt : collective_between(move.from, move.to);
}

std::vector<Node::Sent> Redistribute::sent(const NodeGraph& /*graph*/, bool backward) const {
    const auto kind = collective(backward);
    if (!kind) return {};
    const int64_t elements = options_.tokens * options_.width;
    return {{.kind = *kind,
             .axis = Axis::tensor,
             .elements = elements,
             .sent_elements = wire_bytes(*kind, options_.part.size, elements),
             .full_precision = options_.element == Element::f32}};
}

void Redistribute::move_here(const Call& call, const Tensor& into, const Tensor& out_of,
                             const Move& move) const {
    const auto in_place = [&] {
        if (into.data != out_of.data) copy_rows(call, into, out_of);
    };
    if (move.to == kTerm) {  // zero on all ranks but the first
        in_place();
        if (options_.part.index > 0) call.ops.fill({.x = flat(into), .value = 0.0f}, call.stream);
        return;
    }
    if (move.from == move.to) return in_place();
    if (move.from != kAll)
        throw_internal("no way from {} to {} on the tensor axis", move.from.describe(), move.to.describe());
    copy_rows(call, into, out_of.row_slice(options_.part.index * into.rows(), into.rows()));
}

void Redistribute::begin_send(const Call& call, const Tensor& into, const Tensor& out_of,
                              Collective kind) const {
    Communicator* const peers = call.peers.tensor;
    call.begin_exchange([&](Stream& stream) {
        if (kind == Collective::all_reduce) {
            if (into.data != out_of.data) copy_rows(call, into, out_of, stream);
            if (peers) peers->all_reduce(flat(into), stream);
        } else if (peers && kind == Collective::all_gather) {
            peers->all_gather(flat(into), flat(out_of), stream);
        } else if (peers) {
            peers->reduce_scatter(flat(into), flat(out_of), stream);
        }
    });
}

void Redistribute::move(const Call& call, const Tensor& into, const Tensor& out_of, bool backward) const {
    const auto kind = collective(backward);
    if (!kind) return move_here(call, into, out_of, move_of(backward));
    begin_send(call, into, out_of, *kind);
    call.await_exchange();
}

void Redistribute::forward(const Call& call) const {
    move(call, call(y_), call(x_), false);
}

void Redistribute::backward(const Call& call) const {
    const ValueGradient dx = call.gradient(x_);
    if (dx.tensor.present()) move(call, dx.tensor, call.gradient(y_), true);
}

void Redistribute::begin_backward(const Call& call) const {
    const ValueGradient dx = call.gradient(x_);
    if (dx.tensor.present()) begin_send(call, dx.tensor, call.gradient(y_), collective(true).value());
}

void Redistribute::end_backward(const Call& call) const {
    if (call.gradient(x_).tensor.present()) call.await_exchange();
}

}  // namespace speedrun
