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

// By which ranks come from one to the other; nothing where none sends.
std::optional<Collective> collective_of(const Placement& from, const Placement& to) {
    return to == kTerm ? std::nullopt : collective_between(from, to);
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
    : Node(how.from == how.to || how.to == kTerm ? Cost::pointwise : Cost::product),  // nothing is sent
      how_(how),
      options_(options),
      y_(writes({.value = ports.y})),
      x_(reads({.value = ports.x, .gradient = gives(how), .in_place = how.in_place()})) {
    const auto staged = [&](bool backward) {
        const auto sent = transfer(backward);
        return sent && sent->from.pieces > 1 && sent->from.shares != sent->to.shares;
    };
    if (!staged(false) && !staged(true)) return;
    const RowPieces pieces{options.tokens, options.part.size, options.chunks};
    staged_ = needs({.rows = pieces.most_rows(),
                     .columns = options.width,
                     .forward = staged(false),
                     .backward = staged(true),
                     .element = options.element});
}

std::string Redistribute::describe(const NodeGraph& /*graph*/) const {
    return fmt::format("{} to {}, gradient {} to {}", words_of(how_.from), words_of(how_.to),
                       words_of(how_.gradient_from), words_of(how_.gradient_to));
}

Redistribute::Move Redistribute::move_of(bool backward) const {
    return backward ? Move{how_.gradient_from, how_.gradient_to} : Move{how_.from, how_.to};
}

std::optional<Transfer> Redistribute::transfer(bool backward) const {
    const Move move = move_of(backward);
    const auto kind = collective_of(move.from, move.to);
    if (!kind) return std::nullopt;
    const RowPieces all{options_.tokens, 1, options_.chunks};
    const RowPieces apart{options_.tokens, options_.part.size, options_.chunks};
    const RowPieces share{options_.tokens / options_.part.size, 1, options_.chunks};
    if (*kind == Collective::all_reduce) return Transfer{all, all};
    return *kind == Collective::all_gather ? Transfer{share, apart} : Transfer{apart, share};
}

std::vector<Node::Sent> Redistribute::sent(const NodeGraph& /*graph*/, bool backward) const {
    const auto transfer_here = transfer(backward);
    if (!transfer_here) return {};
    const Move move = move_of(backward);
    const Collective kind = collective_of(move.from, move.to).value();
    const RowPieces& whole = kind == Collective::all_gather ? transfer_here->to : transfer_here->from;
    std::vector<Sent> all;
    for (int64_t piece = 0; piece < whole.pieces; ++piece) {
        const int64_t elements = whole.rows_of(piece) * options_.width;
        all.push_back({.kind = kind,
                       .axis = Axis::tensor,
                       .elements = elements,
                       .sent_elements = wire_bytes(kind, options_.part.size, elements),
                       .full_precision = options_.element == Element::f32});
    }
    return all;
}

void Redistribute::move_here(const Call& call, const Tensor& into, const Tensor& out_of,
                             const Move& move) const {
    const auto in_place = [&] {
        if (into.data != out_of.data) copy_rows(call, into, out_of);
    };
    if (move.to == kTerm) {  // of all but the first, nothing
        in_place();
        if (options_.part.index > 0) call.ops.fill({.x = flat(into), .value = 0.0f}, call.stream);
        return;
    }
    if (move.from == move.to) return in_place();
    if (move.from != kAll)
        throw_internal("no way from {} to {} on the tensor axis", move.from.describe(), move.to.describe());
    copy_rows(call, into, out_of.row_slice(options_.part.index * into.rows(), into.rows()));
}

void Redistribute::send(const Call& call, const Tensor& into, const Tensor& out_of, Collective kind) const {
    Communicator* const peers = call.peers.tensor;
    const int64_t shares = options_.part.size, chunks = options_.chunks;
    const RowPieces whole{options_.tokens, kind == Collective::all_reduce ? 1 : shares, chunks};
    const RowPieces part{options_.tokens / shares, 1, chunks};
    const auto rows = [](const Tensor& of, const RowSpan& span) {
        return of.row_slice(span.first, span.count);
    };
    call.transfer([&](int64_t piece, Stream& stream) {
        if (kind == Collective::all_reduce) {
            const Tensor to = rows(into, whole.span({piece})), from = rows(out_of, whole.span({piece}));
            if (to.data != from.data) copy_rows(call, to, from, stream);
            if (peers) peers->all_reduce(flat(to), stream);
            return;
        }
        const bool gather = kind == Collective::all_gather;
        const Tensor& all = gather ? into : out_of;
        const Tensor own = rows(gather ? out_of : into, part.span({piece}));
        // The chunk's rows of all shares, one share after the other.
        const Tensor together = chunks == 1 ? all : call(staged_).row_slice(0, whole.rows_of(piece));
        const auto for_each_share = [&](const auto& copy) {
            for (int64_t share = 0; chunks > 1 && share < shares; ++share)
                copy(rows(all, whole.span({piece, share})),
                     together.row_slice(share * own.rows(), own.rows()));
        };
        if (gather) {
            if (peers) peers->all_gather(flat(together), flat(own), stream);
            for_each_share(
                [&](const Tensor& there, const Tensor& staged) { copy_rows(call, there, staged, stream); });
        } else {
            for_each_share(
                [&](const Tensor& there, const Tensor& staged) { copy_rows(call, staged, there, stream); });
            if (peers) peers->reduce_scatter(flat(own), flat(together), stream);
        }
    });
}

void Redistribute::move(const Call& call, const Tensor& into, const Tensor& out_of, bool backward) const {
    const Move move = move_of(backward);
    const auto kind = collective_of(move.from, move.to);
    if (kind) return send(call, into, out_of, *kind);
    move_here(call, into, out_of, move);
}

void Redistribute::forward(const Call& call) const {
    move(call, call(y_), call(x_), false);
}

void Redistribute::backward(const Call& call) const {
    const ValueGradient dx = call.gradient(x_);
    if (dx.tensor.present()) move(call, dx.tensor, call.gradient(y_), true);
}

}  // namespace speedrun
