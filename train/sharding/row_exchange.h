// RowExchange: sums gradients of tables over ranks, restricted to rows that tokens have looked up.
//
// Before the sum, the hosts all-gather the rows that each rank's tokens touched since the last sum. Hosts run ahead of
// the device, so the rows are known before backward reaches the table. Then rows are sent to their owners (RowOwners),
// which add them in rank order. The result equals a reduce_scatter (or all_reduce) of the whole gradient, in which
// ranks that have not touched a row would add 0.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "kernels/runtime/runtime.h"
#include "train/sharding/ranks.h"
#include "train/sharding/row_owners.h"
#include "train/sharding/step_collectives.h"

namespace speedrun {

class RowExchange {
  public:
    // Handles the tables in `collectives` with exchanged rows. layout, ranks and runtime must outlive it.
    RowExchange(const std::vector<BucketCollectives>& collectives, const BucketLayout& layout,
                const Ranks& ranks, Runtime& runtime);

    // Records that the next microbatch looks up these rows of p, if its rows are exchanged. An id equal to the number
    // of rows refers to no row of this rank.
    void mark(const Parameter& p, std::span<const int32_t> ids);
    // Sums the rows of `whole` (f32, BucketLayout::padded) that this rank owns over the group, without rounding; other
    // rows may change. Waits for the other ranks' hosts.
    void sum(Communicator& group, const Bucket& bucket, const Tensor& whole, Stream& stream);

  private:
    // Host memory of a sum, free when the copy from it is done.
    struct Staged {
        HostBuffer memory;
        std::unique_ptr<Event> copied;
    };
    struct Table {
        int parameter;  // id
        RowOwners owners;
        int index;                      // index of this rank among the owners
        std::vector<uint64_t> touched;  // one bit per row
        std::array<Staged, 2> staged;
        size_t next = 0;  // next of `staged`
    };
    // int32 ids: rows to send, and the order in which received rows are added (op::SortIds).
    struct Ids {
        Tensor sends, order;
    };
    Ids ids_in(void* memory, const Table& table) const;
    // Returns the rows seen since the last call, ascending.
    static std::vector<int32_t> take_marked(Table& table);
    // All-gathers the rows; index: member of the group.
    std::vector<std::vector<int32_t>> gather_rows(const std::vector<int32_t>& rows, const Group& group) const;
    // Writes the ids of rows to send to `sends`, and the slices per owner to `exchange`. Returns the number of rows.
    static int64_t pack(const Table& table, std::span<const int32_t> rows, Exchange& exchange,
                        std::span<int32_t> sends);
    // Writes the slices to receive to `exchange`, consecutive by sender, and the order of the sums of their rows to
    // `order`.
    static void unpack(const Table& table, const std::vector<std::vector<int32_t>>& rows, Exchange& exchange,
                       std::span<int32_t> order);

    const Ranks ranks_;
    Device& device_;
    Ops& ops_;
    std::map<int, Table> tables_;  // key: bucket
    Buffer ids_, packed_, sent_,
        received_;  // one table at a time; sent_: packed_ in reduce_dtype, empty if that is f32
};

}  // namespace speedrun
