#include "train/sharding/row_exchange.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <string>

namespace speedrun {

namespace {

constexpr int64_t kBits = 64;

int64_t received(const RowOwners& owners, int index) {
    return std::max<int64_t>(owners.max_received(index), 1);
}

}  // namespace

RowExchange::RowExchange(const std::vector<BucketCollectives>& collectives, const BucketLayout& layout,
                         const Ranks& ranks, Runtime& runtime)
    : ranks_(ranks), device_(runtime.device()), ops_(runtime.ops()) {
    int64_t max_ids = 0, max_packed = 0, max_received = 0;  // ids; the others in elements
    for (const BucketCollectives& row : collectives) {
        for (const StepCollective& c : row.collectives) {
            if (!c.rows) continue;
            const Bucket& bucket = layout[row.bucket];
            const Group group = ranks.mesh().group(ranks.rank(), c.axes);
            const bool all_own_all = bucket.num_shards == 1;
            Table table{.parameter = bucket.first().id,
                        .owners = RowOwners(bucket, all_own_all, group.size()),
                        .index = group.index,
                        .touched = std::vector<uint64_t>(
                            static_cast<size_t>((bucket.first().shape[0] + kBits - 1) / kBits)),
                        .staged = {}};
            const int64_t in = received(table.owners, table.index), out = table.owners.max_packed();
            for (Staged& staged : table.staged)
                staged = {HostBuffer(device_, (out + 2 * in) * size_of(DType::i32)), device_.create_event()};
            max_ids = std::max(max_ids, out + 2 * in);
            max_packed = std::max(max_packed, out * table.owners.columns());
            max_received = std::max(max_received, in * table.owners.columns());
            tables_.emplace(bucket.id, std::move(table));
        }
    }
    if (tables_.empty()) return;
    const auto buffer = [&](const char* name, int64_t elements, DType dtype) {
        return Buffer(device_, name, MemoryCategory::workspace, elements * size_of(dtype));
    };
    const DType reduce = ranks.sharing().reduce_dtype;
    ids_ = buffer("numbers of rows to exchange", max_ids, DType::i32);
    packed_ = buffer("rows to send", max_packed, DType::f32);
    if (reduce != DType::f32) sent_ = buffer("rows to send, rounded", max_packed, reduce);
    received_ = buffer("rows received", max_received, reduce);
}

void RowExchange::mark(const Parameter& p, std::span<const int32_t> ids) {
    for (auto& [bucket, table] : tables_) {
        if (table.parameter != p.id) continue;
        for (const int32_t id : ids) {
            if (id < 0 || id > table.owners.rows())
                throw_data("{}: row {} is outside the table of {} rows", p.name, id, table.owners.rows());
            if (id < table.owners.rows())
                table.touched[static_cast<size_t>(id / kBits)] |= uint64_t{1} << (id % kBits);
        }
    }
}

std::vector<int32_t> RowExchange::take_marked(Table& table) {
    std::vector<int32_t> rows;
    for (size_t word = 0; word < table.touched.size(); ++word) {
        for (uint64_t bits = table.touched[word]; bits != 0; bits &= bits - 1)
            rows.push_back(static_cast<int32_t>(static_cast<int64_t>(word) * kBits + std::countr_zero(bits)));
        table.touched[word] = 0;
    }
    return rows;
}

std::vector<std::vector<int32_t>> RowExchange::gather_rows(const std::vector<int32_t>& rows,
                                                           const Group& group) const {
    std::string text(rows.size() * sizeof(int32_t), '\0');
    if (!rows.empty()) std::memcpy(text.data(), rows.data(), text.size());
    const std::vector<std::string> texts = ranks_.world()->all_gather(text);
    std::vector<std::vector<int32_t>> all;
    for (const int rank : group.ranks) {
        const std::string& other = texts[static_cast<size_t>(rank)];
        all.emplace_back(other.size() / sizeof(int32_t));
        if (!other.empty()) std::memcpy(all.back().data(), other.data(), other.size());
    }
    return all;
}

RowExchange::Ids RowExchange::ids_in(void* memory, const Table& table) const {
    const int64_t out = table.owners.max_packed(), in = received(table.owners, table.index);
    auto* const ids = static_cast<int32_t*>(memory);
    return {Tensor(ids, DType::i32, {out}), Tensor(ids + out, DType::i32, {2, in})};
}

int64_t RowExchange::pack(const Table& table, std::span<const int32_t> rows, Exchange& exchange,
                          std::span<int32_t> sends) {
    const int64_t columns = table.owners.columns();
    int64_t packed = 0;
    for (int member = 0; member < table.owners.num_ranks(); ++member) {
        const std::span<const int32_t> of_member = rows_in(table.owners.owned_by(member), rows);
        const auto count = static_cast<int64_t>(of_member.size());
        const int64_t begin = table.owners.all_own_all() ? 0 : packed;
        if (begin + count > static_cast<int64_t>(sends.size()))
            throw_internal("{} rows to send, {} at most were expected", begin + count, sends.size());
        std::copy(of_member.begin(), of_member.end(), sends.begin() + begin);
        packed = begin + count;
        if (count > 0) exchange.sends.push_back({member, begin * columns, count * columns});
    }
    return packed;
}

// Stable counting sort, rank order within a row. Unused tail entries map to no row.
void RowExchange::unpack(const Table& table, const std::vector<std::vector<int32_t>>& rows,
                         Exchange& exchange, std::span<int32_t> order) {
    const Range own = table.owners.owned_by(table.index);
    const int64_t columns = table.owners.columns();
    std::vector<int32_t> places(static_cast<size_t>(own.count) + 1);
    int64_t at = 0;
    for (size_t member = 0; member < rows.size(); ++member) {
        const std::span<const int32_t> mine = rows_in(own, rows[member]);
        for (const int32_t row : mine) ++places[static_cast<size_t>(row - own.begin)];
        const auto count = static_cast<int64_t>(mine.size());
        if (count > 0) exchange.receives.push_back({static_cast<int>(member), at * columns, count * columns});
        at += count;
    }
    const auto capacity = static_cast<int64_t>(order.size() / 2);
    if (at > capacity) throw_internal("{} rows to receive, {} at most were expected", at, capacity);
    std::exclusive_scan(places.begin(), places.end(), places.begin(), 0);
    std::fill(order.begin(), order.begin() + capacity, static_cast<int32_t>(own.count));
    std::fill(order.begin() + capacity, order.end(), 0);
    int32_t arrived = 0;
    for (const std::vector<int32_t>& of_member : rows) {
        for (const int32_t row : rows_in(own, of_member)) {
            const auto local = static_cast<int32_t>(row - own.begin);
            const int32_t place = places[static_cast<size_t>(local)]++;
            order[static_cast<size_t>(place)] = local;
            order[static_cast<size_t>(capacity + place)] = arrived++;
        }
    }
}

void RowExchange::sum(Communicator& group, const Bucket& bucket, const Tensor& whole, Stream& stream) {
    Table& table = tables_.at(bucket.id);
    const RowOwners& owners = table.owners;
    const std::vector<std::vector<int32_t>> rows = gather_rows(take_marked(table), group.group());
    const auto exchange = std::make_shared<Exchange>();
    Staged& staged = table.staged[table.next++ % table.staged.size()];
    staged.copied->synchronize();
    const Ids host = ids_in(staged.memory.as<int32_t>(), table), ids = ids_in(ids_.data(), table);
    const auto values = [](const Tensor& t) {
        return std::span(t.as<int32_t>(), static_cast<size_t>(t.numel()));
    };
    const int64_t count = pack(table, rows[static_cast<size_t>(table.index)], *exchange, values(host.sends));
    unpack(table, rows, *exchange, values(host.order));
    device_.copy(ids.sends.data, host.sends.data, staged.memory.bytes(), stream);
    stream.record(*staged.copied);

    const int64_t columns = owners.columns();
    const DType reduce = ranks_.sharing().reduce_dtype;
    const Tensor gradient(whole.data, DType::f32, {owners.rows(), columns});
    const Tensor packed = packed_.tensor(DType::f32, {owners.max_packed(), columns});
    Tensor sent = packed;
    if (count > 0)
        ops_.embedding_forward({.out = packed.row_slice(0, count),
                                .index = Tensor(ids.sends.data, DType::i32, {count}),
                                .table = gradient},
                               stream);
    if (sent_.data()) {
        sent = sent_.tensor(reduce, {owners.max_packed(), columns});
        if (count > 0) ops_.cast({.out = sent.row_slice(0, count), .in = packed.row_slice(0, count)}, stream);
    }
    const int64_t capacity = received(owners, table.index);
    const Tensor incoming = received_.tensor(reduce, {capacity, columns});
    group.all_to_all(incoming, sent, exchange, stream);
    const Range own = owners.owned_by(table.index);
    if (own.count == 0) return;
    ops_.embedding_backward({.dtable = gradient.row_slice(own.begin, own.count),
                             .order = ids.order,
                             .dout = incoming,
                             .accumulate = false,
                             .others = true},
                            stream);
}

}  // namespace speedrun
