#include "train/comm/message_world.h"
#include "train/parameters/range.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "train/comm/even_split.h"
#include "train/comm/host_cores.h"
#include "train/comm/host_task.h"
#include "train/comm/ordered_sum.h"
#include "train/comm/peer_watch.h"
#include "train/comm/text_gather.h"

namespace speedrun {

namespace {

constexpr int kDataTag = 1, kHostTag = 2;

// Every member sends to each other member that member's part directly, and sums its own part in member order. A ring would send
// the same number of bytes. Its order of summation would differ between parts, and in bf16 it would round at every hop.
class MessageCommunicator final : public Communicator {
  public:
    MessageCommunicator(std::string name, const Group& group, std::unique_ptr<MessageChannel> channel,
                        PeerWatch& watch, int64_t slice_bytes)
        : Communicator(std::move(name), group),
          channel_(std::move(channel)),
          watch_(watch),
          slice_bytes_(slice_bytes) {}

  private:
    void enqueue(const CollectiveCall& call, Stream& stream) override {
        enqueue_on_host(stream, name_of(call.kind), [this, call] { run(call); });
    }

    void run(const CollectiveCall& call) {
        const std::string what = fmt::format("{} on '{}'", call.describe(), name());
        const int64_t element = size_of(call.dtype), part = call.count * element;
        switch (call.kind) {
            case Collective::all_reduce: {
                const EvenSplit chunks{call.count, size()};
                char* const own = static_cast<char*>(call.output) + chunks.begin(index()) * element;
                reduce(own, call, chunks, what);
                gather(call, chunks, what);
                return;
            }
            case Collective::reduce_scatter:
                return reduce(call.output, call, {call.count * size(), size()}, what);
            case Collective::all_gather: {
                copy(static_cast<char*>(call.output) + index() * part, call.input, part);
                return gather(call, {call.count * size(), size()}, what);
            }
            case Collective::all_to_all:
                return exchange(call, what);
            case Collective::broadcast:
                return broadcast(call, part, what);
            case Collective::barrier:
                return meet(what);
        }
    }

    // own <- the sum (or maximum) over the members of this member's chunk of their inputs.
    void reduce(void* own, const CollectiveCall& call, const EvenSplit& chunks, const std::string& what) {
        const int64_t element = size_of(call.dtype);
        const int64_t slice = slice_bytes_ / element;
        const int64_t num_slices = (chunks.per_part() + slice - 1) / slice;
        scratch_.resize(
            static_cast<size_t>(int64_t{2} * size() * std::min(slice_bytes_, chunks.per_part() * element)));
        std::array<std::unique_ptr<PendingMessages>, 2> under_way;
        if (num_slices > 0) under_way[0] = start_slice(call, chunks, 0, slice);
        for (int64_t s = 0; s < num_slices; ++s) {
            if (s + 1 < num_slices) under_way[(s + 1) % 2] = start_slice(call, chunks, s + 1, slice);
            watch_.wait(*under_way[s % 2], what);
            const Range mine = span(chunks, index(), s, slice);
            std::vector<const void*> inputs;
            for (int i = 0; i < size(); ++i) {
                inputs.push_back(i == index() ? static_cast<const char*>(call.input) + mine.begin * element
                                              : landing(i, s, call, chunks));
            }
            ordered_reduction(call.reduction, static_cast<char*>(own) + s * slice * element, inputs,
                              mine.count, call.dtype);
        }
    }

    // Range of slice `s` of member `i`'s chunk, in elements.
    static Range span(const EvenSplit& chunks, int i, int64_t s, int64_t slice) {
        const int64_t skipped = std::min(s * slice, chunks.size(i));
        return {chunks.begin(i) + skipped, std::min(chunks.size(i) - skipped, slice)};
    }

    // Receive buffer for member i's share of slice s.
    void* landing(int i, int64_t s, const CollectiveCall& call, const EvenSplit& chunks) {
        const int64_t bytes = std::min(slice_bytes_, chunks.per_part() * size_of(call.dtype));
        return scratch_.data() + ((s % 2) * size() + i) * bytes;
    }

    std::unique_ptr<PendingMessages> start_slice(const CollectiveCall& call, const EvenSplit& chunks,
                                                 int64_t s, int64_t slice) {
        const int64_t element = size_of(call.dtype);
        auto messages = channel_->start(kDataTag);
        for_each_peer([&](int i, int peer) {
            messages->receive(peer, landing(i, s, call, chunks),
                              span(chunks, index(), s, slice).count * element);
        });
        for_each_peer([&](int i, int peer) {
            const Range theirs = span(chunks, i, s, slice);
            messages->send(peer, static_cast<const char*>(call.input) + theirs.begin * element,
                           theirs.count * element);
            count_sent(call.kind, theirs.count * element);
        });
        return messages;
    }

    // Sends this member's chunk of the output to all others.
    void gather(const CollectiveCall& call, const EvenSplit& chunks, const std::string& what) {
        const int64_t element = size_of(call.dtype);
        char* const output = static_cast<char*>(call.output);
        const auto messages = channel_->start(kDataTag);
        for_each_peer([&](int i, int peer) {
            messages->receive(peer, output + chunks.begin(i) * element, chunks.size(i) * element);
        });
        for_each_peer([&](int, int peer) {
            messages->send(peer, output + chunks.begin(index()) * element, chunks.size(index()) * element);
            count_sent(call.kind, chunks.size(index()) * element);
        });
        watch_.wait(*messages, what);
    }

    void exchange(const CollectiveCall& call, const std::string& what) {
        const int64_t element = size_of(call.dtype);
        char* const output = static_cast<char*>(call.output);
        const char* const input = static_cast<const char*>(call.input);
        const auto messages = channel_->start(kDataTag);
        std::vector<const Slice*> kept;  // slices from this member to itself
        for (const Slice& slice : call.exchange->sends)
            if (slice.member == index()) kept.push_back(&slice);
        size_t copied = 0;
        for (const Slice& slice : call.exchange->receives) {
            if (slice.member != index()) {
                messages->receive(group().ranks[static_cast<size_t>(slice.member)],
                                  output + slice.begin * element, slice.count * element);
            } else if (copied < kept.size() && kept[copied]->count == slice.count) {
                copy(output + slice.begin * element, input + kept[copied++]->begin * element,
                     slice.count * element);
            } else {
                throw_internal("{}: {} elements received from itself, but another number sent", what,
                               slice.count);
            }
        }
        for (const Slice& slice : call.exchange->sends) {
            if (slice.member == index()) continue;
            messages->send(group().ranks[static_cast<size_t>(slice.member)], input + slice.begin * element,
                           slice.count * element);
        }
        count_sent(call.kind, sent_bytes(call));
        watch_.wait(*messages, what);
    }

    void broadcast(const CollectiveCall& call, int64_t bytes, const std::string& what) {
        const auto messages = channel_->start(kDataTag);
        if (index() != call.root) {
            messages->receive(group().ranks[static_cast<size_t>(call.root)], call.output, bytes);
        } else {
            for_each_peer([&](int, int peer) {
                messages->send(peer, call.input, bytes);
                count_sent(call.kind, bytes);
            });
        }
        watch_.wait(*messages, what);
    }

    // Dissemination barrier: after the round with `step`, each member has heard, directly or indirectly, from 2 step members;
    // after ceil(log2 n) rounds from all (D. Hensgen, R. Finkel and U. Manber, "Two algorithms for barrier synchronization",
    // 1988).
    void meet(const std::string& what) {
        for (int step = 1; step < size(); step *= 2) {
            char here = 0, there = 0;
            const auto messages = channel_->start(kDataTag);
            messages->receive(member((index() + size() - step) % size()), &there, 1);
            messages->send(member((index() + step) % size()), &here, 1);
            watch_.wait(*messages, what);
        }
    }

    int member(int i) const { return group().ranks[static_cast<size_t>(i)]; }

    // Starts at the next member, so that the members do not all send to member 0 first.
    template <class Work>
    void for_each_peer(Work work) const {
        for (int step = 1; step < size(); ++step) {
            const int i = (index() + step) % size();
            work(i, group().ranks[static_cast<size_t>(i)]);
        }
    }

    static void copy(void* output, const void* input, int64_t bytes) {
        if (output != input && bytes > 0) std::memcpy(output, input, static_cast<size_t>(bytes));
    }

    const std::unique_ptr<MessageChannel> channel_;
    PeerWatch& watch_;
    const int64_t slice_bytes_;
    std::vector<char> scratch_;  // two slices per member
};

class MessageWorld final : public World {
  public:
    MessageWorld(std::unique_ptr<MessageTransport> transport, const WorldOptions& options,
                 int64_t slice_bytes)
        : transport_(std::move(transport)),
          slice_bytes_(slice_bytes),
          watch_(std::make_unique<PeerWatch>(*transport_, options.timeout_s)),
          channel_(transport_->open_channel()) {
        watch_->set_hosts(all_gather(host_name()));
    }

    ~MessageWorld() override {
        if (!watch_) return;
        std::fprintf(stderr, "error: rank %d left the world without finish()\n", rank());
        watch_->disarm();
        transport_->kill_all(static_cast<int>(ExitCode::communication));
    }

    int rank() const override { return transport_->rank(); }
    int size() const override { return transport_->size(); }
    int local_rank() const override { return transport_->local_rank(); }
    int local_size() const override { return transport_->local_size(); }

    std::unique_ptr<Communicator> connect(const std::string& name, const Group& group) override {
        // Also checks that all ranks are present: opening a channel does not detect a lost rank.
        expect_same_on_all_ranks(*this, "communicators", {name});
        return std::make_unique<MessageCommunicator>(name, group, transport_->open_channel(), *watch_,
                                                     slice_bytes_);
    }

    std::vector<std::string> all_gather(const std::string& text) override {
        return gather_texts(*channel_, rank(), size(), text, kHostTag,
                            [&](PendingMessages& messages) { watch_->wait(messages, "a host exchange"); });
    }

    std::vector<std::string> gather(const std::string& text) override {
        return gather_texts_to_first(
            *channel_, rank(), size(), text, kHostTag,
            [&](PendingMessages& messages) { watch_->wait(messages, "a host exchange"); });
    }

    void abort(ExitCode code, const std::string& reason) override {
        if (watch_) {
            watch_->end_all(code, reason);
            // Lets the other ranks print their reasons: the launcher kills them as soon as one rank exits.
            constexpr std::chrono::milliseconds kLastWords(1000);
            std::this_thread::sleep_for(kLastWords);
            code = watch_->ended()->code();  // exit code of the first reason
        }
        transport_->kill_all(static_cast<int>(code));
    }

    void finish() override {
        barrier();
        watch_.reset();
        transport_->close();
    }

  private:
    const std::unique_ptr<MessageTransport> transport_;
    const int64_t slice_bytes_;
    std::unique_ptr<PeerWatch> watch_;  // null after finish()
    const std::unique_ptr<MessageChannel> channel_;
};

}  // namespace

std::unique_ptr<World> make_message_world(std::unique_ptr<MessageTransport> transport,
                                          const WorldOptions& options, int64_t slice_bytes) {
    return std::make_unique<MessageWorld>(std::move(transport), options, slice_bytes);
}

}  // namespace speedrun
