#include "train/comm/text_gather.h"

#include <algorithm>
#include <numeric>

namespace speedrun {

std::vector<GatherRound> gather_rounds(int rank, int size) {
    std::vector<GatherRound> rounds;
    for (int held = 1; held < size; held *= 2)
        rounds.push_back({(rank + size - held) % size, (rank + held) % size, std::min(held, size - held)});
    return rounds;
}

std::vector<std::string> gather_texts(MessageChannel& channel, int rank, int size, const std::string& text,
                                      int tag, const std::function<void(PendingMessages&)>& wait) {
    std::vector<std::string> held{text};  // of this rank, the next, ...
    for (const GatherRound& round : gather_rounds(rank, size)) {
        const auto count = static_cast<size_t>(round.count);
        std::vector<int64_t> own_sizes, sizes(count);
        std::string joined;
        for (size_t i = 0; i < count; ++i) {
            own_sizes.push_back(static_cast<int64_t>(held[i].size()));
            joined += held[i];
        }
        const auto exchange = [&](void* in, int64_t in_bytes, const void* out, int64_t out_bytes) {
            const auto messages = channel.start(tag);
            messages->receive(round.receive_from, in, in_bytes);
            messages->send(round.send_to, out, out_bytes);
            wait(*messages);
        };
        const int64_t bytes_of_sizes = round.count * static_cast<int64_t>(sizeof(int64_t));
        exchange(sizes.data(), bytes_of_sizes, own_sizes.data(), bytes_of_sizes);
        std::string arrived(static_cast<size_t>(std::accumulate(sizes.begin(), sizes.end(), int64_t{0})),
                            '\0');
        exchange(arrived.data(), static_cast<int64_t>(arrived.size()), joined.data(),
                 static_cast<int64_t>(joined.size()));
        size_t begin = 0;
        for (const int64_t bytes : sizes) {
            held.push_back(arrived.substr(begin, static_cast<size_t>(bytes)));
            begin += static_cast<size_t>(bytes);
        }
    }
    std::rotate(held.begin(), held.begin() + (size - rank) % size, held.end());
    return held;
}

}  // namespace speedrun
