// Attention by wgmma with heads of two widths under a watch: no races, each call that orders accesses is necessary, and the traffic
// and matmuls follow the width of each operand.
// build: in watch_tests
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <string>

#include "kernels/cuda/vendor/attention_library.h"
#include "tests/simt/race_check.h"
#include "tests/simt/simt_device.h"
#include "tests/simt/traffic.h"

namespace speedrun::testing {
namespace {

struct AttentionProblem {
    HeadWidths widths;
    int64_t length, num_heads, window;
    int64_t document;  // tokens per document; 0: one document
};

// Memory of one problem, and its calls.
class WatchedAttention {
  public:
    WatchedAttention(const AttentionProblem& problem, simt::Watch& watch)
        : device_({.kernels_wait = true, .multiprocessors = 1}), library_(make_wgmma_attention(device_)) {
        device_.set_watch(&watch);
        stream_ = device_.create_stream("test");
        const auto [widths, length, heads, window, document] = problem;
        const int64_t width = heads * widths.head_dim, value_width = heads * widths.value_dim;
        const Tensor first_key = memory(DType::i32, {length});
        for (int64_t i = 0; i < length; ++i)
            first_key.as<int32_t>()[i] = static_cast<int32_t>(document > 0 ? i / document * document : 0);
        const Tensor q = input(length, width), k = input(length, width), v = input(length, value_width);
        const AttentionOptions options{.sequence_length = length,
                                       .num_heads = heads,
                                       .head_dim = widths.head_dim,
                                       .window = window,
                                       .scale = 1.0f / std::sqrt(static_cast<float>(widths.head_dim))};
        forward_ = {.o = memory(DType::bf16, {length, value_width}),
                    .lse = memory(DType::f32, {heads, length}),
                    .q = q,
                    .k = k,
                    .v = v,
                    .first_key = first_key,
                    .options = options};
        backward_ = {.dq = memory(DType::bf16, {length, width}),
                     .dk = memory(DType::bf16, {length, width}),
                     .dv = memory(DType::bf16, {length, value_width}),
                     .dout = input(length, value_width),
                     .o = forward_.o,
                     .lse = forward_.lse,
                     .q = q,
                     .k = k,
                     .v = v,
                     .first_key = first_key,
                     .options = options};
    }

    // Runs forward and backward. Returns the message of an error; empty: none.
    std::string run() {
        try {
            if (!library_->forward(forward_, *stream_) || !library_->backward(backward_, *stream_))
                return "refused";
            stream_->synchronize();
        } catch (const Error& error) {
            return error.what();
        }
        return "";
    }

  private:
    Tensor memory(DType dtype, std::initializer_list<int64_t> shape) {
        int64_t count = 1;
        for (const int64_t size : shape) count *= size;
        buffers_.emplace_back(device_, "test", MemoryCategory::workspace, count * size_of(dtype));
        return buffers_.back().tensor(dtype, shape);
    }
    Tensor input(int64_t rows, int64_t cols) {
        const Tensor x = memory(DType::bf16, {rows, cols});
        for (int64_t i = 0; i < x.numel(); ++i)
            x.as<Bf16>()[i] = Bf16(static_cast<float>(static_cast<int>(generator_() % 9) - 4) / 4);
        return x;
    }

    std::mt19937 generator_{1};
    simt::SimtDevice device_;
    std::vector<Buffer> buffers_;
    std::unique_ptr<AttentionLibrary> library_;
    std::unique_ptr<Stream> stream_;
    op::AttentionForward forward_;
    op::AttentionBackward backward_;
};

std::vector<HeadWidths> unequal_widths() {
    std::vector<HeadWidths> all;
    for (const HeadWidths& widths : kWgmmaHeadWidths)
        if (widths.head_dim != widths.value_dim) all.push_back(widths);
    return all;
}

// One block with two heads of three tiles of queries or keys: each stage and each owned tile is used again.
TEST(AttentionWgmmaWatch, HasNoRaceOrSpareBarrier) {
    const auto said = [](simt::RaceWatch& watch) {
        return WatchedAttention({{64, 128}, 300, 2, 0, 0}, watch).run();
    };
    simt::RaceWatch complete;
    ASSERT_EQ(said(complete), "");
    std::set<std::string> needed, reached;
    for (const simt::RaceWatch::Barrier& barrier : complete.barriers()) {
        if (barrier.place.find("attention_wgmma") == std::string::npos) continue;
        reached.insert(barrier.place);
        if (needed.contains(barrier.place)) continue;
        simt::RaceWatch watch;
        watch.remove(barrier);
        if (!said(watch).empty()) needed.insert(barrier.place);
    }
    EXPECT_GE(reached.size(), 27u);
    EXPECT_EQ(needed, reached);
}

TEST(AttentionWgmmaWatch, HasNoRaceWithDocumentsAndWindows) {
    for (const HeadWidths& widths : unequal_widths()) {
        for (const int64_t window : {0, 70}) {
            for (const int64_t document : {1, 50, 200}) {
                simt::RaceWatch watch;
                EXPECT_EQ(WatchedAttention({widths, 333, 1, window, document}, watch).run(), "")
                    << widths.head_dim << "/" << widths.value_dim << " window " << window << " documents of "
                    << document;
            }
        }
    }
}

// One tile of queries and keys: a matmul of 16 x 8 x 16 per fragment, by the width of its operands; whole sectors and wavefronts.
TEST(AttentionWgmmaWatch, MovesAndMultipliesEachWidth) {
    for (const HeadWidths& widths : unequal_widths()) {
        SCOPED_TRACE(fmt::format("{}/{}", widths.head_dim, widths.value_dim));
        constexpr int64_t kRows = 128, kHeads = 2, kSector = 32;
        simt::TrafficWatch watch;
        ASSERT_EQ(WatchedAttention({widths, kRows, kHeads, 0, 0}, watch).run(), "");
        const auto padded = [](int64_t width) { return (width + 63) / 64 * 64; };
        const auto [d, dv] = widths;
        // Pairs of rows and columns of all tiles, in fragments.
        const int64_t pairs = kHeads * (kRows / 16) * (kRows / 8);
        const auto scores = [&](int64_t width) { return pairs * width / 16; };
        const auto sums = [&](int64_t width) { return pairs * padded(width) / 16; };
        const auto sectors = [&](int64_t width) { return kHeads * kRows * width * 2 / kSector; };
        const int64_t numbers = kHeads * kRows * 4 / kSector;  // an f32 per query
        int kernels = 0;
        for (const auto& [name, traffic] : watch.by_kernel()) {
            SCOPED_TRACE(name);
            const bool keys = name.find("_keys_") != std::string::npos,
                       queries = name.find("_queries_") != std::string::npos,
                       forward = name.find("forward_") != std::string::npos;
            if (!keys && !queries && !forward) continue;
            ++kernels;
            EXPECT_EQ(traffic.mma, keys      ? scores(d) + scores(dv) + sums(d) + sums(dv)
                                   : queries ? scores(d) + scores(dv) + sums(d)
                                             : scores(d) + sums(dv));
            EXPECT_EQ(traffic.stores.units, keys      ? sectors(d) + sectors(dv)
                                            : queries ? sectors(d) + 2 * numbers
                                                      : sectors(dv) + numbers);
            // A store of 32 columns reads half of the banks, twice.
            const int64_t halves = keys || queries ? kHeads * kRows * (d % 64) * 2 / 128 : 0;
            EXPECT_EQ(traffic.shared_loads.units, traffic.shared_loads.least + halves);
            EXPECT_EQ(traffic.shared_stores.units, traffic.shared_stores.least);
        }
        EXPECT_EQ(kernels, 3);
    }
}

}  // namespace
}  // namespace speedrun::testing
