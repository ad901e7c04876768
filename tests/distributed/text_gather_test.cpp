// Gather of texts in ceil(log2 n) rounds: rounds of a thousand ranks on paper, 64 thread ranks, and bytes sent.
#include "train/comm/text_gather.h"

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <numeric>
#include <thread>

#include "tests/distributed/message_hub.h"

namespace speedrun::testing::text_gather_test {

int64_t rounds_of(int size) {
    return std::bit_width(static_cast<unsigned>(size - 1));
}

// Sets of ranks that each rank holds after its rounds, if all ranks run each round together.
TEST(TextGatherTest, RoundsDeliverEachTextOnce) {
    for (const int size : {1, 2, 3, 4, 5, 7, 8, 9, 31, 64, 100, 1000, 1024}) {
        SCOPED_TRACE(size);
        std::vector<std::vector<int>> held(static_cast<size_t>(size));
        for (int rank = 0; rank < size; ++rank) held[static_cast<size_t>(rank)] = {rank};
        const size_t num_rounds = gather_rounds(0, size).size();
        EXPECT_EQ(num_rounds, static_cast<size_t>(rounds_of(size)));
        for (size_t k = 0; k < num_rounds; ++k) {
            const auto before = held;
            for (int rank = 0; rank < size; ++rank) {
                const GatherRound round = gather_rounds(rank, size)[k];
                ASSERT_EQ(gather_rounds(round.receive_from, size)[k].send_to, rank);
                const std::vector<int>& theirs = before[static_cast<size_t>(round.receive_from)];
                ASSERT_LE(static_cast<size_t>(round.count), theirs.size());
                std::vector<int>& own = held[static_cast<size_t>(rank)];
                own.insert(own.end(), theirs.begin(), theirs.begin() + round.count);
            }
        }
        for (const std::vector<int>& of_rank : held) ASSERT_EQ(of_rank.size(), static_cast<size_t>(size));
        for (int rank = 0; rank < size; ++rank)
            for (int i = 0; i < size; ++i)
                ASSERT_EQ(held[static_cast<size_t>(rank)][static_cast<size_t>(i)], (rank + i) % size);
    }
}

std::string text_of(int rank) {
    return std::string(static_cast<size_t>(rank % 5 * rank), static_cast<char>('a' + rank % 26));
}

// Runs right(rank, channel, wait) on threads, and expects true of each.
template <class Right>
void expect_right(MessageHub& hub, int size, const Right& right) {
    std::atomic<int> count = 0;
    {
        std::vector<std::jthread> ranks;
        for (int rank = 0; rank < size; ++rank)
            ranks.emplace_back([&, rank] {
                HubChannel channel({hub, rank, size, 0});
                count += right(rank, channel, [](PendingMessages& messages) {
                    while (!messages.test()) std::this_thread::yield();
                });
            });
    }
    EXPECT_EQ(count, size);
}

TEST(TextGatherTest, SendsFewMessages) {
    for (const int size : {1, 2, 3, 6, 8, 64}) {
        SCOPED_TRACE(size);
        MessageHub hub;
        std::vector<std::string> expected;
        for (int rank = 0; rank < size; ++rank) expected.push_back(text_of(rank));
        expect_right(hub, size, [&](int rank, MessageChannel& channel, const auto& wait) {
            // Twice: a leftover message of the first call would reach the second.
            return gather_texts(channel, rank, size, text_of(rank), 1, wait) == expected &&
                   gather_texts(channel, rank, size, "", 1, wait) ==
                       std::vector<std::string>(static_cast<size_t>(size));
        });
        // Every rank receives every other text once, with its length, and no unrequested message.
        const int64_t all = std::accumulate(
            expected.begin(), expected.end(), int64_t{0},
            [](int64_t sum, const std::string& text) { return sum + static_cast<int64_t>(text.size()); });
        EXPECT_EQ(hub.messages(), 2 * 2 * rounds_of(size) * size);
        EXPECT_EQ(hub.bytes(), (size - 1) * (all + 2 * size * static_cast<int64_t>(sizeof(int64_t))));
    }
}

// Rank 0 receives all texts. Each other rank sends two messages: lengths and texts. A text is sent popcount(rank) times.
TEST(TextGatherTest, TreeGatherDeliversToRankZero) {
    for (const int size : {1, 2, 3, 6, 8, 64}) {
        SCOPED_TRACE(size);
        MessageHub hub;
        std::vector<std::string> expected;
        int64_t bytes = 0;
        for (int rank = 0; rank < size; ++rank) {
            expected.push_back(text_of(rank));
            const int passes = std::popcount(static_cast<unsigned>(rank));
            bytes += passes * static_cast<int64_t>(expected.back().size() + 2 * sizeof(int64_t));
        }
        expect_right(hub, size, [&](int rank, MessageChannel& channel, const auto& wait) {
            const auto hears = [&](const std::string& text) {
                return gather_texts_to_first(channel, rank, size, text, 1, wait);
            };
            const std::vector<std::string> texts = hears(text_of(rank)), empty = hears("");
            return rank == 0 ? texts == expected && empty.size() == expected.size()
                             : texts.empty() && empty.empty();
        });
        EXPECT_EQ(hub.messages(), 2 * 2 * (size - 1));
        EXPECT_EQ(hub.bytes(), bytes);
    }
}

}  // namespace speedrun::testing::text_gather_test
