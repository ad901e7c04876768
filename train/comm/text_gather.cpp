#include "train/comm/text_gather.h"

#include <algorithm>
#include <numeric>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

using Texts = std::vector<std::string>;

int64_t total(const std::vector<int64_t>& sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

// Texts in the form of their two messages.
struct Joined {
    std::vector<int64_t> sizes;
    std::string text;

    Joined(const Texts& texts, size_t count) {
        for (size_t i = 0; i < count; ++i) {
            sizes.push_back(static_cast<int64_t>(texts[i].size()));
            text += texts[i];
        }
    }
};

void append(Texts& texts, const std::vector<int64_t>& sizes, const std::string& joined) {
    size_t begin = 0;
    for (const int64_t bytes : sizes) {
        texts.push_back(joined.substr(begin, static_cast<size_t>(bytes)));
        begin += static_cast<size_t>(bytes);
    }
}

int64_t bytes_of(const std::vector<int64_t>& sizes) {
    return static_cast<int64_t>(sizes.size() * sizeof(int64_t));
}

}  // namespace

std::vector<GatherRound> gather_rounds(int rank, int size) {
    std::vector<GatherRound> rounds;
    for (int held = 1; held < size; held *= 2)
        rounds.push_back({(rank + size - held) % size, (rank + held) % size, std::min(held, size - held)});
    return rounds;
}

std::vector<std::string> gather_texts(MessageChannel& channel, int rank, int size, const std::string& text,
                                      int tag, const std::function<void(PendingMessages&)>& wait) {
    Texts held{text};  // texts of this rank, the next, ...
    for (const GatherRound& round : gather_rounds(rank, size)) {
        const Joined own(held, static_cast<size_t>(round.count));
        std::vector<int64_t> sizes(static_cast<size_t>(round.count));
        const auto exchange = [&](void* in, int64_t in_bytes, const void* out, int64_t out_bytes) {
            const auto messages = channel.start(tag);
            messages->receive(round.receive_from, in, in_bytes);
            messages->send(round.send_to, out, out_bytes);
            wait(*messages);
        };
        exchange(sizes.data(), bytes_of(sizes), own.sizes.data(), bytes_of(own.sizes));
        std::string arrived(static_cast<size_t>(total(sizes)), '\0');
        exchange(arrived.data(), total(sizes), own.text.data(), total(own.sizes));
        append(held, sizes, arrived);
    }
    std::rotate(held.begin(), held.begin() + (size - rank) % size, held.end());
    return held;
}

std::vector<std::string> gather_texts_to_first(MessageChannel& channel, int rank, int size,
                                               const std::string& text, int tag,
                                               const std::function<void(PendingMessages&)>& wait) {
    if (rank < 0 || rank >= size) throw_internal("a gathering of {} ranks has no rank {}", size, rank);
    Texts held{text};  // texts of this rank, the next, ...
    const auto pass = [&](const auto& start) {
        const auto messages = channel.start(tag);
        start(*messages);
        wait(*messages);
    };
    for (int step = 1; step < size; step *= 2) {
        if ((rank & step) != 0) {
            const Joined own(held, held.size());
            const int to = rank - step;
            pass([&](PendingMessages& m) { m.send(to, own.sizes.data(), bytes_of(own.sizes)); });
            pass([&](PendingMessages& m) { m.send(to, own.text.data(), total(own.sizes)); });
            return {};
        }
        const int from = rank + step;
        if (from >= size) continue;
        std::vector<int64_t> sizes(static_cast<size_t>(std::min(step, size - from)));
        pass([&](PendingMessages& m) { m.receive(from, sizes.data(), bytes_of(sizes)); });
        std::string arrived(static_cast<size_t>(total(sizes)), '\0');
        pass([&](PendingMessages& m) { m.receive(from, arrived.data(), total(sizes)); });
        append(held, sizes, arrived);
    }
    return held;
}

}  // namespace speedrun
