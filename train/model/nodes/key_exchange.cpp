#include "train/model/nodes/key_exchange.h"

#include <algorithm>
#include <set>

#include "train/model/graph/graph.h"
#include "train/model/nodes/exchanged_rows.h"

namespace speedrun {

KeyExchange::KeyExchange(const Ports& ports, const Options& options)
    : Node(Cost::product),
      options_(options),
      kept_keys_(options.part, options.row),
      tokens_(options.rows * options.part.local_length(options.row.sequence_length)),
      kept_(writes({.value = ports.kept})),
      k_(reads({.value = ports.k, .gradient = Gives::written})),
      v_(reads({.value = ports.v, .gradient = Gives::written})) {
    plan();
    own_ = needs({.rows = tokens_, .columns = 2 * options.columns, .forward = true, .backward = true});
    came_ = needs({.rows = came_rows_, .columns = 2 * options.columns, .forward = false, .backward = true});
}

void KeyExchange::plan() {
    const ContextPart& part = options_.part;
    const int64_t S = options_.row.sequence_length, L = part.local_length(S), K = part.chunk_length(S),
                  columns = 2 * options_.columns;
    const std::vector<PlaceRange> own = chunks_of(part, S);
    const auto token_of = [&](int64_t row, int64_t place) {
        const bool front = place / K == part.index;
        return row * L + place % K + (front ? 0 : K);
    };
    homes_.resize(static_cast<size_t>(part.size));
    for (int member = 0; member < part.size; ++member) {
        const ContextPart other = part.of(member);
        const KeptKeys kept_there(other, options_.row);
        const std::vector<PlaceRange> mine_there = common(own, kept_there.ranges()),
                                      theirs_here = common(chunks_of(other, S), kept_keys_.ranges());
        for (int64_t row = 0; row < options_.rows; ++row) {
            for (const PlaceRange& places : mine_there) {
                const int64_t token = token_of(row, places.begin);
                fetch_.sends.push_back({member, token * columns, places.count() * columns});
                bring_.receives.push_back({member, came_rows_ * columns, places.count() * columns});
                homes_[static_cast<size_t>(member)].push_back({token, came_rows_, places.count()});
                came_rows_ += places.count();
            }
            for (const PlaceRange& places : theirs_here) {
                const int64_t key = row * kept_keys_.count() + kept_keys_.index(places.begin);
                fetch_.receives.push_back({member, key * columns, places.count() * columns});
                bring_.sends.push_back({member, key * columns, places.count() * columns});
            }
        }
    }
}

std::string KeyExchange::describe(const NodeGraph& /*graph*/) const {
    return fmt::format("{} keys, values of a row of {}", kept_keys_.count(), options_.row.sequence_length);
}

std::vector<Node::Sent> KeyExchange::sent(const NodeGraph& /*graph*/, bool /*backward*/) const {
    const int size = options_.part.size;
    const int64_t columns = 2 * options_.columns;
    int64_t kept = 0;  // by all ranks
    for (int member = 0; member < size; ++member)
        kept += KeptKeys(options_.part.of(member), options_.row).count();
    const int64_t foreign = kept - options_.row.sequence_length;
    return {{.kind = Collective::all_to_all,
             .axis = Axis::context,
             .elements = options_.rows * kept * columns,
             .sent_elements = static_cast<double>(options_.rows * foreign * columns) / size}};
}

void KeyExchange::forward(const Call& call) const {
    const int64_t W = options_.columns;
    const Tensor own = call(own_);
    copy_rows(call, own.column_slice(0, W), call(k_));
    copy_rows(call, own.column_slice(W, W), call(v_));
    call.exchange([&](Stream& stream) {
        if (call.peers.context) call.peers.context->all_to_all(flat(call(kept_)), flat(own), fetch_, stream);
    });
}

// Own tokens in pieces that the same ranks have gradients of: these are summed in the order of ranks, in f32, and
// rounded once, up to eight of them.
void KeyExchange::add_home(const Call& call, const Tensor& sum, const Tensor& came) const {
    std::set<int64_t> borders;
    for (const std::vector<Home>& homes : homes_)
        for (const Home& home : homes) borders.insert({home.token, home.token + home.count});
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
        for (const std::vector<Home>& homes : homes_) {
            for (const Home& home : homes) {
                if (first < home.token || first >= home.token + home.count) continue;
                if (num_terms == terms.size()) flush();
                terms[num_terms++] = {.source = came.row_slice(home.from + first - home.token, count)};
            }
        }
        if (num_terms > 0) flush();
    }
}

void KeyExchange::backward(const Call& call) const {
    const int64_t W = options_.columns, S = options_.row.sequence_length;
    const int64_t L = options_.part.local_length(S);
    const Tensor sum = call(own_), came = call(came_);
    call.exchange([&](Stream& stream) {
        if (call.peers.context)
            call.peers.context->all_to_all(flat(came), flat(call.gradient(kept_)), bring_, stream);
    });
    add_home(call, sum, came);
    // Padding stands for no key.
    int64_t padded = L;
    for (const PlaceRange& chunk : chunks_of(options_.part, S)) padded -= chunk.count();
    for (int64_t row = 0; padded > 0 && row < tokens_; row += L)
        call.ops.fill({.x = flat(sum.row_slice(row + L - padded, padded)), .value = 0.0f}, call.stream);
    copy_rows(call, call.gradient(k_).tensor, sum.column_slice(0, W));
    copy_rows(call, call.gradient(v_).tensor, sum.column_slice(W, W));
}

}  // namespace speedrun
