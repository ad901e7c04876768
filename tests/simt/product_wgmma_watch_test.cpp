// Matmuls by wgmma under a watch: no races, each call that orders accesses is necessary, and the traffic of each epilogue.
// build: in watch_tests
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/simt/product_wgmma_problem.h"
#include "tests/simt/race_check.h"
#include "tests/simt/traffic.h"

namespace speedrun::testing {
namespace {

using Problem = ProductProblem;
using Layout = ProductLayout;

enum class Kind { plain, addend, squares, quantized, through_squares };
struct Case {
    Layout layout;
    Kind kind;
};
constexpr Case kCases[] = {{Layout::nt, Kind::addend},          {Layout::e4m3, Kind::addend},
                           {Layout::nn, Kind::through_squares}, {Layout::tn, Kind::plain},
                           {Layout::nt, Kind::squares},         {Layout::e4m3, Kind::quantized}};

void complete(Problem& p, ProductSizes sizes, Kind kind) {
    const auto [m, n, k] = sizes;
    if (kind == Kind::addend) p.product.addend = p.integers(DType::bf16, m, n, 3);
    if (kind == Kind::through_squares) p.product.squares = p.integers(DType::bf16, m, n, 4);
    p.product.relu_squared = kind == Kind::squares || kind == Kind::quantized;
    if (kind != Kind::quantized) return;
    p.product.quantized = p.matrix(DType::e4m3, m, n);
    p.product.scale = p.number(2.0f);
    p.product.amax = p.number(0.0f);
}

// One block with two tiles, and more steps than stages: each stage, and the memory of an epilogue, is used again.
std::string said(const Case& c, simt::RaceWatch& watch) {
    const ProductSizes sizes{8, 264, c.layout == Layout::e4m3 ? 640 : 320};
    Problem p(sizes, c.layout, {.kernels_wait = true, .multiprocessors = 1}, &watch);
    complete(p, sizes, c.kind);
    try {
        return p.run() ? "" : "refused";
    } catch (const Error& error) {
        return error.what();
    }
}

TEST(ProductWgmmaWatch, HasNoRaceOrSpareBarrier) {
    std::string list;
    std::set<std::string> needed, reached;
    for (const Case& c : kCases) {
        SCOPED_TRACE(name_of(c.layout));
        simt::RaceWatch complete_watch;
        ASSERT_EQ(said(c, complete_watch), "");
        for (const simt::RaceWatch::Barrier& barrier : complete_watch.barriers()) {
            reached.insert(barrier.place);
            if (needed.contains(barrier.place)) continue;
            simt::RaceWatch watch;
            watch.remove(barrier);
            const std::string found = said(c, watch);
            if (!found.empty()) needed.insert(barrier.place);
            list += fmt::format("  {:<34} {}\n", barrier.place, found.substr(0, found.find('\n')));
        }
    }
    for (const std::string& place : reached)
        EXPECT_TRUE(needed.contains(place)) << "no case shows that the call at " << place << " is necessary";
    EXPECT_GE(reached.size(), 9u);
    fmt::print("calls removed one by one, and the report:\n{}", list);
}

// Device memory: each operand is read once and each result written once, so that the value before relu² is never written. Stores
// and shared memory move no more units than their bytes fill.
TEST(ProductWgmmaWatch, MovesEachOperandOnce) {
    for (const Case& c : kCases) {
        SCOPED_TRACE(name_of(c.layout));
        simt::TrafficWatch watch;
        const ProductSizes sizes{128, 256, 128};
        Problem p(sizes, c.layout, {.kernels_wait = true, .multiprocessors = 1}, &watch);
        complete(p, sizes, c.kind);
        ASSERT_TRUE(p.run());
        ASSERT_EQ(watch.by_kernel().size(), 1u);
        const auto& [name, traffic] = *watch.by_kernel().begin();
        const WgmmaProduct& x = p.product;
        const int64_t written = x.c.bytes() + x.quantized.bytes();
        const int64_t read = x.a.bytes() + x.b.bytes() + x.addend.bytes() + x.squares.bytes();
        constexpr int64_t kSector = 32, kNumbers = 4;  // at most four f32, a sector each, read or written
        EXPECT_GE(traffic.distinct_bytes, read + written);
        EXPECT_LE(traffic.distinct_bytes, read + written + kNumbers * kSector);
        EXPECT_EQ(traffic.stores.units, written / kSector);
        EXPECT_EQ(traffic.stores.units, traffic.stores.least);
        EXPECT_EQ(traffic.shared_stores.units, traffic.shared_stores.least);
        EXPECT_EQ(traffic.shared_loads.units, traffic.shared_loads.least);
        EXPECT_EQ(traffic.mma, sizes.m / 16 * sizes.n / 8 * sizes.k / (c.layout == Layout::e4m3 ? 32 : 16));
        fmt::print("{:<4} {:>7} bytes read, {:>7} written; {} and {} wavefronts of shared memory\n",
                   name_of(c.layout), read, traffic.stores.units * kSector, traffic.shared_loads.units,
                   traffic.shared_stores.units);
    }
}

}  // namespace
}  // namespace speedrun::testing
