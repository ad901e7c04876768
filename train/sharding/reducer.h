// Reducer: carries out the collectives of a step, which the placements of each bucket ask for.
//   reduce_scatter   of a bucket's gradient into this rank's shard: of each microbatch, then added to the
//   shard
//                    (accumulate: reduce_scatter), or of their sum
//   all_reduce       of the shard over `replicate` and `tensor`, or of the whole bucket where nothing is cut yet
//   all_gather       of the compute copy
//   all_to_all       of matrices to their owners, and of their updates back; or of a table's rows instead of the first two
// A communicator for each set of axes and each stream. All sums; the scale is the loss's.
#pragma once

#include <map>
#include <memory>

#include "train/sharding/gradient_store.h"
#include "train/sharding/parameter_store.h"
#include "train/sharding/row_exchange.h"
#include "train/sharding/step_collectives.h"

namespace speedrun {

// What is kept of gradients, with so many microbatches per step. every_step: does each optimizer
// group step every step?
GradientMemory gradient_memory(const Ranks& ranks, int64_t microbatches, bool every_step);

class Reducer {
  public:
    // Compares the list of collectives with the other ranks', then connects to them: all ranks make theirs at the same
    // time. Alone, nothing is ever enqueued.
    Reducer(const Ranks& ranks, ParameterStore& parameters, GradientStore& gradients, Runtime& runtime);

    const std::vector<CollectiveRow>& collectives() const { return collectives_; }
    // Times the collectives of this reducer, and the waits of compute.
    ExposureMeter& meter() const { return *meter_; }

    // Before a microbatch: the rows that its tokens look up, see RowExchange::see.
    void see_rows(const Parameter& p, std::span<const int32_t> ids) { rows_exchange_.see(p, ids); }
    // After a microbatch (the first or last of its step) has left a bucket's raw gradient: after the last,
    // the gradient that the optimizer reads is the sum over all ranks and microbatches, all of it or this
    // rank's shard.
    void reduce(const Bucket& bucket, bool first, bool last, Stream& stream);
    // values (f32) reduced over all ranks, and over norm_axes(), along which ranks hold shards of the state.
    void reduce_over_all(const Tensor& values, Reduction reduction, Stream& stream);
    AxisSet norm_axes() const { return norm_axes_; }
    void reduce_over_shards(const Tensor& values, Reduction reduction, Stream& stream);
    // The compute copy of the bucket, from all shards.
    void gather(const Bucket& bucket, Stream& stream);
    // whole (Bucket::master, padded) <- the masters of the bucket, from all shards; on the stream of gather.
    void gather_master(const Bucket& bucket, const Tensor& whole, Stream& stream);
    // Slices of a bucket's matrices, among the ranks that share its state; on the optimizer's stream.
    void exchange(const Bucket& bucket, const Tensor& output, const Tensor& input, const Exchange& slices,
                  Stream& stream);

    // What this rank has done so far; exact while nothing is in flight.
    CollectiveCounts counts() const;
    int64_t bytes_sent() const;
    // These counts as of all that has been enqueued so far on the stream, which must be one that it
    // communicates on, once `done`, which is recorded behind it.
    struct Count {
        CollectiveCounts counts{};
        std::unique_ptr<Event> done;
    };
    struct Counts {
        Count reduce, gather, exchange;  // by stream; the last is the optimizer's
    };
    void count(Counts& into, Runtime& runtime) const;

  private:
    // Each on a stream of its own: NCCL runs the collectives of one communicator one after the other.
    enum class Lane : uint8_t { reduce, gather, exchange };
    static Lane lane_of(const StepCollective& collective);

    const CollectiveRow& row_of(const Bucket& bucket) const { return *rows_[static_cast<size_t>(bucket.id)]; }
    void connect(const StepCollective& collective);
    // Null: there are no other ranks.
    Communicator* over(AxisSet axes, Lane lane) const;
    // The communicator of the bucket's collective of this kind; null: it has none.
    Communicator* of(const Bucket& bucket, Collective kind) const;
    // Sums in reduce_dtype: over all members in place, and this rank's shard of whole into shard.
    void sum(Communicator& group, const Tensor& values, Stream& stream);
    void scatter_sum(Communicator& group, const Tensor& shard, const Tensor& whole, Stream& stream);
    void scatter(Communicator& group, const StepCollective& collective, const Bucket& bucket, bool first,
                 Stream& stream);
    // into <- this part of the bucket's gradient, summed by rows and then rounded to reduce_dtype.
    void sum_rows(Communicator& group, const Bucket& bucket, const Tensor& into, const Tensor& part,
                  Stream& stream);
    // What an all_reduce of the bucket's gradient sums: all of it, or this rank's shard.
    Tensor summed_by(const StepCollective& all_reduce, const Bucket& bucket) const;

    const Ranks ranks_;
    ParameterStore& parameters_;
    GradientStore& gradients_;
    Ops& ops_;
    const AxisSet norm_axes_;
    const std::vector<CollectiveRow> collectives_;
    std::vector<const CollectiveRow*> rows_;  // by bucket
    RowExchange rows_exchange_;
    std::unique_ptr<ExposureMeter> meter_;
    Buffer wire_;  // gradients in reduce_dtype, one bucket at a time; empty if that is f32
    std::map<std::pair<Lane, std::string>, std::unique_ptr<Communicator>> communicators_;  // by axes' names
};

}  // namespace speedrun
