// Compile gate: no kernel spills or has an array in local memory, on any target GPU of the build.
// build: in cuda_code_tests
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/cuda/ptxas_log.h"
#include "tests/temp_dir.h"

namespace speedrun::testing {
namespace {

TEST(Spills, NoKernelSpills) {
    const auto architectures = read_ptxas_logs(SPEEDRUN_PTXAS_FOLDER);
    EXPECT_FALSE(architectures.empty()) << "no logs of ptxas in " SPEEDRUN_PTXAS_FOLDER;
    for (const auto& [architecture, kernels] : architectures) {
        EXPECT_GT(kernels.size(), 50u) << architecture;
        int64_t spill_bytes = 0, stack_bytes = 0;
        std::pair<int64_t, std::string> most;
        for (const auto& [name, used] : kernels) {
            const std::string where = fmt::format("{} for {}", short_name(name), architecture);
            EXPECT_EQ(used.spill_bytes, 0) << where;
            EXPECT_EQ(used.stack_bytes, 0) << where;
            EXPECT_GT(used.registers, 0) << where << ": ptxas's line was not understood";
            spill_bytes += used.spill_bytes;
            stack_bytes += used.stack_bytes;
            most = std::max(most, {used.registers, short_name(name)});
        }
        fmt::print("{}: {} kernels, up to {} registers ({}), bytes spilled {}, of stack {}\n", architecture,
                   kernels.size(), most.first, most.second, spill_bytes, stack_bytes);
    }
}

// ptxas serializes wgmma if it cannot track the registers, and reports it.
TEST(Wgmma, IsNotSerialized) {
    EXPECT_EQ(ptxas_lines(SPEEDRUN_PTXAS_FOLDER, "instructions are serialized"), std::vector<std::string>());
}

TEST(PtxasLog, IsParsed) {
    const TempDir folder;
    folder.write(
        "a.o.ptxas",
        "ptxas info    : Compiling entry function '_ZN8speedrun5helloIfEEvPT_' for 'sm_90a'\n"
        "ptxas info    : Function properties for _ZN8speedrun5helloIfEEvPT_\n"
        "    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
        "ptxas info    : Used 31 registers, used 1 barriers, 8 bytes cumulative stack size, 64 bytes "
        "smem\n"
        "ptxas warning : Local memory used for function 'other', size of stack frame: 8 bytes\n"
        "ptxas info    : Compiling entry function 'other' for 'sm_80'\n"
        "ptxas info    : Used 99 registers\n"
        "ptxas info    : (C7515) Potential Performance Loss: wgmma.mma_async instructions are serialized due to\n");
    EXPECT_EQ(ptxas_lines(folder.path(), "instructions are serialized").size(), 1u);
    const auto architectures = read_ptxas_logs(folder.path());
    ASSERT_EQ(architectures.size(), 2u);
    const auto& kernels = architectures.at("sm_90a");
    ASSERT_EQ(kernels.size(), 1u);
    const KernelResources expected{31, 8, 16, 64};
    EXPECT_EQ(kernels.begin()->second, expected);
    EXPECT_EQ(short_name(kernels.begin()->first), "hello<float>");
    EXPECT_EQ(architectures.at("sm_80").at("other").registers, 99);
}

}  // namespace
}  // namespace speedrun::testing
