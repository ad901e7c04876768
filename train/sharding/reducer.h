// Reducer: runs the collectives of a step, which follow from the placements of each bucket:
//   reduce_scatter   a bucket's gradient to this rank's shard: of each microbatch, then added to the shard
//                    (accumulate: reduce_scatter), or of the sum over microbatches;
//   all_reduce       the shard over `replicate` and `tensor`, or the whole bucket if nothing is cut yet;
//   all_gather       the compute copy;
//   all_to_all       matrices to their owners and updates back; or rows of a table instead of the first two.
// Each set of axes and each stream has its own communicator. Reductions are sums; the loss contains the scale.
#pragma once

#include <map>
#include <memory>

#include "train/sharding/gradient_store.h"
#include "train/sharding/parameter_store.h"
#include "train/sharding/row_exchange.h"
#include "train/sharding/step_collectives.h"

namespace speedrun {

// Returns the gradient memory for this number of microbatches per step. every_step: each group is updated in each step.
GradientMemory gradient_memory(const Ranks& ranks, int64_t microbatches, bool every_step);

class Reducer {
  public:
    // Compares the list of collectives with the other ranks', then connects. Collective. A single rank enqueues
    // nothing.
    Reducer(const Ranks& ranks, ParameterStore& parameters, GradientStore& gradients, Runtime& runtime);

    const std::vector<CollectiveRow>& collectives() const { return collectives_; }
    // Number of communicators of these collectives, also of ranks without a world.
    int64_t num_communicators() const;
    // Times this reducer's collectives and the waits of compute.
    ExposureMeter& meter() const { return *meter_; }

    // Call before a microbatch with the rows that its tokens look up, see RowExchange::see.
    void see_rows(const Parameter& p, std::span<const int32_t> ids) { rows_exchange_.see(p, ids); }
    // Call after a microbatch has written a bucket's raw gradient; first, last: of its step. After the last one, the
    // optimizer's input gradient is the sum over all ranks and microbatches, whole or this rank's shard.
    void reduce(const Bucket& bucket, bool first, bool last, Stream& stream);
    // Reduces f32 values over all ranks, and over norm_axes(), along which ranks hold shards of the state.
    void reduce_over_all(const Tensor& values, Reduction reduction, Stream& stream);
    AxisSet norm_axes() const { return norm_axes_; }
    void reduce_over_shards(const Tensor& values, Reduction reduction, Stream& stream);
    // Gathers the compute copy of the bucket from all shards.
    void gather(const Bucket& bucket, Stream& stream);
    // Gathers the masters of a bucket (Bucket::master, padded) into `whole`, on the stream of gather().
    void gather_master(const Bucket& bucket, const Tensor& whole, Stream& stream);
    // Exchanges slices of a bucket's matrices among the ranks that share its state, on the optimizer stream.
    void exchange(const Bucket& bucket, const Tensor& output, const Tensor& input, const Exchange& slices,
                  Stream& stream);

    // Totals of this rank so far; exact while nothing is in flight.
    CollectiveCounts counts() const;
    int64_t bytes_sent() const;
    // Snapshots the counters after all work enqueued on the stream, which must be one of its communicators'. Valid when
    // `done`, recorded after that work, completes.
    struct Count {
        CollectiveCounts counts{};
        std::unique_ptr<Event> done;
    };
    struct Counts {
        Count reduce, gather, exchange;  // per stream; exchange: the optimizer stream
    };
    void count(Counts& into, Runtime& runtime) const;

  private:
    // Streams of their own, because NCCL runs the collectives of one communicator in order.
    enum class Lane : uint8_t { reduce, gather, exchange };
    static Lane lane_of(const StepCollective& collective);

    const CollectiveRow& row_of(const Bucket& bucket) const { return *rows_[static_cast<size_t>(bucket.id)]; }
    void connect(const StepCollective& collective);
    // Returns null if there are no other ranks.
    Communicator* over(AxisSet axes, Lane lane) const;
    // Returns the communicator of the bucket's collective of this kind, or null.
    Communicator* of(const Bucket& bucket, Collective kind) const;
    // Sums in reduce_dtype: over all members in place, or this rank's shard of `whole` into `shard`.
    void sum(Communicator& group, const Tensor& values, Stream& stream);
    void scatter_sum(Communicator& group, const Tensor& shard, const Tensor& whole, Stream& stream);
    void scatter(Communicator& group, const StepCollective& collective, const Bucket& bucket, bool first,
                 Stream& stream);
    // into <- this part of the bucket's gradient, summed by rows and rounded to reduce_dtype.
    void sum_rows(Communicator& group, const Bucket& bucket, const Tensor& into, const Tensor& part,
                  Stream& stream);
    // Returns the operand of an all_reduce of the bucket's gradient: the whole, or this rank's shard.
    Tensor summed_by(const StepCollective& all_reduce, const Bucket& bucket) const;

    const Ranks ranks_;
    ParameterStore& parameters_;
    GradientStore& gradients_;
    Ops& ops_;
    const AxisSet norm_axes_;
    const std::vector<CollectiveRow> collectives_;
    std::vector<const CollectiveRow*> rows_;  // index: bucket
    RowExchange rows_exchange_;
    std::unique_ptr<ExposureMeter> meter_;
    Buffer wire_;  // gradients in reduce_dtype, one bucket at a time; empty if that is f32
    std::map<std::pair<Lane, std::string>, std::unique_ptr<Communicator>> communicators_;  // key: lane, axes
};

}  // namespace speedrun
