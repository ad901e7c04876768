// build: in thread_world
#include "tests/distributed/thread_world.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "train/comm/even_split.h"
#include "train/comm/host_task.h"
#include "train/comm/ordered_sum.h"

#ifdef __SANITIZE_THREAD__
// ThreadSanitizer cannot see the locks of OpenSSL 3.5 (Debian 13), which is built without it: it reports
// races between two threads' lookups of a hash function.
extern "C" const char* __tsan_default_suppressions();
const char* __tsan_default_suppressions() {
    return "called_from_lib:libcrypto.so\n";
}
#endif

namespace speedrun {

namespace {

using Clock = std::chrono::steady_clock;

// Barrier of one group, with a table of the arguments of each member.
struct Rendezvous {
    Group group;
    int arrived = 0;
    int64_t round = 0;
    std::vector<bool> here;             // index: member
    std::vector<CollectiveCall> calls;  // index: member
    std::vector<std::string> texts;     // index: member
};

// Shared state of all ranks. One lock suffices: these are tests of order, not of speed.
class Hub {
  public:
    Hub(int size, const WorldOptions& options) : timeout_(options.timeout_s) {
        Group all;
        for (int rank = 0; rank < size; ++rank) all.ranks.push_back(rank);
        everyone_ = rendezvous("world", all);
    }

    Rendezvous& everyone() { return *everyone_; }

    std::shared_ptr<Rendezvous> rendezvous(const std::string& key, const Group& group) {
        std::lock_guard lock(mutex_);
        std::shared_ptr<Rendezvous>& rendezvous = meetings_[key + ':' + group.describe()];
        if (!rendezvous) {
            rendezvous = std::make_shared<Rendezvous>();
            rendezvous->group = group;
            rendezvous->here.resize(group.ranks.size());
            rendezvous->calls.resize(group.ranks.size());
            rendezvous->texts.resize(group.ranks.size());
        }
        return rendezvous;
    }

    // Returns when all members are here. `work` runs under the lock, before other members see this one.
    template <class Work>
    void arrive(Rendezvous& rendezvous, int member, const std::string& what, Work work) {
        std::unique_lock lock(mutex_);
        throw_if_ended();
        work();
        rendezvous.here[static_cast<size_t>(member)] = true;
        if (++rendezvous.arrived == rendezvous.group.size()) {
            rendezvous.arrived = 0;
            rendezvous.here.assign(rendezvous.here.size(), false);
            ++rendezvous.round;
            std::erase_if(waiting_, [&](const auto& wait) { return wait.second == &rendezvous; });
            changed_.notify_all();
            return;
        }
        const int64_t round = rendezvous.round;
        const int rank = rendezvous.group.ranks[static_cast<size_t>(member)];
        waiting_.emplace(rank, &rendezvous);
        const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout_);
        const auto over = [&] { return rendezvous.round != round || ended_; };
        const bool in_time = changed_.wait_until(lock, deadline, over);
        if (!in_time) end(ExitCode::communication, blame(rank, rendezvous, what));
        if (rendezvous.round == round) throw_if_ended();
    }

    void abort(ExitCode code, const std::string& reason) {
        std::lock_guard lock(mutex_);
        end(code, reason);
    }

  private:
    void end(ExitCode code, const std::string& reason) {
        if (!ended_) ended_ = Error(code, reason);
        changed_.notify_all();
    }

    void throw_if_ended() const {
        if (ended_) throw Error(*ended_);
    }

    static int missing(const Rendezvous& rendezvous) {
        size_t member = 0;
        while (rendezvous.here[member]) ++member;
        return rendezvous.group.ranks[member];
    }

    // Follows the chain of waits from the rank that is missing here to the first rank that waits for none.
    std::string blame(int rank, const Rendezvous& rendezvous, const std::string& what) const {
        std::set<int> seen{rank};
        int lost = missing(rendezvous);
        for (auto at = waiting_.find(lost); at != waiting_.end(); at = waiting_.find(lost)) {
            if (!seen.insert(lost).second)
                return fmt::format(
                    "ranks wait for each other: rank {} in {}; are collectives enqueued in the same order?",
                    rank, what);
            lost = missing(*at->second);
        }
        return fmt::format(
            "rank {} did not come to {} within {:g} s (reported by rank {}): it hangs or is gone", lost, what,
            timeout_.count(), rank);
    }

    const std::chrono::duration<double> timeout_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::string, std::shared_ptr<Rendezvous>> meetings_;
    std::shared_ptr<Rendezvous> everyone_;
    std::multimap<int, const Rendezvous*> waiting_;  // key: rank; a rank may wait on several streams
    std::optional<Error> ended_;
};

class ThreadCommunicator final : public Communicator {
  public:
    ThreadCommunicator(std::string name, const Group& group, std::shared_ptr<Hub> hub,
                       std::shared_ptr<Rendezvous> rendezvous)
        : Communicator(std::move(name), group), hub_(std::move(hub)), meeting_(std::move(rendezvous)) {}

  private:
    void enqueue(const CollectiveCall& call, Stream& stream) override {
        enqueue_on_host(stream, name_of(call.kind), [this, call] { run(call); });
    }

    void run(const CollectiveCall& call) {
        const std::string what = fmt::format("{} on '{}'", call.describe(), name());
        hub_->arrive(*meeting_, index(), what, [&] { meeting_->calls[static_cast<size_t>(index())] = call; });
        const std::vector<CollectiveCall>& calls = meeting_->calls;  // stable until the next meeting
        expect_same_call(call, calls);
        move_data(call, calls);
        hub_->arrive(*meeting_, index(), what, [] {});  // a member still reads until this barrier
        if (call.kind == Collective::all_reduce) {
            gather_chunks(call, calls);
            hub_->arrive(*meeting_, index(), what, [] {});
        }
    }

    void expect_same_call(const CollectiveCall& call, const std::vector<CollectiveCall>& calls) {
        for (size_t i = 0; i < calls.size(); ++i) {
            const CollectiveCall& other = calls[i];
            if (other.kind == call.kind && other.count == call.count && other.dtype == call.dtype &&
                other.root == call.root && other.reduction == call.reduction)
                continue;
            throw Error(ExitCode::communication,
                        fmt::format("'{}': rank {} runs {}, but rank {} runs {}", name(),
                                    group().ranks[static_cast<size_t>(index())], call.describe(),
                                    group().ranks[i], other.describe()));
        }
    }

    void move_data(const CollectiveCall& call, const std::vector<CollectiveCall>& calls) {
        const int64_t part = call.count * size_of(call.dtype);
        switch (call.kind) {
            case Collective::all_reduce: {
                const EvenSplit chunks{call.count, size()};
                reduce_members(call, calls, chunks.begin(index()), chunks.size(index()), call.output,
                               chunks.begin(index()));
                count_sent(call.kind, (call.count - chunks.size(index())) * size_of(call.dtype));
                return;
            }
            case Collective::reduce_scatter:
                reduce_members(call, calls, index() * call.count, call.count, call.output, 0);
                break;
            case Collective::all_gather:
                for (int i = 0; i < size(); ++i)
                    copy(call.output, i * part, calls[static_cast<size_t>(i)].input, 0, part);
                break;
            case Collective::all_to_all:
                return exchange(call, calls);
            case Collective::broadcast:
                copy(call.output, 0, calls[static_cast<size_t>(call.root)].input, 0, part);
                count_sent(call.kind, index() == call.root ? (size() - 1) * part : 0);
                return;
            case Collective::barrier:
                return;
        }
        count_sent(call.kind, (size() - 1) * part);
    }

    void exchange(const CollectiveCall& call, const std::vector<CollectiveCall>& calls) {
        const int64_t element = size_of(call.dtype);
        std::vector<size_t> taken(calls.size());  // slices received from each member
        for (const Slice& slice : call.exchange->receives) {
            const auto member = static_cast<size_t>(slice.member);
            const CollectiveCall& from = calls[member];
            const std::vector<Slice>& sends = from.exchange->sends;
            size_t& at = taken[member];
            while (at < sends.size() && sends[at].member != index()) ++at;
            if (at == sends.size() || sends[at].count != slice.count) {
                throw Error(ExitCode::communication,
                            fmt::format("'{}': rank {} wants {} elements of rank {}, which sends {}", name(),
                                        group().ranks[static_cast<size_t>(index())], slice.count,
                                        group().ranks[member], at == sends.size() ? 0 : sends[at].count));
            }
            copy(call.output, slice.begin * element, from.input, sends[at].begin * element,
                 slice.count * element);
            ++at;
        }
        count_sent(call.kind, sent_bytes(call));
    }

    // The second half of all_reduce: every member holds the sum of its own chunk.
    void gather_chunks(const CollectiveCall& call, const std::vector<CollectiveCall>& calls) {
        const EvenSplit chunks{call.count, size()};
        const int64_t element = size_of(call.dtype);
        for (int i = 0; i < size(); ++i) {
            copy(call.output, chunks.begin(i) * element, calls[static_cast<size_t>(i)].output,
                 chunks.begin(i) * element, chunks.size(i) * element);
        }
        count_sent(call.kind, (size() - 1) * chunks.size(index()) * element);
    }

    static void reduce_members(const CollectiveCall& call, const std::vector<CollectiveCall>& calls,
                               int64_t begin, int64_t count, void* output, int64_t output_begin) {
        std::vector<const void*> inputs;
        for (const CollectiveCall& other : calls)
            inputs.push_back(static_cast<const char*>(other.input) + begin * size_of(call.dtype));
        ordered_reduction(call.reduction, static_cast<char*>(output) + output_begin * size_of(call.dtype),
                          inputs, count, call.dtype);
    }

    static void copy(void* output, int64_t output_offset, const void* input, int64_t input_offset,
                     int64_t bytes) {
        char* const to = static_cast<char*>(output) + output_offset;
        const char* const from = static_cast<const char*>(input) + input_offset;
        if (to != from && bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
    }

    const std::shared_ptr<Hub> hub_;
    const std::shared_ptr<Rendezvous> meeting_;
};

class ThreadWorld final : public World {
  public:
    ThreadWorld(int rank, std::shared_ptr<Hub> hub) : rank_(rank), hub_(std::move(hub)) {}

    int rank() const override { return rank_; }
    int size() const override { return hub_->everyone().group.size(); }
    int local_rank() const override { return rank_; }
    int local_size() const override { return size(); }

    std::unique_ptr<Communicator> connect(const std::string& name, const Group& group) override {
        expect_same_on_all_ranks(*this, "communicators", {name});
        const std::string key = fmt::format("{}#{}", name, num_connected_++);
        return std::make_unique<ThreadCommunicator>(name, group, hub_, hub_->rendezvous(key, group));
    }

    std::vector<std::string> all_gather(const std::string& text) override {
        Rendezvous& all = hub_->everyone();
        hub_->arrive(all, rank_, "a host exchange", [&] { all.texts[static_cast<size_t>(rank_)] = text; });
        std::vector<std::string> texts = all.texts;
        hub_->arrive(all, rank_, "a host exchange", [] {});
        return texts;
    }

    void abort(ExitCode code, const std::string& reason) override { hub_->abort(code, reason); }
    void finish() override { barrier(); }

  private:
    const int rank_;
    const std::shared_ptr<Hub> hub_;
    int num_connected_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<World>> make_thread_worlds(int size, const WorldOptions& options) {
    const auto hub = std::make_shared<Hub>(size, options);
    std::vector<std::unique_ptr<World>> worlds;
    for (int rank = 0; rank < size; ++rank) worlds.push_back(std::make_unique<ThreadWorld>(rank, hub));
    return worlds;
}

}  // namespace speedrun
