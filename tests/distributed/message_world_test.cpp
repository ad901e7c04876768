// Ranks as threads that exchange messages (train/comm/message_world.h): the conformance cases with reductions of one
// slice and of many.
#include "train/comm/message_world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include "kernels/device/error.h"
#include "tests/distributed/conformance.h"
#include "tests/sanitized.h"

namespace speedrun::testing {
namespace message_world_test {

// Messages of one direction, channel and tag. A message is delivered as soon as it is sent and its receive is posted,
// as MPI may do. An early write is then detected.
struct Line {
    struct Receive {
        const void* owner;
        void* data;
        int64_t bytes;
        std::atomic<int64_t>* pending;
    };
    std::deque<std::vector<char>> sent;
    std::deque<Receive> posted;
};

class Hub {
  public:
    using Key = std::tuple<int, int, int, int>;  // channel, sender, receiver, tag

    void send(const Key& key, const void* data, int64_t bytes) {
        const std::lock_guard lock(mutex_);
        Line& line = lines_[key];
        const char* const begin = static_cast<const char*>(data);
        line.sent.emplace_back(begin, begin + bytes);
        deliver(line);
    }
    void receive(const Key& key, const Line::Receive& receive) {
        const std::lock_guard lock(mutex_);
        Line& line = lines_[key];
        line.posted.push_back(receive);
        deliver(line);
    }
    void cancel(const void* owner) {
        const std::lock_guard lock(mutex_);
        for (auto& [key, line] : lines_)
            std::erase_if(line.posted, [&](const Line::Receive& r) { return r.owner == owner; });
    }
    bool try_receive(const Key& key, void* data, int64_t bytes) {
        const std::lock_guard lock(mutex_);
        Line& line = lines_[key];
        if (line.sent.empty()) return false;
        const std::vector<char>& message = line.sent.front();
        if (static_cast<int64_t>(message.size()) > bytes)
            throw_internal("a message of {} bytes", message.size());
        std::memcpy(data, message.data(), message.size());
        line.sent.pop_front();
        return true;
    }

  private:
    static void deliver(Line& line) {
        for (; !line.sent.empty() && !line.posted.empty(); line.sent.pop_front(), line.posted.pop_front()) {
            const std::vector<char>& message = line.sent.front();
            const Line::Receive& receive = line.posted.front();
            if (static_cast<int64_t>(message.size()) != receive.bytes)
                throw_internal("a message of {} bytes, expected {}", message.size(), receive.bytes);
            std::copy(message.begin(), message.end(), static_cast<char*>(receive.data));
            --*receive.pending;
        }
    }

    std::mutex mutex_;
    std::map<Key, Line> lines_;
};

struct Place {
    Hub& hub;
    int rank, size, channel;
};

class Messages final : public PendingMessages {
  public:
    Messages(const Place& place, int tag) : place_(place), tag_(tag) {}
    ~Messages() override { place_.hub.cancel(this); }
    void send(int peer, const void* data, int64_t bytes) override {
        place_.hub.send({place_.channel, place_.rank, peer, tag_}, data, bytes);
    }
    void receive(int peer, void* data, int64_t bytes) override {
        ++pending_;
        peer_ = peer;
        place_.hub.receive({place_.channel, peer, place_.rank, tag_}, {this, data, bytes, &pending_});
    }
    bool test() override { return pending_ == 0; }
    int64_t num_pending() const override { return pending_; }
    int first_pending_peer() const override { return pending_ > 0 ? peer_ : -1; }

  private:
    const Place place_;
    const int tag_;
    std::atomic<int64_t> pending_ = 0;
    int peer_ = -1;
};

class Channel final : public MessageChannel {
  public:
    explicit Channel(const Place& place) : place_(place) {}
    std::unique_ptr<PendingMessages> start(int tag) override {
        return std::make_unique<Messages>(place_, tag);
    }
    int try_receive(int tag, void* data, int64_t bytes) override {
        for (int from = 0; from < place_.size; ++from)
            if (place_.hub.try_receive({place_.channel, from, place_.rank, tag}, data, bytes)) return from;
        return -1;
    }

  private:
    const Place place_;
};

class Transport final : public MessageTransport {
  public:
    Transport(Hub& hub, int rank, int size) : hub_(hub), rank_(rank), size_(size) {}
    int rank() const override { return rank_; }
    int size() const override { return size_; }
    int local_rank() const override { return rank_; }
    int local_size() const override { return size_; }
    std::unique_ptr<MessageChannel> open_channel() override {
        return std::make_unique<Channel>(Place{hub_, rank_, size_, channels_++});
    }
    void close() override {}
    [[noreturn]] void kill_all(int) noexcept override { std::abort(); }

  private:
    Hub& hub_;
    const int rank_, size_;
    int channels_ = 0;
};

struct WorldKind {
    int size;
    int64_t slice_bytes;
};

class MessageWorldTest : public ::testing::TestWithParam<std::tuple<WorldKind, ConformanceCase>> {};

TEST_P(MessageWorldTest, Conforms) {
    const auto& [kind, conformance] = GetParam();
    Hub hub;
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < kind.size; ++rank) {
        ranks.emplace_back([&, &kind = kind, &conformance = conformance, rank] {
            const auto world =
                make_message_world(std::make_unique<Transport>(hub, rank, kind.size), {}, kind.slice_bytes);
            conformance.run(*world);
            world->finish();
        });
    }
}

std::vector<WorldKind> world_kinds() {
    if (kSanitized) return {{3, 1024}};
    return {{3, 1024}, {2, 65536}};
}

INSTANTIATE_TEST_SUITE_P(Slices, MessageWorldTest,
                         ::testing::Combine(::testing::ValuesIn(world_kinds()),
                                            ::testing::ValuesIn(conformance_cases())),
                         [](const auto& info) {
                             const WorldKind& kind = std::get<0>(info.param);
                             return "ranks" + std::to_string(kind.size) + "_bytes" +
                                    std::to_string(kind.slice_bytes) + "_" + std::get<1>(info.param).name;
                         });

}  // namespace message_world_test
}  // namespace speedrun::testing
