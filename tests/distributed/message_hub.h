// Messages between threads of one process, as a MessageChannel (train/comm/message_channel.h).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <vector>

#include "kernels/device/error.h"
#include "train/comm/message_channel.h"

namespace speedrun::testing {

// Messages of one direction, channel and tag. A message is delivered as soon as it is sent and its receive is posted,
// as MPI may do. An early write is then detected.
struct MessageLine {
    struct Receive {
        const void* owner;
        void* data;
        int64_t bytes;
        std::atomic<int64_t>* pending;
    };
    std::deque<std::vector<char>> sent;
    std::deque<Receive> posted;
};

class MessageHub {
  public:
    using Key = std::tuple<int, int, int, int>;  // channel, sender, receiver, tag

    void send(const Key& key, const void* data, int64_t bytes) {
        const std::lock_guard lock(mutex_);
        MessageLine& line = lines_[key];
        const char* const begin = static_cast<const char*>(data);
        ++messages_;
        bytes_ += bytes;
        line.sent.emplace_back(begin, begin + bytes);
        deliver(line);
    }
    void receive(const Key& key, const MessageLine::Receive& receive) {
        const std::lock_guard lock(mutex_);
        MessageLine& line = lines_[key];
        line.posted.push_back(receive);
        deliver(line);
    }
    void cancel(const void* owner) {
        const std::lock_guard lock(mutex_);
        for (auto& [key, line] : lines_)
            std::erase_if(line.posted, [&](const MessageLine::Receive& r) { return r.owner == owner; });
    }
    bool try_receive(const Key& key, void* data, int64_t bytes) {
        const std::lock_guard lock(mutex_);
        MessageLine& line = lines_[key];
        if (line.sent.empty()) return false;
        const std::vector<char>& message = line.sent.front();
        if (static_cast<int64_t>(message.size()) > bytes)
            throw_internal("a message of {} bytes", message.size());
        std::memcpy(data, message.data(), message.size());
        line.sent.pop_front();
        return true;
    }

    // Totals of sent messages.
    int64_t messages() const { return messages_; }
    int64_t bytes() const { return bytes_; }

  private:
    static void deliver(MessageLine& line) {
        for (; !line.sent.empty() && !line.posted.empty(); line.sent.pop_front(), line.posted.pop_front()) {
            const std::vector<char>& message = line.sent.front();
            const MessageLine::Receive& receive = line.posted.front();
            if (static_cast<int64_t>(message.size()) != receive.bytes)
                throw_internal("a message of {} bytes, expected {}", message.size(), receive.bytes);
            std::copy(message.begin(), message.end(), static_cast<char*>(receive.data));
            --*receive.pending;
        }
    }

    std::mutex mutex_;
    int64_t messages_ = 0, bytes_ = 0;
    std::map<Key, MessageLine> lines_;
};

struct HubPlace {
    MessageHub& hub;
    int rank, size, channel;
};

class HubMessages final : public PendingMessages {
  public:
    HubMessages(const HubPlace& place, int tag) : place_(place), tag_(tag) {}
    ~HubMessages() override { place_.hub.cancel(this); }
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
    const HubPlace place_;
    const int tag_;
    std::atomic<int64_t> pending_ = 0;
    int peer_ = -1;
};

class HubChannel final : public MessageChannel {
  public:
    explicit HubChannel(const HubPlace& place) : place_(place) {}
    std::unique_ptr<PendingMessages> start(int tag) override {
        return std::make_unique<HubMessages>(place_, tag);
    }
    int try_receive(int tag, void* data, int64_t bytes) override {
        for (int from = 0; from < place_.size; ++from)
            if (place_.hub.try_receive({place_.channel, from, place_.rank, tag}, data, bytes)) return from;
        return -1;
    }

  private:
    const HubPlace place_;
};

}  // namespace speedrun::testing
