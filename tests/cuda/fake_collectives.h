// Parts of the fake NCCL: the members of a communicator, and the order of collectives on a GPU.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace speedrun::testing {

// A message between a member and `peer`.
struct Message {
    int peer;
    void* data;
    size_t bytes;
};

// Members of one communicator, each on its own thread.
struct Hub {
    std::mutex mutex;
    std::condition_variable changed;
    int size = 0, arrived = 0, joined = 0;
    int64_t round = 0;
    bool aborted = false;
    std::map<int, std::vector<int>> keys;        // keys of a running split, by color
    std::map<int, std::shared_ptr<Hub>> parts;   // results of a running split, by color
    std::vector<std::vector<const void*>> sent;  // inputs of each member, one per receiver or one for all

    std::map<std::pair<int, int>, std::deque<Message>> posted;  // key: sender and receiver; in order

    // Waits until all messages of both sides have arrived. A receive of another size aborts; NCCL's behavior
    // is undefined there.
    void pass(int rank, const std::vector<Message>& sends, const std::vector<Message>& receives) {
        std::unique_lock lock(mutex);
        for (const Message& message : sends) posted[{rank, message.peer}].push_back(message);
        changed.notify_all();
        for (const Message& message : receives) {
            std::deque<Message>& from = posted[{message.peer, rank}];
            changed.wait(lock, [&] { return !from.empty() || aborted; });
            aborted = aborted || from.front().bytes != message.bytes;
            if (!aborted && message.bytes > 0) std::memcpy(message.data, from.front().data, message.bytes);
            if (!aborted) from.pop_front();
            changed.notify_all();
        }
        changed.wait(lock, [&] {
            return aborted || std::all_of(sends.begin(), sends.end(), [&](const Message& message) {
                       return posted[{rank, message.peer}].empty();
                   });
        });
    }

    // False if it was aborted.
    bool meet() {
        std::unique_lock lock(mutex);
        if (++arrived == size) {
            arrived = 0;
            ++round;
            changed.notify_all();
            return !aborted;
        }
        changed.wait(lock, [&, now = round] { return round != now || aborted; });
        return !aborted;
    }
};

// A GPU that runs one collective at a time. Identified by the host thread that makes the calls.
class OneAtATime {
  public:
    // reversed: of an unordered GPU, prefers the latest collective that is ready.
    explicit OneAtATime(bool reversed) : reversed_(reversed) {}
    int64_t next_ticket() {
        std::lock_guard lock(mutex_);
        return tickets_++;
    }
    void start(int64_t ticket, bool ordered) {
        std::unique_lock lock(mutex_);
        ready_.insert(ticket);
        changed_.notify_all();
        if (!ordered && reversed_)
            changed_.wait_for(lock, std::chrono::milliseconds(200),
                              [&] { return *ready_.rbegin() > ticket; });
        changed_.wait(lock, [&] {
            return !busy_ && (ordered ? started_ == ticket
                                      : ticket == (reversed_ ? *ready_.rbegin() : *ready_.begin()));
        });
        ready_.erase(ticket);
        ++started_;
        busy_ = true;
    }
    void end() {
        std::lock_guard lock(mutex_);
        busy_ = false;
        changed_.notify_all();
    }

  private:
    const bool reversed_;
    std::mutex mutex_;
    std::condition_variable changed_;
    int64_t tickets_ = 0, started_ = 0;
    bool busy_ = false;
    std::set<int64_t> ready_;  // tickets of collectives that their streams have reached
};

}  // namespace speedrun::testing
