// RowExchange: sums over ranks of the gradients of tables, by the rows that tokens have looked up.
//
// Before a table's gradient is summed every rank tells the others on the host which rows its tokens have touched since the last
// time; the host is ahead of the device, so that this is known before backward is there. Then rows travel to their owners
// (RowOwners), who add them in the order of ranks: the sums are those of a reduce_scatter (or all_reduce) of the whole gradient, to
// which ranks that have not touched a row would add 0.
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
    // For the tables among `collectives` whose rows are exchanged. layout, ranks and runtime must outlive it.
    RowExchange(const std::vector<CollectiveRow>& collectives, const BucketLayout& layout, const Ranks& ranks,
                Runtime& runtime);

    // The tokens of a microbatch that is about to be enqueued look up these rows of p, if ranks exchange them; an id
    // behind its last row is of none that this rank has.
    void see(const Parameter& p, std::span<const int32_t> ids);
    // whole (f32, BucketLayout::padded): of the rows that this rank owns, the sum over the group of what the ranks have there,
    // not rounded; other rows may change. Waits for the other ranks' hosts.
    void sum(Communicator& group, const Bucket& bucket, const Tensor& whole, Stream& stream);

  private:
    // Host memory of a sum, which is free when the copy out of it is done.
    struct Staged {
        HostBuffer memory;
        std::unique_ptr<Event> copied;
    };
    struct Table {
        int parameter;  // its id
        RowOwners owners;
        int index;                   // of this rank among the owners
        std::vector<uint64_t> seen;  // a bit for each row
        std::array<Staged, 2> staged;
        size_t next = 0;  // of these
    };
    // Where ids lie, in int32: rows to send, then the order in which received ones are added (op::SortIds).
    struct Ids {
        Tensor sends, order;
    };
    Ids ids_in(void* memory, const Table& table) const;
    // The rows seen since the last call, ascending.
    static std::vector<int32_t> take_seen(Table& table);
    // By member of the group.
    std::vector<std::vector<int32_t>> tell_all(const std::vector<int32_t>& rows, const Group& group) const;
    // Rows that this rank has for others, into `sends`; and what is sent where. Returns how many.
    static int64_t pack(const Table& table, std::span<const int32_t> rows, Exchange& exchange,
                        std::span<int32_t> sends);
    // What comes, one rank's rows behind the other's, and in which order it is added.
    static void unpack(const Table& table, const std::vector<std::vector<int32_t>>& rows, Exchange& exchange,
                       std::span<int32_t> order);

    const Ranks ranks_;
    Device& device_;
    Ops& ops_;
    std::map<int, Table> tables_;  // by bucket
    Buffer ids_, packed_, sent_,
        received_;  // of one table at a time; sent_: packed in reduce_dtype, empty if that is f32
};

}  // namespace speedrun
