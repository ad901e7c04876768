#include "train/model/nodes/ring_attention.h"

#include <algorithm>

#include "train/model/graph/graph.h"
#include "train/model/nodes/exchanged_rows.h"

namespace speedrun {

namespace {

int rank_before(const ContextPart& part, int d) {
    return (part.index - d + part.size) % part.size;
}
int rank_behind(const ContextPart& part, int d) {
    return (part.index + d) % part.size;
}

}  // namespace

KeptKeys RingAttention::keys_of_step(const SharedKeys& keys, int step) {
    return KeptKeys(keys.part, keys.row).from(keys.part.of(rank_behind(keys.part, step)));
}

RingAttention::RingAttention(const Ports& ports, const Options& options)
    : Node(Cost::product),
      options_(options),
      tokens_(options.keys.rows * options.keys.part.local_length(options.keys.row.sequence_length)),
      out_(writes({.value = ports.out, .in_backward = true})),
      lse_(writes({.value = ports.lse, .in_backward = true})),
      q_(reads({.value = ports.q, .gradient = Gives::written, .in_backward = true})),
      k_(reads({.value = ports.k, .gradient = Gives::written, .in_backward = true})),
      v_(reads({.value = ports.v, .gradient = Gives::written, .in_backward = true})) {
    const SharedKeys& shared = options.keys;
    int64_t most_keys = 0, most_came = 0;
    for (int d = 0; d < shared.part.size; ++d) {
        steps_.push_back(make_step(d, ports));
        if (d > 0) most_keys = std::max(most_keys, shared.rows * steps_.back().keys);
        most_came = std::max(most_came, travel(d, {}).came_rows());
    }
    const int64_t both = shared.columns, one = both / 2, H = options.num_heads;
    const auto scratch = [&](int64_t rows, int64_t columns, bool forward, bool backward) {
        return needs({.rows = rows, .columns = columns, .forward = forward, .backward = backward});
    };
    const auto scratch_f32 = [&](int64_t rows, int64_t columns, bool forward, bool backward) {
        return needs({.rows = rows,
                      .columns = columns,
                      .forward = forward,
                      .backward = backward,
                      .element = Element::f32});
    };
    own_ = scratch(tokens_, both, true, true);
    for (Tmp& each : fetched_) each = scratch(most_keys, both, true, true);
    piece_ = scratch(tokens_, one, true, true);
    piece_lse_ = scratch_f32(H, tokens_, true, false);
    for (Tmp& each : upper_lse_) each = scratch_f32(H, tokens_, true, false);
    for (Tmp& each : below_lse_) each = scratch_f32(H, tokens_, true, false);
    below_sum_ = scratch_f32(tokens_, one, true, false);
    query_sum_ = scratch_f32(tokens_, one, true, true);
    key_sum_ = scratch_f32(tokens_, both, false, true);
    for (Tmp& each : key_gradients_) each = scratch(std::max(tokens_, most_keys), both, false, true);
    came_ = scratch(most_came, both, false, true);
}

RingAttention::KeyStep RingAttention::make_step(int d, const Ports& ports) {
    const SharedKeys& shared = options_.keys;
    const ContextPart& part = shared.part;
    const KeptKeys kept = keys_of_step(shared, d);
    // Among its own tokens are those of padding, behind the keys of a row.
    const int64_t keys = d == 0 ? part.local_length(shared.row.sequence_length) : kept.count();
    const Seen& seen = ports.seen[static_cast<size_t>(d)];
    return {.keys = keys,
            .attention = {.sequence_length = keys,
                          .num_heads = options_.num_heads,
                          .head_dim = options_.head_dim,
                          .scale = options_.scale,
                          .documents = options_.documents,
                          .visible_pairs = shared.rows * kept.visible_pairs()},
            .place = reads({.value = seen.place, .in_backward = true}),
            .first_key = reads({.value = seen.first_key, .in_backward = true})};
}

KeyTravel RingAttention::travel(int d, const std::vector<int32_t>& documents) const {
    const ContextPart& part = options_.keys.part;
    KeyTravel travel(options_.keys, documents);
    if (d > 0) {
        travel.send_to(rank_before(part, d));
        travel.receive_from(rank_behind(part, d), keys_of_step(options_.keys, d));
    }
    return travel;
}

RingAttention::Travels RingAttention::travels(const Call& call) const {
    Travels travels;
    for (int d = 0; d < steps(); ++d) travels.push_back(travel(d, call.documents));
    return travels;
}

bool RingAttention::idle(const Travels& travels, int d) {
    return d > 0 && travels[static_cast<size_t>(d)].fetch().receives.empty();
}

std::string RingAttention::describe(const NodeGraph& /*graph*/) const {
    const SharedKeys& shared = options_.keys;
    std::string text = fmt::format("ring attention {} x {}, keys of {} ranks in turn", options_.num_heads,
                                   options_.head_dim, shared.part.size);
    if (shared.row.window > 0) text += fmt::format(", window {}", shared.row.window);
    if (options_.documents) text += ", within documents";
    return text;
}

std::vector<Node::Sent> RingAttention::sent(const NodeGraph& /*graph*/, bool backward) const {
    const SharedKeys& shared = options_.keys;
    const int size = shared.part.size;
    std::vector<Sent> sent;
    for (int pass = 0; pass < (backward ? 2 : 1); ++pass) {  // keys, and in backward their gradients
        for (int d = 1; d < size; ++d) {
            int64_t keys = 0;  // of all ranks
            for (int member = 0; member < size; ++member) {
                SharedKeys of_member = shared;
                of_member.part = shared.part.of(member);
                keys += shared.rows * keys_of_step(of_member, d).count();
            }
            const int64_t elements = keys * shared.columns;
            sent.push_back({.kind = Collective::all_to_all,
                            .axis = Axis::context,
                            .elements = elements,
                            .sent_elements = static_cast<double>(elements) / size});
        }
    }
    return sent;
}

Tensor RingAttention::keys(const Call& call, int d) const {
    return d == 0
               ? call(own_)
               : call(fetched_[d % 2]).row_slice(0, options_.keys.rows * steps_[static_cast<size_t>(d)].keys);
}

Tensor RingAttention::key_gradients(const Call& call, int d) const {
    return call(key_gradients_[d % 2])
        .row_slice(0, d == 0 ? tokens_ : options_.keys.rows * steps_[static_cast<size_t>(d)].keys);
}

void RingAttention::pack_own(const Call& call) const {
    const int64_t W = options_.keys.columns / 2;
    copy_rows(call, call(own_).column_slice(0, W), call(k_));
    copy_rows(call, call(own_).column_slice(W, W), call(v_));
}

void RingAttention::fetch(const Call& call, const Travels& travels, int d, Stream& stream) const {
    const KeyTravel& travel = travels[static_cast<size_t>(d)];
    if (!idle(travels, d)) fill_absent(call, keys(call, d), travel, stream);
    if (call.peers.context)
        call.peers.context->all_to_all(flat(keys(call, d)), flat(call(own_)),
                                       std::make_shared<const Exchange>(travel.fetch()), stream);
}

void RingAttention::bring(const Call& call, const Travels& travels, int d, Stream& stream) const {
    const KeyTravel& travel = travels[static_cast<size_t>(d)];
    if (call.peers.context)
        call.peers.context->all_to_all(flat(call(came_).row_slice(0, travel.came_rows())),
                                       flat(key_gradients(call, d)),
                                       std::make_shared<const Exchange>(travel.bring()), stream);
}

void RingAttention::attend(const Call& call, int d, const Tensor& out, const Tensor& lse) const {
    const KeyStep& step = steps_[static_cast<size_t>(d)];
    const int64_t W = options_.keys.columns / 2;
    const Tensor kv = keys(call, d);
    call.ops.attention_forward({.o = out,
                                .lse = lse,
                                .q = call(q_),
                                .k = kv.column_slice(0, W),
                                .v = kv.column_slice(W, W),
                                .first_key = call(step.first_key),
                                .place = call(step.place),
                                .options = step.attention},
                               call.stream);
}

void RingAttention::merge(const Call& call, Merged& into, const Tensor& out, const Tensor& lse) const {
    const bool begun = into.count > 0;
    call.ops.merge_attention({.sum = into.sum,
                              .lse = into.next_lse(),
                              .lse_before = begun ? into.lse() : Tensor{},
                              .o = out,
                              .lse_of_o = lse},
                             call.stream);
    ++into.count;
}

void RingAttention::forward(const Call& call) const {
    pack_own(call);
    const Travels now = travels(call);
    const auto begin = [&](int d) {
        if (d < steps()) call.begin_exchange([&](Stream& stream) { fetch(call, now, d, stream); });
    };
    begin(1);
    Merged upper{.sum = call(query_sum_), .lses = {call(upper_lse_[0]), call(upper_lse_[1])}},
        below{.sum = call(below_sum_), .lses = {call(below_lse_[0]), call(below_lse_[1])}};
    for (int d = 0; d < steps(); ++d) {
        if (d > 0) {
            call.await_exchange();
            begin(d + 1);  // into the buffer of the step before this one
        }
        if (idle(now, d)) continue;
        attend(call, d, call(piece_), call(piece_lse_));
        merge(call, is_below(d) ? below : upper, call(piece_), call(piece_lse_));
    }
    if (below.count > 0) merge(call, below, upper.sum, upper.lse());
    const Merged& all = below.count > 0 ? below : upper;
    call.ops.cast({.out = flat(call(out_)), .in = flat(all.sum)}, call.stream);
    copy_rows(call, call(lse_), all.lse());
}

void RingAttention::attend_backward(const Call& call, int d) const {
    const KeyStep& step = steps_[static_cast<size_t>(d)];
    const int64_t W = options_.keys.columns / 2;
    const Tensor kv = keys(call, d), gradients = key_gradients(call, d);
    call.ops.attention_backward({.dq = call(piece_),
                                 .dk = gradients.column_slice(0, W),
                                 .dv = gradients.column_slice(W, W),
                                 .dout = call.gradient(out_),
                                 .o = call(out_),
                                 .lse = call(lse_),
                                 .q = call(q_),
                                 .k = kv.column_slice(0, W),
                                 .v = kv.column_slice(W, W),
                                 .first_key = call(step.first_key),
                                 .place = call(step.place),
                                 .options = step.attention},
                                call.stream);
    call.ops.accumulate({.sum = call(query_sum_), .x = call(piece_), .accumulate = d > 0}, call.stream);
    if (d == 0)
        call.ops.accumulate({.sum = call(key_sum_), .x = gradients, .accumulate = false}, call.stream);
}

void RingAttention::add_home(const Call& call, const Travels& travels, int d) const {
    for (const auto& homes : travels[static_cast<size_t>(d)].homes())
        for (const KeyTravel::Home& home : homes)
            call.ops.accumulate({.sum = call(key_sum_).row_slice(home.token, home.count),
                                 .x = call(came_).row_slice(home.from, home.count),
                                 .accumulate = true},
                                call.stream);
}

// Beside the attention of step d the keys of step d + 1 come, and the gradients of step d − 1 go home: two exchanges behind the
// last step bring home what is left.
void RingAttention::backward(const Call& call) const {
    pack_own(call);
    const Travels now = travels(call);
    const int size = steps();
    const auto begin = [&](int d) {
        call.begin_exchange([&](Stream& stream) {
            if (d < size) fetch(call, now, d, stream);
            if (d >= 3) bring(call, now, d - 2, stream);
        });
    };
    begin(1);
    attend_backward(call, 0);
    for (int d = 1; d <= size; ++d) {
        call.await_exchange();
        if (d >= 3) add_home(call, now, d - 2);
        begin(d + 1);
        if (d < size && !idle(now, d)) attend_backward(call, d);
    }
    call.await_exchange();
    if (size >= 2) add_home(call, now, size - 1);
    const int64_t W = options_.keys.columns / 2;
    const Tensor of_queries = call(piece_), of_keys = key_gradients(call, 0);
    call.ops.cast({.out = flat(of_queries), .in = flat(call(query_sum_))}, call.stream);
    copy_rows(call, call.gradient(q_).tensor, of_queries);
    call.ops.cast({.out = flat(of_keys), .in = flat(call(key_sum_))}, call.stream);
    copy_rows(call, call.gradient(k_).tensor, of_keys.column_slice(0, W));
    copy_rows(call, call.gradient(v_).tensor, of_keys.column_slice(W, W));
}

}  // namespace speedrun
