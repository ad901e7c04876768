// Attention by wgmma, with the interface of a library: attention.cu runs all other calls. Formulas, FLOPs and
// bytes are as in attention.cu; results differ by rounding.
//
// One block of 384 threads per multiprocessor, of which one warp copies for two warpgroups. Heads have D columns in q and k, Dv in v and
// o. Tiles of 96 columns are padded to 128. Shared memory of a block in KiB, without barriers:
//   kernel            rows owned  other rows  stages  64/64  64/128  others  tiles
//   forward                  128         128       2     96     144     192  queries, output, keys and values twice
//   backward queries         128          64       3     96     136     192  queries, dout, output, 3·(keys, values)
//   backward keys            128          64       3   98.3   154.3   194.3  keys, values, output, 3·(queries, dout, statistics)
// A third stage of forward would fit for 64/128. The copies of a stage already have the time of a whole tile, as for 128/128.
#include "kernels/cuda/ops/attention_wgmma_forward.cuh"
#include "kernels/cuda/ops/attention_wgmma_keys.cuh"
#include "kernels/cuda/ops/attention_wgmma_queries.cuh"

#include <set>

#include "kernels/cuda/device/stream_memory.h"
#include "kernels/cuda/ops/attention_launch.cuh"

namespace speedrun {

namespace attention_wgmma_cu {
namespace {

using namespace attention;

// Half of the L2 cache of an H100.
constexpr int64_t kSectionBytes = 25 << 20;

ItemOrder order_of(const Problem<false>& p, int64_t heads) {
    const int64_t bytes_of_head =
        int64_t{p.num_sequences} * p.length * (p.head_dim + p.value_dim) * int64_t{sizeof(Bf16)};
    return {.heads = static_cast<int>(heads),
            .section = static_cast<int>(std::clamp<int64_t>(kSectionBytes / bytes_of_head, 1, heads)),
            .count = static_cast<int>(tiles_of(p.length) * p.num_sequences * heads)};
}
dim3 grid_of(const ItemOrder& order, Stream& stream) {
    return dim3(static_cast<unsigned>(std::min<int64_t>(order.count, multiprocessors(stream))));
}

// Returns the map of q, k, v or dout, whose heads a block reads in boxes of `rows` rows.
TensorMap map_heads(const Tensor& x, const Problem<false>& p, int rows, const AttentionOptions& options,
                    Stream& stream) {
    return map_rows(x, p.length, rows, stream, static_cast<int>(x.cols() / options.num_heads));
}

// Calls body with these widths, which have kernels, as template arguments.
template <size_t kIndex = 0, class Body>
void with_widths(HeadWidths widths, Body&& body) {
    if constexpr (kIndex < kWgmmaHeadWidths.size()) {
        constexpr HeadWidths kWidths = kWgmmaHeadWidths[kIndex];
        if (widths != kWidths) return with_widths<kIndex + 1>(widths, body);
        body.template operator()<static_cast<int>(kWidths.head_dim), static_cast<int>(kWidths.value_dim)>();
    }
}

// heads: to skip in rstd, which has columns for the queries first.
Rotary rotary_of(const RotaryOfInputs& a, int64_t heads) {
    return {.normalize = a.normalize,
            .rotate = a.rotate,
            .rstd = a.normalize ? a.rstd.as<float>() + heads : nullptr,
            .rstd_stride = static_cast<int>(a.rstd.row_stride),
            .cos = a.rotate ? a.cos.as<float>() : nullptr,
            .sin = a.rotate ? a.sin.as<float>() : nullptr,
            .position = a.rotate ? a.position.as<int32_t>() : nullptr,
            .positions_of_row = static_cast<int>(a.position.rank == 2 ? a.position.cols() : 1),
            .positions = static_cast<unsigned>(a.rotate ? a.cos.rows() : 0)};
}

class WgmmaAttention final : public AttentionLibrary {
  public:
    explicit WgmmaAttention(Device& device) : workspaces_(device, "attention") {}

    bool forward(const op::AttentionForward& a, Stream& stream) override {
        const HeadWidths widths = widths_of(a.shape());
        if (!serves({a.o, a.q, a.k, a.v}, widths, a.place, a.options)) return false;
        const Problem<false> p{sizes_of(a)};
        with_widths(widths, [&]<int D, int Dv>() {
            using L = ForwardLayout<D, Dv>;
            const ItemOrder order = order_of(p, a.options.num_heads);
            const auto map = [&](const Tensor& x) { return map_heads(x, p, L::kKeys, a.options, stream); };
            launch(attention_forward_wgmma_kernel<D, Dv>, grid_of(order, stream), kPersistentThreads,
                   L::kBytes, stream, view<Bf16>(a.o), a.lse.as<float>(), map(a.q), map(a.k), map(a.v), p,
                   order);
        });
        return true;
    }

    bool backward(const op::AttentionBackward& a, Stream& stream) override {
        const HeadWidths widths = widths_of(a.shape());
        if (!serves({a.dq, a.dk, a.dv, a.dout, a.o, a.q, a.k, a.v}, widths, a.place, a.options)) return false;
        if (!suits(a.rotary, a.options)) return false;
        const Problem<false> p{sizes_of(a)};
        const int64_t heads = a.options.num_heads, tiles = int64_t{tiles_of(p.length)} * p.num_sequences;
        const Statistics scratch = scratch_of(heads, tiles, stream);
        launch(attention_visible_kernel, dim3(static_cast<unsigned>(tiles)), 256, 3 * kReduceSharedBytes,
               stream, scratch, p);
        with_widths(widths, [&]<int D, int Dv>() {
            const ItemOrder order = order_of(p, heads);
            const auto map = [&](const Tensor& x, int rows) {
                return map_heads(x, p, rows, a.options, stream);
            };
            using Queries = QueriesLayout<D, Dv>;
            launch(attention_backward_queries_wgmma_kernel<D, Dv>, grid_of(order, stream), kPersistentThreads,
                   Queries::kBytes, stream, view<Bf16>(a.dq), scratch, view<const Bf16>(a.o),
                   a.lse.as<float>(), map(a.q, Queries::kQueries), map(a.dout, Queries::kQueries),
                   map(a.k, Queries::kKeys), map(a.v, Queries::kKeys), rotary_of(a.rotary, 0), p, order);
            using Keys = KeysLayout<D, Dv>;
            launch(attention_backward_keys_wgmma_kernel<D, Dv>, grid_of(order, stream), kPersistentThreads,
                   Keys::kBytes, stream, view<Bf16>(a.dk), view<Bf16>(a.dv), scratch,
                   map(a.q, Keys::kQueries), map(a.dout, Keys::kQueries), map(a.k, Keys::kKeys),
                   map(a.v, Keys::kKeys), rotary_of(a.rotary, heads), p, order);
        });
        return true;
    }

    bool fuses_rotary(HeadWidths widths, DType compute_dtype) const override {
        return wgmma_fuses_rotary(widths, compute_dtype);
    }

    std::vector<std::string> notes() const override { return {notes_.begin(), notes_.end()}; }

  private:
    Statistics scratch_of(int64_t heads, int64_t tiles, Stream& stream) {
        const int64_t parts = tiles * (kWgmmaOwned / Statistics::kPart),
                      floats = heads * parts * Statistics::kFloats, ints = parts * Statistics::kInts;
        auto* const memory = static_cast<float*>(workspaces_.at(stream, (floats + ints + tiles) * 4).data());
        int* const first = reinterpret_cast<int*>(memory + floats);
        return {memory, first, first + ints};
    }

    bool serves(std::initializer_list<Tensor> operands, HeadWidths widths, const Tensor& place,
                const AttentionOptions& options) {
        const char* const why = place.present()      ? "queries at given places"
                                : options.scale <= 0 ? "a scale that is not positive"
                                : !has_wgmma_kernels(widths) || !suit_tensor_cores(operands)
                                    ? "another type than bf16, or heads of other widths than 64/64, 64/128, "
                                      "96/96, 96/128 and 128/128 (q and k / v and o)"
                                : items_of(operands, options) > kMaxItems ? "2^30 tiles of queries and more"
                                : !all_fit(operands, options)
                                    ? "sequences of 2^31 numbers and more in the rows of all heads"
                                    : nullptr;
        if (why)
            notes_.insert(std::string("attention by wgmma does not serve ") + why + ": our other kernels do");
        return !why;
    }

    // Offsets into the tables, and into a sequence's rows of rstd and position, are 32-bit numbers.
    static bool suits(const RotaryOfInputs& rotary, const AttentionOptions& options) {
        constexpr int64_t kEnd = int64_t{1} << 31;
        const int64_t positions = rotary.position.rank == 2 ? rotary.position.cols() : 1;
        return aligned_rows(kVectorWidth<float>, {rotary.cos, rotary.sin}) && rotary.cos.numel() < kEnd &&
               options.sequence_length * std::max(rotary.rstd.row_stride, positions) < kEnd;
    }

    // Indices of items, plus the blocks of a grid, are 32-bit numbers.
    static constexpr int64_t kMaxItems = (int64_t{1} << 30) - 1;
    static int64_t items_of(std::initializer_list<Tensor> operands, const AttentionOptions& options) {
        return operands.begin()->rows() / options.sequence_length *
               int64_t{tiles_of(static_cast<int>(options.sequence_length))} * options.num_heads;
    }

    static bool all_fit(std::initializer_list<Tensor> operands, const AttentionOptions& options) {
        return std::all_of(operands.begin(), operands.end(), [&](const Tensor& x) {
            return options.sequence_length * x.row_stride < int64_t{1} << 31;
        });
    }

    StreamMemory workspaces_;
    std::set<std::string> notes_;
};

}  // namespace
}  // namespace attention_wgmma_cu

std::unique_ptr<AttentionLibrary> make_wgmma_attention(Device& device) {
    return std::make_unique<attention_wgmma_cu::WgmmaAttention>(device);
}

}  // namespace speedrun
