// Communicator and World: interfaces of communication between ranks.
//
// A World is the set of all ranks. It connects communicators and provides the few small exchanges between hosts. A Communicator
// enqueues collectives over one group of ranks on a Stream, like any other work.
//
// Sums have a fixed order. Element e of the result is x_0[e] + x_1[e] + ... + x_(n-1)[e] over the members in group order,
// accumulated in f32 from left to right and rounded once to the tensor's type. Results are therefore bitwise equal on all
// ranks, in all runs and in all implementations on host memory, for any size.
//
// Goals: streams and errors behave as for all other work; a lost or hanging peer ends all ranks (exit code 5). Non-goals:
// averages (the caller scales), changing groups, point-to-point messages.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/device/error.h"
#include "train/comm/collective.h"
#include "train/comm/mesh.h"
#include "train/trace/exposure.h"

namespace speedrun {

// A range of elements that a member sends or receives in an all_to_all: `count` elements from `begin`, in the input for member
// `member` or in the output from it. Slices between two members are matched in the order in which both list them.
struct Slice {
    int member = 0;
    int64_t begin = 0, count = 0;
};
struct Exchange {
    std::vector<Slice> sends, receives;
};

// One collective as passed to an implementation; the arguments are checked. `count` is in elements: the buffer for all_reduce
// and broadcast, one member's part for the others, 0 for all_to_all.
struct CollectiveCall {
    Collective kind = Collective::barrier;
    void* output = nullptr;
    const void* input = nullptr;  // == output for all_reduce and broadcast
    int64_t count = 0;
    DType dtype = DType::f32;
    int root = 0;                                   // index in the group; broadcast only
    Reduction reduction = Reduction::sum;           // max: all_reduce of f32 only
    std::shared_ptr<const Exchange> exchange = {};  // all_to_all only

    std::string describe() const;  // "reduce_scatter of f32[96] per rank"
};

// Must outlive the work enqueued through it. All members enqueue the same collectives in the same order. One communicator
// serves one stream. Tensors are contiguous, f32 or bf16; wrong sizes throw when enqueuing.
class Communicator {
  public:
    Communicator(std::string name, Group group) : name_(std::move(name)), group_(std::move(group)) {}
    virtual ~Communicator() = default;
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    const std::string& name() const { return name_; }
    const Group& group() const { return group_; }
    int size() const { return group_.size(); }
    int index() const { return group_.index; }

    // values <- sum over the members, or the maximum (f32, not negative). In place, any size.
    void all_reduce(const Tensor& values, Stream& stream, Reduction reduction = Reduction::sum);
    // output [k] <- part `index` of the sum over the members of input [n k]. output may alias that part of input.
    void reduce_scatter(const Tensor& output, const Tensor& input, Stream& stream);
    // output [n k] <- the inputs [k] of all members, in order. input may alias part `index` of output.
    void all_gather(const Tensor& output, const Tensor& input, Stream& stream);
    // Slices of output [any] <- slices of the members' inputs [any], including this member's own. Input and output must not
    // overlap.
    void all_to_all(const Tensor& output, const Tensor& input, std::shared_ptr<const Exchange> exchange,
                    Stream& stream);
    // As above, for an exchange that outlives the work.
    void all_to_all(const Tensor& output, const Tensor& input, const Exchange& exchange, Stream& stream) {
        all_to_all(output, input, std::shared_ptr<const Exchange>(std::shared_ptr<void>(), &exchange),
                   stream);
    }
    // values <- the values of member `root`.
    void broadcast(const Tensor& values, int root, Stream& stream);
    // Work enqueued later on the stream runs after all members have reached the barrier.
    void barrier(Stream& stream);

    // Used by wrapping communicators: enqueues a call with checked arguments.
    void count_and_enqueue(const CollectiveCall& call, Stream& stream);

    // Sets the meter that times later collectives; null: none. The meter must outlive them.
    void time_by(ExposureMeter* meter, ExposureMeter::Kind kind) {
        meter_ = meter;
        timed_as_ = kind;
    }

    // Counters by kind of collective. Calls are counted when enqueued, bytes when sent: exact after the stream is synchronised.
    virtual CollectiveCounts counts() const;
    // Adds the counters of `all` (entries may be null) and stores the sum in `into`, as of the work enqueued on the stream so
    // far. Valid once work enqueued later runs.
    static void count_at(CollectiveCounts& into, std::vector<const Communicator*> all, Stream& stream);

  protected:
    virtual void enqueue(const CollectiveCall& call, Stream& stream) = 0;
    // Returns the bytes that this member sends to others in an all_to_all.
    int64_t sent_bytes(const CollectiveCall& call) const;
    void count_sent(Collective kind, int64_t bytes) { sent_[static_cast<size_t>(kind)] += bytes; }

  private:
    const std::string name_;
    const Group group_;
    ExposureMeter* meter_ = nullptr;
    ExposureMeter::Kind timed_as_ = ExposureMeter::Kind::collective;
    std::array<std::atomic<int64_t>, kNumCollectives> calls_{}, sent_{};
};

struct WorldOptions {
    // Time without progress after which a rank considers its peer lost. Must be positive, else usage error.
    double timeout_s = 60;
};

// All ranks of a run. Host calls are made from one thread, in the same order on all ranks.
class World {
  public:
    virtual ~World() = default;
    virtual int rank() const = 0;
    virtual int size() const = 0;
    virtual int local_rank() const = 0;  // among the ranks of this host
    virtual int local_size() const = 0;

    // Connects the members of each group. Collective over all ranks; each rank passes its own group. Throws, with the names, if
    // the ranks pass different names.
    virtual std::unique_ptr<Communicator> connect(const std::string& name, const Group& group) = 0;
    // Returns the texts of all ranks, by rank.
    virtual std::vector<std::string> all_gather(const std::string& text) = 0;
    // Returns the texts of all ranks on rank 0, and an empty vector on the others. Takes fewer messages than all_gather.
    virtual std::vector<std::string> gather(const std::string& text);
    // Sends the reason to every rank and ends all ranks with this exit code. The first reason is used.
    virtual void abort(ExitCode code, const std::string& reason) = 0;
    // Waits for all ranks; afterwards this rank may exit. Called once, after success.
    virtual void finish() = 0;

    // Reductions over the values of all ranks, in rank order.
    double sum(double value);
    double min(double value);
    double max(double value);
    void barrier() { all_gather({}); }

  private:
    std::vector<double> gather(double value);
};

// Throws on every rank unless all ranks pass the same lines. The message names the first rank and line that differ from rank 0.
void expect_same_on_all_ranks(World& world, const std::string& title, const std::vector<std::string>& lines);

}  // namespace speedrun
