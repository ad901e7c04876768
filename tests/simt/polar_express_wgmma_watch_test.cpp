// Matmuls of Polar Express by wgmma under a watch: no races, each barrier of the epilogue is necessary, and each element is written
// once.
// build: in watch_tests
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <string>

#include "kernels/cuda/ops/polar_express_wgmma.cuh"
#include "tests/simt/race_check.h"
#include "tests/simt/traffic.h"

namespace speedrun::testing {
namespace {

using namespace polar_wgmma;

// All tiles in one block: each stage, and the memory of an epilogue, is used again. Or a block per tile.
enum class Blocks : uint8_t { one, all };

template <class Form, bool kSymmetric, bool kAddend>
struct PolarCase {
    static std::string run(int side, int length, Blocks blocks, simt::Watch& watch) {
        simt::SimtDevice device({.kernels_wait = true, .multiprocessors = 1});
        device.set_watch(&watch);
        const std::unique_ptr<Stream> stream = device.create_stream("test");
        std::vector<Buffer> buffers;
        const auto matrix = [&](int64_t rows, int64_t cols) {
            buffers.emplace_back(device, "test", MemoryCategory::workspace,
                                 rows * cols * size_of(DType::bf16));
            return buffers.back().tensor(DType::bf16, {1, rows, cols});
        };
        const Tensor x = matrix(side, length), square = matrix(side, side);
        const int n = kSymmetric ? side : length, k = kSymmetric ? length : side;
        const Tensor c = matrix(side, n), addend = matrix(side, n);
        const Epilogue<kAddend, kSymmetric> epilogue{
            c.as<Bf16>(), kAddend ? addend.as<Bf16>() : nullptr, int64_t{side} * n, side, n, 1.0f, 1.0f};
        using Tiles = std::conditional_t<kSymmetric, TriangleList, TileList>;
        const auto tiles = [&] {
            if constexpr (kSymmetric)
                return Tiles(side, 1);
            else
                return Tiles(side, n, 1);
        }();
        try {
            launch(polar_product_kernel<Form, Tiles, Epilogue<kAddend, kSymmetric>>,
                   blocks == Blocks::one ? 1 : static_cast<unsigned>(tiles.count), kThreads, kSharedBytes,
                   *stream, map_a<Form>(kSymmetric ? x : square, *stream), map_b<Form>(x, *stream), k, tiles,
                   epilogue);
            stream->synchronize();
        } catch (const Error& error) {
            return error.what();
        }
        return "";
    }
};

using Gram = PolarCase<Form<Bf16, false, true>, true, false>;
using GramWithAddend = PolarCase<Form<Bf16, false, true>, true, true>;
using Update = PolarCase<Form<Bf16, false, false>, false, true>;

TEST(PolarExpressWgmmaWatch, HasNoRaceOrSpareBarrier) {
    std::set<std::string> needed, reached;
    for (const auto run : {&Gram::run, &GramWithAddend::run, &Update::run}) {
        simt::RaceWatch complete;
        ASSERT_EQ(run(136, 200, Blocks::one, complete), "");
        for (const simt::RaceWatch::Barrier& barrier : complete.barriers()) {
            if (barrier.place.find("polar_express_wgmma") == std::string::npos) continue;
            reached.insert(barrier.place);
            if (needed.contains(barrier.place)) continue;
            simt::RaceWatch watch;
            watch.remove(barrier);
            if (!run(136, 200, Blocks::one, watch).empty()) needed.insert(barrier.place);
        }
    }
    EXPECT_EQ(reached.size(), 1u);  // product_wgmma_watch_test.cpp covers product_wgmma.cuh
    EXPECT_EQ(needed, reached);
}

// Whole sectors, also of the mirrored elements. Half of the sector on the diagonal is mirrored in each row.
TEST(PolarExpressWgmmaWatch, WritesEachElementOnce) {
    for (const auto run : {&Gram::run, &GramWithAddend::run, &Update::run}) {
        simt::TrafficWatch watch;
        constexpr int kSide = 256;
        ASSERT_EQ(run(kSide, kSide, Blocks::all, watch), "");
        ASSERT_EQ(watch.by_kernel().size(), 1u);
        const auto& [name, traffic] = *watch.by_kernel().begin();
        const int64_t halves = run == &Update::run ? 0 : kSide;
        EXPECT_EQ(traffic.stores.units, kSide * kSide * size_of(DType::bf16) / 32 + halves) << name;
        EXPECT_EQ(traffic.shared_stores.units, traffic.shared_stores.least) << name;
        EXPECT_EQ(traffic.shared_loads.units, traffic.shared_loads.least) << name;
    }
}

}  // namespace
}  // namespace speedrun::testing
