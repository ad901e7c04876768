#include "train/model/nodes/key_exchange.h"

#include <set>

#include "train/model/graph/graph.h"
#include "train/model/nodes/exchanged_rows.h"

namespace speedrun {

KeyExchange::KeyExchange(const Ports& ports, const SharedKeys& keys)
    : Node(Cost::product),
      keys_(keys),
      kept_keys_(keys.part, keys.row),
      tokens_(keys.rows * keys.part.local_length(keys.row.sequence_length)),
      kept_(writes({.value = ports.kept})),
      k_(reads({.value = ports.k, .gradient = GradientRule::written})),
      v_(reads({.value = ports.v, .gradient = GradientRule::written})) {
    own_ = needs({.rows = tokens_, .columns = keys.columns, .forward = true, .backward = true});
    received_ = needs(
        {.rows = routes({}).received_rows(), .columns = keys.columns, .forward = false, .backward = true});
}

KeyRoutes KeyExchange::routes(const std::vector<int32_t>& documents) const {
    KeyRoutes routes(keys_, documents);
    for (int member = 0; member < keys_.part.size; ++member) {
        routes.send_to(member);
        routes.receive_from(member, kept_keys_);
    }
    return routes;
}

std::string KeyExchange::describe(const NodeGraph& /*graph*/) const {
    return fmt::format("{} keys, values of a row of {}", kept_keys_.count(), keys_.row.sequence_length);
}

std::vector<Node::Sent> KeyExchange::sent(const NodeGraph& /*graph*/, bool /*backward*/) const {
    const int size = keys_.part.size;
    int64_t kept = 0;  // sum over ranks
    for (int member = 0; member < size; ++member) kept += KeptKeys(keys_.part.of(member), keys_.row).count();
    const int64_t foreign = kept - keys_.row.sequence_length;
    return {{.kind = Collective::all_to_all,
             .axis = Axis::context,
             .elements = keys_.rows * kept * keys_.columns,
             .sent_elements = static_cast<double>(keys_.rows * foreign * keys_.columns) / size}};
}

void KeyExchange::forward(const Call& call) const {
    const Tensor own = call(own_), k = call(k_), v = call(v_);
    copy_rows(call, own.column_slice(0, k.cols()), k);
    copy_rows(call, own.column_slice(k.cols(), v.cols()), v);
    const KeyRoutes now = routes(call.documents);
    fill_absent(call, call(kept_), now);
    call.exchange([&](Stream& stream) {
        if (call.peers.context)
            call.peers.context->all_to_all(flat(call(kept_)), flat(own),
                                           std::make_shared<const Exchange>(now.fetch()), stream);
    });
}

// Splits own tokens into ranges with gradients from the same ranks. Sums up to 8 of them in rank order, in f32,
// with one rounding.
void KeyExchange::add_gradients(const Call& call, const KeyRoutes& routes, const Tensor& sum,
                                const Tensor& received) const {
    std::set<int64_t> borders;
    for (const auto& gradient_ranges : routes.gradient_ranges())
        for (const KeyRoutes::GradientRange& range : gradient_ranges)
            borders.insert({range.token, range.token + range.count});
    for (auto at = borders.begin(); at != borders.end() && std::next(at) != borders.end(); ++at) {
        const int64_t first = *at, count = *std::next(at) - first;
        const Tensor to = sum.row_slice(first, count);
        WeightedTerms terms{};
        size_t num_terms = 0;
        const auto flush = [&] {
            call.ops.weighted_sum_forward({.y = to, .terms = terms, .sequence_length = count}, call.stream);
            terms = {};
            terms[0] = {.source = to};
            num_terms = 1;
        };
        for (const auto& gradient_ranges : routes.gradient_ranges()) {
            for (const KeyRoutes::GradientRange& range : gradient_ranges) {
                if (first < range.token || first >= range.token + range.count) continue;
                if (num_terms == terms.size()) flush();
                terms[num_terms++] = {.source = received.row_slice(range.from + first - range.token, count)};
            }
        }
        if (num_terms > 0) flush();
    }
}

void KeyExchange::backward(const Call& call) const {
    const int64_t S = keys_.row.sequence_length, L = keys_.part.local_length(S);
    const Tensor sum = call(own_), received = call(received_);
    const KeyRoutes now = routes(call.documents);
    call.exchange([&](Stream& stream) {
        if (call.peers.context)
            call.peers.context->all_to_all(flat(received), flat(call.gradient(kept_)),
                                           std::make_shared<const Exchange>(now.send_back()), stream);
    });
    add_gradients(call, now, sum, received);
    // Padding has no key: its gradient is zero.
    int64_t padded = L;
    for (const PositionRange& chunk : chunks_of(keys_.part, S)) padded -= chunk.count();
    for (int64_t row = 0; padded > 0 && row < tokens_; row += L)
        call.ops.fill({.x = flat(sum.row_slice(row + L - padded, padded)), .value = 0.0f}, call.stream);
    const Tensor dk = call.gradient(k_).tensor, dv = call.gradient(v_).tensor;
    copy_rows(call, dk, sum.column_slice(0, dk.cols()));
    copy_rows(call, dv, sum.column_slice(dk.cols(), dv.cols()));
}

}  // namespace speedrun
