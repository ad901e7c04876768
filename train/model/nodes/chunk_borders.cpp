#include "train/model/nodes/chunk_borders.h"

#include <algorithm>

namespace speedrun {

ChunkBorders::ChunkBorders(const Options& options) : options_(options) {
    const ContextSlice& part = options_.part;
    if (part.size < 2) throw_internal("rows of {} rank have no borders of chunks", part.size);
    const int64_t K = chunk_length(), last = 2 * int64_t{part.size} - 1;
    const auto owner = [&](int64_t chunk) { return static_cast<int>(std::min(chunk, last - chunk)); };
    const auto begins = [&](int64_t chunk) { return chunk <= last && chunk * K < options_.sequence_length; };
    for (int64_t i = 0; i < chunks(); ++i) {
        const int64_t chunk = i % 2 == 0 ? part.index : last - part.index, at = i * columns();
        if (chunk > 0 && begins(chunk)) fetch_.receives.push_back({owner(chunk - 1), at, columns()});
        if (begins(chunk + 1)) fetch_.sends.push_back({owner(chunk + 1), at, columns()});
    }
    send_back_ = {.sends = fetch_.receives, .receives = fetch_.sends};
}

void ChunkBorders::fetch(const Call& call, const Tensor& before, const Tensor& ends, Stream& stream) const {
    if (call.peers.context) call.peers.context->all_to_all(flat(before), flat(ends), fetch_, stream);
}

void ChunkBorders::send_back(const Call& call, const Tensor& ends, const Tensor& before,
                             Stream& stream) const {
    if (call.peers.context) call.peers.context->all_to_all(flat(ends), flat(before), send_back_, stream);
}

std::vector<Node::Sent> ChunkBorders::sent() const {
    int64_t all = 0, foreign = 0;  // rows, all ranks
    for (int member = 0; member < options_.part.size; ++member) {
        for (const PositionRange& chunk : chunks_of(options_.part.of(member), options_.sequence_length)) {
            if (chunk.begin == 0) continue;
            ++all;
            // Chunks C−1 and C are neighbours on the same rank.
            foreign += chunk.begin != options_.part.size * chunk_length();
        }
    }
    const int64_t numbers = options_.rows * columns();
    return {{.kind = Collective::all_to_all,
             .axis = Axis::context,
             .elements = all * numbers,
             .sent_elements = static_cast<double>(foreign * numbers) / options_.part.size}};
}

}  // namespace speedrun
