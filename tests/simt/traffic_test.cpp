// Requests counted as in hardware: kernels with known counts, and the traffic of all kernels against the
// committed table in kernels/cuda/tables.txt. After an intended change: scripts/regenerate.sh
// build: in watch_tests
#include "tests/simt/traffic.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <sstream>

#include "kernels/cuda/blocks/launch.h"
#include "tests/cuda/committed_table.h"
#include "tests/simt/simt_device.h"
#include "tests/simt/watched_cases.h"

namespace speedrun {
namespace {

using simt::Moved;
using simt::Traffic;

// ---- known counts, of one warp

__global__ void strided_kernel(float* out, const float* in, int stride) {
    out[threadIdx.x] = in[static_cast<int>(threadIdx.x) * stride];
}
__global__ void spread_kernel(uint4* out, const uint4* in) {
    const auto lane = static_cast<int>(threadIdx.x);
    store_word(out + lane / 4 * 8 + lane % 4, load_word(in + lane));
}
template <class Word>
__global__ void word_kernel(Word* out, const Word* in, int shared_stride) {
    const auto words = shared_memory<Word>(0);
    const int at = static_cast<int>(threadIdx.x) * shared_stride;
    store_word(&words[at], load_word(in + threadIdx.x));
    store_word(out + threadIdx.x, load_word(&words[at]));
}

Traffic traffic_of(const std::function<void(float* out, const float* in, Stream&)>& launcher) {
    simt::SimtDevice device({});
    simt::TrafficWatch watch;
    device.set_watch(&watch);
    const auto stream = device.create_stream("watched");
    const Buffer out(device, "test", MemoryCategory::workspace, 1 << 16),
        in(device, "test", MemoryCategory::workspace, 1 << 16);
    launcher(static_cast<float*>(out.tensor(DType::f32, {1 << 14}).data),
             static_cast<const float*>(in.tensor(DType::f32, {1 << 14}).data), *stream);
    stream->synchronize();
    EXPECT_EQ(watch.by_kernel().size(), 1u);
    return watch.by_kernel().begin()->second;
}

void expect_moved(const Moved& moved, int64_t units, int64_t least) {
    EXPECT_EQ(moved.units, units);
    EXPECT_EQ(moved.least, least);
}

TEST(Traffic, SectorsOfOneWarp) {
    const std::map<int, int64_t> sectors = {{0, 1}, {1, 4}, {2, 8}, {8, 32}, {100, 32}};
    for (const auto& [stride, expected] : sectors) {
        SCOPED_TRACE(stride);
        const Traffic t = traffic_of([stride = stride](float* out, const float* in, Stream& stream) {
            launch(strided_kernel, 1, 32, 0, stream, out, in, stride);
        });
        expect_moved(t.loads, expected, stride == 0 ? 1 : 4);
        expect_moved(t.stores, 4, 4);
        expect_moved(t.stored_lines, 1, 1);
        EXPECT_EQ(t.distinct_bytes, (expected + 4) * 32);
    }
}

// Eight lines of 64 bytes each.
TEST(Traffic, LinesOfOneWarp) {
    const Traffic t = traffic_of([](float* out, const float* in, Stream& stream) {
        launch(spread_kernel, 1, 32, 0, stream, reinterpret_cast<uint4*>(out),
               reinterpret_cast<const uint4*>(in));
    });
    expect_moved(t.stored_lines, 8, 4);
}

TEST(Traffic, WavefrontsOfOneWarp) {
    // Words of 4 bytes: a stride of s maps gcd(s, 32) lanes to a bank. Words of 8 and 16 bytes: at least 2
    // and 4 passes.
    for (const auto& [stride, expected] : std::map<int, int64_t>{{0, 1}, {1, 1}, {2, 2}, {33, 1}, {32, 32}}) {
        SCOPED_TRACE(stride);
        const Traffic t = traffic_of([stride = stride](float* out, const float* in, Stream& stream) {
            launch(word_kernel<float>, 1, 32, 8192, stream, out, in, stride);
        });
        expect_moved(t.shared_loads, expected, 1);
        expect_moved(t.shared_stores, expected, 1);
    }
    for (const auto& [stride, expected] : std::map<int, int64_t>{{0, 1}, {1, 4}, {2, 8}, {5, 4}, {8, 32}}) {
        SCOPED_TRACE(stride);
        const Traffic t = traffic_of([stride = stride](float* out, const float* in, Stream& stream) {
            launch(word_kernel<uint4>, 1, 32, 8192, stream, reinterpret_cast<uint4*>(out),
                   reinterpret_cast<const uint4*>(in), stride);
        });
        expect_moved(t.shared_loads, expected, stride == 0 ? 1 : 4);
        expect_moved(t.loads, 16, 16);
    }
}

// ---- the kernels

constexpr double kLimit = 1.25;  // ratio to the minimum allowed without a reason

std::string version_line() {
    return fmt::format("# g++ {}\n", __GNUC__);
}

// Returns the reasons of the committed table by kernel.
std::map<std::string, std::string> committed_reasons() {
    std::map<std::string, std::string> reasons;
    std::istringstream lines(testing::committed_tables()["traffic"]);
    for (std::string line; std::getline(lines, line);) {
        if (line.rfind("! ", 0) != 0) continue;
        const size_t colon = line.find(": ");
        reasons[line.substr(2, colon - 2)] = line.substr(colon + 2);
    }
    return reasons;
}

// Every operation in bf16; in f32 the ones with separate f32 kernels.
std::vector<simt::WatchedCase> selected_cases() {
    std::vector<simt::WatchedCase> selected;
    for (const DType compute_dtype : {DType::bf16, DType::f32}) {
        for (const simt::WatchedCase& w :
             simt::watched(bench::all_cases(simt::watched_shapes()), compute_dtype)) {
            const std::string& name = w.c.name;
            if (name == "optimizer.polar_express.attention") continue;  // 15 more matmuls like the mlp's
            const bool own_f32 =
                name.rfind("product.recipe.out", 0) == 0 ||
                (name.rfind("attention.recipe", 0) == 0 && name.find(".rotary.") == std::string::npos);
            if (compute_dtype == DType::bf16 || own_f32) selected.push_back(w);
        }
    }
    return selected;
}

// A warp's stores of FP8 gradients and of their transpose fill whole lines. The rest of a row: its loss, its targets, and the last
// chunks, which padding shares.
TEST(TrafficLines, Fp8GradientsAreStoredInWholeLines) {
    const bench::Shapes shapes = simt::watched_shapes();
    constexpr int64_t kLine = 128, kTargets = 3, kOthers = 1 + kTargets + 2;
    const int64_t rows = shapes.recipe.tokens, whole = 2 * rows * shapes.recipe.padded_vocab / kLine;
    int found = 0;
    for (const simt::WatchedCase& w : simt::watched(bench::all_cases(shapes), DType::bf16)) {
        if (w.c.name != "pointwise.recipe.cross_entropy_3_targets_fp8") continue;
        simt::TrafficWatch watch;
        run_watched(w, watch, {.shared_memory = simt::kSharedMemoryOfH100});
        for (const auto& [kernel, t] : watch.by_kernel()) {
            if (kernel.find("E5m2") == std::string::npos) continue;
            ++found;
            EXPECT_GE(t.stored_lines.units, whole) << kernel;
            EXPECT_LE(t.stored_lines.units, whole + kOthers * rows) << kernel;
        }
    }
    EXPECT_EQ(found, 1);
}

std::string column(const Moved& moved) {
    return moved.units == 0 ? fmt::format("{:>8} {:>5}", "-", "-")
                            : fmt::format("{:>8} {:>5.2f}", moved.units, moved.ratio());
}

TEST(TrafficTable, MatchesCommittedTable) {
    const std::map<std::string, std::string> reasons = committed_reasons();
    std::vector<std::string> rows;
    std::set<std::string> above;
    for (const simt::WatchedCase& w : selected_cases()) {
        simt::TrafficWatch watch;
        const int64_t least = run_watched(w, watch, {.shared_memory = simt::kSharedMemoryOfH100});
        int64_t moved = 0;
        for (const auto& [kernel, t] : watch.by_kernel()) moved += t.distinct_bytes;
        const std::string title = w.title();
        rows.push_back(fmt::format("{:<52} {:>10} bytes, {:.2f} of the least", title, moved,
                                   static_cast<double>(moved) / static_cast<double>(least)));
        for (const auto& [kernel, t] : watch.by_kernel()) {
            rows.push_back(fmt::format("  {:<50} {} {} {} {} {:>7} {:>6} {:>3}", kernel, column(t.loads),
                                       column(t.stores), column(t.shared_loads), column(t.shared_stores),
                                       t.mma, t.barriers, t.launches));
            for (const Moved* m : {&t.loads, &t.stores, &t.shared_loads, &t.shared_stores}) {
                const std::string base = kernel.substr(0, kernel.find('<'));
                if (m->ratio() <= kLimit || !above.insert(base).second) continue;
                EXPECT_TRUE(reasons.contains(base))
                    << title << ": " << kernel << " moves " << m->ratio() << " times the least; "
                    << testing::kTables << " has no line '! " << base << ": reason' for it";
            }
        }
    }
    for (const auto& [kernel, reason] : reasons)
        EXPECT_TRUE(above.contains(kernel)) << kernel << " is now below " << kLimit << ": remove its reason";
    std::ostringstream table;
    table << version_line()
          << "# Memory traffic of each kernel on an H100, counted in the host executor at the shapes of "
             "tests/simt/watched_cases.cpp.\n"
             "# An operation: bytes of device memory accessed, each sector once per launch, relative to each "
             "input read once\n"
             "# and each output written once. A kernel: sectors of 32 bytes loaded and stored, wavefronts of "
             "shared memory\n"
             "# loaded and stored, each with its ratio to the minimum for the requested bytes; matmuls of a "
             "warp (mma),\n"
             "# barriers of a block, launches. Reasons for ratios above "
          << kLimit << ":\n";
    for (const auto& [kernel, reason] : reasons) table << "! " << kernel << ": " << reason << "\n";
    for (const std::string& row : rows) table << row << "\n";
    testing::compare_with_committed("traffic", table.str(), "SPEEDRUN_UPDATE_TRAFFIC");
}

}  // namespace
}  // namespace speedrun
