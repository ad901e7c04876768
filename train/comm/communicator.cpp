#include "train/comm/communicator.h"

#include <algorithm>
#include <cstring>

#include "data/sha256.h"
#include "train/comm/host_task.h"

namespace speedrun {

namespace {

void check(const Tensor& tensor, const char* argument, Collective kind) {
    if (tensor.dtype != DType::f32 && tensor.dtype != DType::bf16)
        throw_internal("{}: {} is {}, want f32 or bf16", name_of(kind), argument, tensor.describe());
    if (!tensor.contiguous())
        throw_internal("{}: {} {} is not contiguous", name_of(kind), argument, tensor.describe());
}

// `part` [k] and `whole` [n k]; they may overlap only if part is this member's part of whole.
void check_parts(const Tensor& part, const Tensor& whole, const Communicator& member, Collective kind) {
    const int n = member.size();
    check(part, "the part", kind);
    check(whole, "the whole", kind);
    if (part.dtype != whole.dtype || whole.numel() != n * part.numel()) {
        throw_internal("{}: {} and {} do not fit together for {} ranks", name_of(kind), part.describe(),
                       whole.describe(), n);
    }
    const auto* const p = static_cast<const char*>(part.data);
    const auto* const w = static_cast<const char*>(whole.data);
    const bool apart = !p || !w || p + part.bytes() <= w || w + whole.bytes() <= p;  // null: a dry device
    if (!apart && p != w + member.index() * part.bytes())
        throw_internal("{}: input and output overlap, and not as this rank's part of the whole",
                       name_of(kind));
}

void check_slices(const std::vector<Slice>& slices, const Tensor& of, int n, const char* verb) {
    for (const Slice& slice : slices) {
        const bool inside = slice.begin >= 0 && slice.count >= 0 && slice.begin + slice.count <= of.numel();
        if (!inside || slice.member < 0 || slice.member >= n) {
            throw_internal("all_to_all: {} elements {} to {} of {}, member {} of {}", verb, slice.begin,
                           slice.begin + slice.count, of.describe(), slice.member, n);
        }
    }
}

std::vector<std::string> split_lines(const std::string& text) {
    std::vector<std::string> lines;
    for (size_t begin = 0; begin < text.size();) {
        const size_t end = text.find('\n', begin);
        lines.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return lines;
}

}  // namespace

std::string CollectiveCall::describe() const {
    const bool parts = kind != Collective::all_reduce && kind != Collective::broadcast;
    if (kind == Collective::barrier) return name_of(kind);
    if (kind == Collective::all_to_all) {
        return fmt::format("{} of {}, {} slices out and {} in", name_of(kind), name_of(dtype),
                           exchange->sends.size(), exchange->receives.size());
    }
    return fmt::format("{}{} of {}[{}]{}", name_of(kind), reduction == Reduction::max ? " (max)" : "",
                       name_of(dtype), count, parts ? " per rank" : "");
}

void Communicator::all_reduce(const Tensor& values, Stream& stream, Reduction reduction) {
    check(values, "the buffer", Collective::all_reduce);
    if (reduction == Reduction::max && values.dtype != DType::f32)
        throw_internal("all_reduce (max): the buffer is {}, want f32", values.describe());
    count_and_enqueue({.kind = Collective::all_reduce,
                       .output = values.data,
                       .input = values.data,
                       .count = values.numel(),
                       .dtype = values.dtype,
                       .reduction = reduction},
                      stream);
}

void Communicator::reduce_scatter(const Tensor& output, const Tensor& input, Stream& stream) {
    check_parts(output, input, *this, Collective::reduce_scatter);
    count_and_enqueue({Collective::reduce_scatter, output.data, input.data, output.numel(), output.dtype},
                      stream);
}

void Communicator::all_gather(const Tensor& output, const Tensor& input, Stream& stream) {
    check_parts(input, output, *this, Collective::all_gather);
    count_and_enqueue({Collective::all_gather, output.data, input.data, input.numel(), input.dtype}, stream);
}

void Communicator::all_to_all(const Tensor& output, const Tensor& input,
                              std::shared_ptr<const Exchange> exchange, Stream& stream) {
    check(output, "the output", Collective::all_to_all);
    check(input, "the input", Collective::all_to_all);
    const auto* const in = static_cast<const char*>(input.data);
    const auto* const out = static_cast<const char*>(output.data);
    const bool apart = !in || !out || in + input.bytes() <= out || out + output.bytes() <= in;
    if (input.dtype != output.dtype || !apart) {
        throw_internal("all_to_all: {} to {}: want one type, no overlap", input.describe(),
                       output.describe());
    }
    check_slices(exchange->sends, input, size(), "sends");
    check_slices(exchange->receives, output, size(), "receives");
    count_and_enqueue({.kind = Collective::all_to_all,
                       .output = output.data,
                       .input = input.data,
                       .dtype = input.dtype,
                       .exchange = std::move(exchange)},
                      stream);
}

void Communicator::broadcast(const Tensor& values, int root, Stream& stream) {
    check(values, "the buffer", Collective::broadcast);
    if (root < 0 || root >= size())
        throw_internal("broadcast: root {} is not one of {} members", root, size());
    count_and_enqueue({Collective::broadcast, values.data, values.data, values.numel(), values.dtype, root},
                      stream);
}

void Communicator::barrier(Stream& stream) {
    count_and_enqueue({}, stream);
}

void Communicator::count_and_enqueue(const CollectiveCall& call, Stream& stream) {
    ++calls_[static_cast<size_t>(call.kind)];
    if (!meter_) return enqueue(call, stream);
    meter_->time(timed_as_, stream, [&] { enqueue(call, stream); });
}

int64_t Communicator::sent_bytes(const CollectiveCall& call) const {
    int64_t elements = 0;
    for (const Slice& slice : call.exchange->sends)
        if (slice.member != index()) elements += slice.count;
    return elements * size_of(call.dtype);
}

CollectiveCounts Communicator::counts() const {
    CollectiveCounts counts;
    for (size_t i = 0; i < counts.size(); ++i) counts[i] = {calls_[i].load(), sent_[i].load()};
    return counts;
}

void Communicator::count_at(CollectiveCounts& into, std::vector<const Communicator*> all, Stream& stream) {
    enqueue_on_host(stream, "count", [&into, all = std::move(all)] {
        into = {};
        for (const Communicator* communicator : all)
            if (communicator) into = into + communicator->counts();
    });
}

std::vector<double> World::gather(double value) {
    std::string text(sizeof value, '\0');
    std::memcpy(text.data(), &value, sizeof value);
    std::vector<double> values;
    for (const std::string& one : all_gather(text)) {
        values.push_back(0);
        std::memcpy(&values.back(), one.data(), sizeof value);
    }
    return values;
}

std::vector<std::string> World::gather(const std::string& text) {
    std::vector<std::string> texts = all_gather(text);
    if (rank() != 0) texts.clear();
    return texts;
}

double World::sum(double value) {
    double total = 0;
    for (const double one : gather(value)) total += one;
    return total;
}

double World::min(double value) {
    const std::vector<double> values = gather(value);
    return *std::min_element(values.begin(), values.end());
}

double World::max(double value) {
    const std::vector<double> values = gather(value);
    return *std::max_element(values.begin(), values.end());
}

void expect_same_on_all_ranks(World& world, const std::string& title, const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) text += line + '\n';
    Sha256 sha256;
    sha256.update(text.data(), text.size());
    const std::vector<std::string> hashes = world.all_gather(sha256.hex());
    const auto different = std::find_if(hashes.begin(), hashes.end(),
                                        [&](const std::string& hash) { return hash != hashes[0]; });
    if (different == hashes.end()) return;
    const auto rank = static_cast<size_t>(different - hashes.begin()),
               own = static_cast<size_t>(world.rank());
    // All ranks have the same hashes, so each rank can tell whether its text is needed.
    const std::vector<std::string> texts = world.all_gather(own == 0 || own == rank ? text : "");
    const std::vector<std::string> first = split_lines(texts[0]), other = split_lines(texts[rank]);
    size_t at = 0;
    while (at < std::min(first.size(), other.size()) && first[at] == other[at]) ++at;
    const auto line = [at](const std::vector<std::string>& all) {
        return at < all.size() ? all[at] : "nothing more";
    };
    throw_usage(
        "{}: rank {} differs from rank 0 at line {}: '{}' instead of '{}'; all ranks need the same "
        "config, data and binary",
        title, rank, at + 1, line(other), line(first));
}

}  // namespace speedrun
