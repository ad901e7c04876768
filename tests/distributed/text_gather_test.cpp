// Gather of texts in ceil(log2 n) rounds: rounds of a thousand ranks on paper, 64 thread ranks, and bytes sent.
#include "train/comm/text_gather.h"

#include <gtest/gtest.h>

#include <atomic>
#include <bit>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "kernels/device/error.h"

namespace speedrun {
namespace text_gather_test {

int64_t rounds_of(int size) {
    return std::bit_width(static_cast<unsigned>(size - 1));
}

// Sets of ranks that each rank holds after its rounds, if all ranks run each round together.
TEST(TextGatherTest, RoundsReachAllOnce) {
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

// Mail between thread ranks. A sent text is copied immediately and counted.
struct Mail {
    std::mutex mutex;
    std::map<std::pair<int, int>, std::deque<std::string>> boxes;  // key: sender, receiver
    std::atomic<int64_t> messages = 0, bytes = 0;
};

class MailMessages final : public PendingMessages {
  public:
    MailMessages(Mail& mail, int rank) : mail_(mail), rank_(rank) {}
    void send(int peer, const void* data, int64_t bytes) override {
        ++mail_.messages;
        mail_.bytes += bytes;
        std::lock_guard lock(mail_.mutex);
        mail_.boxes[{rank_, peer}].emplace_back(static_cast<const char*>(data), static_cast<size_t>(bytes));
    }
    void receive(int peer, void* data, int64_t bytes) override { wanted_.push_back({peer, data, bytes}); }
    bool test() override {
        std::lock_guard lock(mail_.mutex);
        std::erase_if(wanted_, [&](const Wanted& wanted) {
            std::deque<std::string>& box = mail_.boxes[{wanted.peer, rank_}];
            if (box.empty()) return false;
            if (box.front().size() != static_cast<size_t>(wanted.bytes))
                throw Error(ExitCode::communication, "a message of another size than was expected");
            if (wanted.bytes > 0) std::memcpy(wanted.data, box.front().data(), box.front().size());
            box.pop_front();
            return true;
        });
        return wanted_.empty();
    }
    int64_t num_pending() const override { return static_cast<int64_t>(wanted_.size()); }
    int first_pending_peer() const override { return wanted_.empty() ? -1 : wanted_.front().peer; }

  private:
    struct Wanted {
        int peer;
        void* data;
        int64_t bytes;
    };
    Mail& mail_;
    const int rank_;
    std::vector<Wanted> wanted_;
};

class MailChannel final : public MessageChannel {
  public:
    MailChannel(Mail& mail, int rank) : mail_(mail), rank_(rank) {}
    std::unique_ptr<PendingMessages> start(int) override {
        return std::make_unique<MailMessages>(mail_, rank_);
    }
    int try_receive(int, void*, int64_t) override { return -1; }

  private:
    Mail& mail_;
    const int rank_;
};

std::string text_of(int rank) {
    return std::string(static_cast<size_t>(rank % 5 * rank), static_cast<char>('a' + rank % 26));
}

TEST(TextGatherTest, SendsFewMessages) {
    for (const int size : {1, 2, 3, 6, 8, 64}) {
        SCOPED_TRACE(size);
        Mail mail;
        std::vector<std::string> expected;
        for (int rank = 0; rank < size; ++rank) expected.push_back(text_of(rank));
        std::atomic<int> right = 0;
        std::vector<std::thread> ranks;
        for (int rank = 0; rank < size; ++rank)
            ranks.emplace_back([&, rank] {
                MailChannel channel(mail, rank);
                const auto wait = [](PendingMessages& messages) {
                    while (!messages.test()) std::this_thread::yield();
                };
                // Twice: a leftover message of the first call would reach the second.
                right += gather_texts(channel, rank, size, text_of(rank), 1, wait) == expected &&
                         gather_texts(channel, rank, size, "", 1, wait) ==
                             std::vector<std::string>(static_cast<size_t>(size));
            });
        for (std::thread& rank : ranks) rank.join();
        EXPECT_EQ(right, size);
        // Every rank receives every other text once, with its length, and no unrequested message.
        const int64_t all = std::accumulate(
            expected.begin(), expected.end(), int64_t{0},
            [](int64_t sum, const std::string& text) { return sum + static_cast<int64_t>(text.size()); });
        EXPECT_EQ(mail.messages, 2 * 2 * rounds_of(size) * size);
        EXPECT_EQ(mail.bytes, (size - 1) * (all + 2 * size * static_cast<int64_t>(sizeof(int64_t))));
    }
}

// Rank 0 receives all texts. Each other rank sends two messages: lengths and texts. A text is sent popcount(rank) times.
TEST(TextGatherTest, TheFirstRankAloneHearsAllAlongATree) {
    for (const int size : {1, 2, 3, 6, 8, 64}) {
        SCOPED_TRACE(size);
        Mail mail;
        std::vector<std::string> expected;
        int64_t bytes = 0;
        for (int rank = 0; rank < size; ++rank) {
            expected.push_back(text_of(rank));
            const int passes = std::popcount(static_cast<unsigned>(rank));
            bytes += passes * static_cast<int64_t>(expected.back().size() + 2 * sizeof(int64_t));
        }
        std::atomic<int> right = 0;
        std::vector<std::thread> ranks;
        for (int rank = 0; rank < size; ++rank)
            ranks.emplace_back([&, rank] {
                MailChannel channel(mail, rank);
                const auto wait = [](PendingMessages& messages) {
                    while (!messages.test()) std::this_thread::yield();
                };
                const auto hears = [&](const std::string& text) {
                    return gather_texts_to_first(channel, rank, size, text, 1, wait);
                };
                const std::vector<std::string> texts = hears(text_of(rank)), empty = hears("");
                right += rank == 0 ? texts == expected && empty.size() == expected.size()
                                   : texts.empty() && empty.empty();
            });
        for (std::thread& rank : ranks) rank.join();
        EXPECT_EQ(right, size);
        EXPECT_EQ(mail.messages, 2 * 2 * (size - 1));
        EXPECT_EQ(mail.bytes, bytes);
    }
}

}  // namespace text_gather_test
}  // namespace speedrun
