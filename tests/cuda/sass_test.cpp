// Compile gate: the machine code of every kernel for Hopper respects the limits below, and its registers, shared memory
// and hot loop equal the committed table in kernels/cuda/tables.txt. Without NVIDIA's disassembler only ptxas's figures
// are compared. After an intended change: scripts/regenerate.sh
// build: in cuda_code_tests
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "tests/cuda/committed_table.h"
#include "tests/cuda/disassembler.h"
#include "tests/cuda/ptxas_log.h"
#include "tests/cuda/sass.h"

namespace speedrun::testing {
namespace {

// The one branch: whether to fetch another tile, uniform over the block. A loop that diverges for each masked
// element takes several times as long.
constexpr int64_t kDivergentInTensorLoop = 1;
// With wgmma two more, uniform over a warp: whether a tile is whole, and whether some of it is hidden.
constexpr int64_t kDivergentInWgmmaLoop = 3;

// Number of instructions up to and including the wait for earlier kernels; 0: no such wait.
int64_t behind_wait(const SassListing& kernel) {
    const auto& code = kernel.instructions;
    const auto wait =
        std::find_if(code.begin(), code.end(), [](const auto& i) { return i.opcode == "ACQBULK"; });
    return wait == code.end() ? 0 : wait - code.begin() + 1;
}

using Resources = std::map<std::string, KernelResources>;  // figures of ptxas by mangled name
constexpr size_t kColumnsOfPtxas = 83 + 5 + 7;  // first columns of a row: name, registers, shared memory

// A row per kernel. Without a listing the columns of the disassembler are missing.
std::string table_of(const Resources& resources, const std::map<std::string, SassListing>& kernels) {
    std::set<std::string> rows;
    for (const auto& [name, used] : resources) {
        std::string row =
            fmt::format("{:<83} {:>4} {:>6}", short_name(name), used.registers, used.static_shared);
        if (const auto listing = kernels.find(name); listing != kernels.end()) {
            const SassCounts all = count(listing->second);
            const SassLoop loop = hot_loop(listing->second);
            row += fmt::format(" {:>5} {:>4} {:>3} {:>5} {:>5} {:>4} {:>4} {:>4} {:>4} {:>4}",
                               all.instructions, all.divergent, all.local, loop.depth,
                               loop.counts.instructions, loop.counts.tensor, loop.counts.fused,
                               loop.counts.shared, loop.counts.global, loop.counts.divergent);
        }
        rows.insert(row + "\n");
    }
    std::string text =
        "# nvcc " SPEEDRUN_NVCC_VERSION
        ", sm_90a\n"
        "# Registers per thread and bytes of static shared memory (ptxas), instructions of the kernel and of its hot "
        "loop\n# (definition and counts: tests/cuda/sass.h).\n"
        "# BSSY: divergent branches; LDL: accesses to local memory, such as spills; MMA: tensor "
        "instructions; FFMA: fused\n"
        "# multiply-adds; shrd, glob: accesses to shared and to global memory.\n";
    text += fmt::format("# {:<81} {:<25}  {}\n", "", "ptxas         kernel", "hot loop: depth (0: none)");
    text += fmt::format("# {:<81} {:>4} {:>6} {:>5} {:>4} {:>3} {:>5} {:>5} {:>4} {:>4} {:>4} {:>4} {:>4}\n",
                        "", "regs", "shared", "all", "BSSY", "LDL", "depth", "all", "MMA", "FFMA", "shrd",
                        "glob", "BSSY");
    for (const std::string& row : rows) text += row;
    return text;
}

TEST(Sass, IsTheCommittedTable) {
    const char* const renew = "SPEEDRUN_UPDATE_SASS";
    const std::string tools = find_disassembler();
    const Resources resources = read_ptxas_logs(SPEEDRUN_PTXAS_FOLDER)["sm_90a"];
    if (tools.empty() && !resources.empty() && !std::getenv(renew))
        compare_with_committed("sass", table_of(resources, {}), renew, kColumnsOfPtxas);
    if (tools.empty())
        GTEST_SKIP() << "cuobjdump and nvdisasm are not installed: pip install nvidia-cuda-cuobjdump "
                        "nvidia-cuda-nvdisasm, and SPEEDRUN_DISASSEMBLER=<folder of the two>";
    const auto kernels = disassemble(tools, SPEEDRUN_CUDA_LIBRARY, "sm_90a");
    if (kernels.empty()) GTEST_SKIP() << "this build has no code for sm_90a (SPEEDRUN_CUDA_ARCHITECTURES)";
    EXPECT_GT(kernels.size(), 50u);
    for (const auto& [name, listing] : kernels) {
        EXPECT_GT(count(listing).instructions, 0) << short_name(name) << ": the listing was not understood";
        EXPECT_EQ(count(listing).local, 0)
            << short_name(name) << " spills, or indexes an array in local memory";
        const int64_t waits = behind_wait(listing);
        EXPECT_GT(waits, 0) << short_name(name) << " does not begin with wait_for_kernels_before()";
        const SassListing before{{listing.instructions.begin(), listing.instructions.begin() + waits}, {}};
        EXPECT_EQ(count(before).global, 0)
            << short_name(name) << " touches global memory before it has waited";
        if (const SassLoop loop = hot_loop(listing); loop.counts.tensor > 0) {
            const bool wgmma = name.find("wgmma") != std::string::npos;
            EXPECT_LE(loop.counts.divergent, wgmma ? kDivergentInWgmmaLoop : kDivergentInTensorLoop)
                << short_name(name);
        }
    }
    compare_with_committed("sass", table_of(resources, kernels), renew);
}

// A loop over rows that contains a loop over columns and a branch between. After it, a loop closed by a jump
// back from the end of the section, where compilers put rarely executed code, and a subroutine.
constexpr const char* kListing = R"(
	.section	.text.first,"ax",@progbits
.text.first:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/                   BSSY B0, `(.L_x_2) ;
        /*0030*/              @!P0 BRA `(.L_x_1) ;
        /*0040*/                   STS.U16 [R3], R4 ;
.L_x_1:
        /*0050*/                   BSYNC B0 ;
.L_x_2:
        /*0060*/                   LDSM.16.M88.4 R8, [R3] ;
        /*0070*/                   HMMA.16816.F32.BF16 R8, R4, R8, R8 ;
        /*0080*/                   LDGSTS.E.BYPASS.128 [R3], [R2.64] ;
        /*0090*/              @P1  BRA `(.L_x_2) ;
        /*00a0*/                   NOP ;
        /*00b0*/                   HFMA2.MMA R3, -RZ, RZ, 0, 0 ;
        /*00c0*/                   BRA.U UP0, `(.L_x_0) ;
        /*00d0*/                   STL [R1], R4 ;
.L_x_3:
        /*00e0*/                   FFMA R3, R3, R3, R3 ;
        /*00f0*/                   BRA.DIV UR4, `(.L_x_5) ;
.L_x_4:
        /*0100*/                   CALL.REL.NOINC `($first$divide) ;
        /*0110*/               @P2 BRA `(.L_x_3) ;
        /*0120*/                   EXIT ;
.L_x_5:
        /*0130*/                   SHFL.BFLY PT, R5, R10, 0x10, 0x1f ;
        /*0140*/                   BRA `(.L_x_4) ;
$first$divide:
        /*0150*/                   FFMA R3, R3, R3, R3 ;
        /*0160*/                   RET.REL.NODEC R4 `(first) ;
.L_x_6:
        /*0170*/                   BRA `(.L_x_6);
//--------------------- .nv.shared.first --------------------------
	.section	.nv.shared.first,"aw",@nobits
	.align	16
//--------------------- .text.second --------------------------
	.section	.text.second,"ax",@progbits
.text.second:
        /*0000*/                   EXIT ;
)";

class SassReader : public ::testing::Test {
  protected:
    std::map<std::string, SassListing> kernels() {
        std::istringstream listing(kListing);
        return read_sass(listing);
    }
};

TEST_F(SassReader, FindsKernelsAndCountsTheirInstructions) {
    const auto read = kernels();
    ASSERT_EQ(read.size(), 2u);
    const SassCounts first{
        .instructions = 23, .tensor = 1, .fused = 2, .shared = 3, .global = 2, .divergent = 1, .local = 1};
    EXPECT_EQ(count(read.at("first")), first);
    EXPECT_EQ(count(read.at("second")), SassCounts{.instructions = 1});
    EXPECT_EQ(hot_loop(read.at("second")).depth, 0);
}

TEST_F(SassReader, FindsLoopsAndTheirDepths) {
    const auto loops = loops_of(kernels().at("first"));
    ASSERT_EQ(loops.size(), 3u);
    EXPECT_EQ(loops[0].header, 1);
    EXPECT_EQ(loops[0].depth, 1);
    const SassCounts rows{.instructions = 11, .tensor = 1, .shared = 3, .global = 2, .divergent = 1};
    EXPECT_EQ(loops[0].counts, rows);
    const SassCounts rows_alone{.instructions = 7, .shared = 1, .global = 1, .divergent = 1};
    EXPECT_EQ(loops[0].own, rows_alone);
    EXPECT_EQ(loops[1].header, 6);
    EXPECT_EQ(loops[1].depth, 2);
    EXPECT_EQ(loops[2].header, 14);
    EXPECT_EQ(loops[2].depth, 1);
    const SassCounts last{.instructions = 6, .fused = 1};  // .L_x_3 to EXIT, and .L_x_5; no called code
    EXPECT_EQ(loops[2].counts, last);
}

TEST_F(SassReader, PrefersTensorInstructionsThenFusedThenDepth) {
    SassListing kernel = kernels().at("first");
    EXPECT_EQ(hot_loop(kernel).header, 6);
    const SassCounts columns{.instructions = 4, .tensor = 1, .shared = 2, .global = 1};
    EXPECT_EQ(hot_loop(kernel).counts, columns);
    kernel.instructions[7].opcode = "IADD3";
    EXPECT_EQ(hot_loop(kernel).header, 14);
    kernel.instructions[14].opcode = "IADD3";
    EXPECT_EQ(hot_loop(kernel).header, 6);
}

}  // namespace
}  // namespace speedrun::testing
