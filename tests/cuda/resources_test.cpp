// Compile gate: no kernel spills or keeps an array in local memory on Hopper, and what each uses is the
// committed table kernels/cuda/resources_sm_90a.txt. After a change that is meant:
//   SPEEDRUN_UPDATE_RESOURCES=1 build/release/cuda_host_tests --gtest_filter='Resources.*'
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/cuda/fake_gpu.h"
#include "tests/cuda/ptxas_log.h"
#include "tests/runs/run_fixture.h"

namespace speedrun::testing {
namespace {

const std::string kTable = SPEEDRUN_RESOURCES_FOLDER "/resources_sm_90a.txt";

std::map<std::string, KernelResources> built() {
    return read_ptxas_logs(SPEEDRUN_PTXAS_FOLDER, "sm_90a");
}

std::string version_line() {
    return fmt::format("# CUDA {}.{}, sm_90a", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
}

constexpr int64_t kRegistersOfSm = 65536, kSharedOfBlock = 227 << 10;  // compute capability 9.0

class Resources : public RunFixture {
  protected:
    // Launches what training launches: a step of every kind of model.
    std::map<std::string, FakeLaunch> launches() {
        const auto launch = [this](const char* name, std::vector<std::string> settings) {
            settings.insert(settings.end(), {"device=cuda", "cuda.products=hand", "schedule.steps=1",
                                             "batch.sequence_length=256", "batch.microbatch_tokens=1024",
                                             "batch.tokens_per_step=2048", "model.vocab_size=50304"});
            run(config(settings), name);
        };
        forget_fake_gpu_launches();
        const std::string adamw = R"(optimizers.groups=[{"type":"adamw","params":["*"],"lr":0.003}])";
        for (const char* precision : {"f32", "bf16"}) {
            const std::string type = std::string("precision=") + precision;
            for (const int heads : {1, 2, 8}) {  // of sizes 128, 64 and 16
                const std::string size = "model.num_heads=" + std::to_string(heads),
                                  width = "model.model_dim=128";
                const std::string name = precision + std::to_string(heads);
                launch(("modern" + name).c_str(),
                       {type, size, width, "model.mix_first_embedding=true", "model.value_embeddings=1",
                        "model.max_ngram=3", "model.ngram_rows=500", "optimizers.groups.0.normuon=true",
                        "optimizers.clip=1"});
                const char* const norm = heads == 1 ? "1" : heads == 2 ? "2" : "3";
                launch(("gpt2" + name).c_str(), {type, size, width, "model.preset=gpt2", adamw,
                                                 std::string("optimizers.clip_norm=") + norm});
            }
            launch((std::string("odd") + precision).c_str(),
                   {type, "model.model_dim=36", "model.num_heads=2", "model.preset=gpt2", adamw,
                    "optimizers.clip_norm=inf"});
        }
        return fake_gpu_launches();
    }

    static std::string table_of(const std::map<std::string, KernelResources>& kernels,
                                const std::map<std::string, FakeLaunch>& launches) {
        std::set<std::string> rows;
        for (const auto& [name, used] : kernels) {
            const auto launch = launches.find(name);
            const std::string largest =
                launch == launches.end()
                    ? fmt::format("{:>5} {:>7}", "-", "-")
                    : fmt::format("{:>5} {:>7}", launch->second.threads, launch->second.shared_bytes);
            rows.insert(fmt::format("{:<96} {:>3} {:>6} {}", short_name(name), used.registers,
                                    used.static_shared, largest));
        }
        std::string text =
            version_line() +
            "\n# kernel; registers per thread; bytes of static shared memory; threads and bytes of "
            "dynamic shared memory of the\n# largest launch in the runs of resources_test.cpp, - where "
            "these do not launch it\n";
        for (const std::string& row : rows) text += row + "\n";
        return text;
    }
};

TEST_F(Resources, NoSpillsAndNoLocalMemory) {
    const auto kernels = built();
    if (kernels.empty()) GTEST_SKIP() << "this build has no code for sm_90a (SPEEDRUN_CUDA_ARCHITECTURES)";
    EXPECT_GT(kernels.size(), 50u);
    for (const auto& [name, used] : kernels) {
        EXPECT_EQ(used.spill_bytes, 0) << short_name(name);
        EXPECT_EQ(used.stack_bytes, 0) << short_name(name);
        EXPECT_GT(used.registers, 0) << short_name(name) << ": ptxas's line was not understood";
    }
}

TEST_F(Resources, AreTheCommittedTable) {
    const auto kernels = built();
    if (kernels.empty()) GTEST_SKIP() << "this build has no code for sm_90a (SPEEDRUN_CUDA_ARCHITECTURES)";
    const auto launched = launches();
    int64_t num_launched = 0;
    for (const auto& [name, launch] : launched) {
        const auto used = kernels.find(name);
        if (used == kernels.end()) continue;
        ++num_launched;
        EXPECT_LE(used->second.registers * launch.threads, kRegistersOfSm) << short_name(name);
        EXPECT_LE(launch.shared_bytes, kSharedOfBlock) << short_name(name);
    }
    EXPECT_GT(num_launched, 60) << "the runs no longer launch what they should";
    const std::string table = table_of(kernels, launched);
    if (std::getenv("SPEEDRUN_UPDATE_RESOURCES")) {
        std::ofstream(kTable) << table;
        GTEST_SKIP() << "wrote " << kTable;
    }
    std::ifstream file(kTable);
    ASSERT_TRUE(file) << kTable;
    std::stringstream committed;
    committed << file.rdbuf();
    if (committed.str().rfind(version_line() + "\n", 0) != 0) {
        GTEST_SKIP() << kTable << " was made by another compiler than " << version_line();
    }
    std::istringstream expected(committed.str()), actual(table);
    std::set<std::string> missing, extra;
    for (std::string line; std::getline(expected, line);) missing.insert(line);
    for (std::string line; std::getline(actual, line);)
        if (missing.erase(line) == 0) extra.insert(line);
    std::string difference;
    for (const std::string& line : missing) difference += "- " + line + "\n";
    for (const std::string& line : extra) difference += "+ " + line + "\n";
    EXPECT_EQ(difference, "") << "If that is meant, see the head of resources_test.cpp.";
}

TEST(PtxasLog, IsUnderstood) {
    const std::string folder = ::testing::TempDir() + "ptxas_logs";
    (void)std::system(("mkdir -p " + folder).c_str());
    std::ofstream(folder + "/a.o.ptxas")
        << "ptxas info    : Compiling entry function '_ZN8speedrun5helloIfEEvPT_' for 'sm_90a'\n"
           "ptxas info    : Function properties for _ZN8speedrun5helloIfEEvPT_\n"
           "    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
           "ptxas info    : Used 31 registers, used 1 barriers, 8 bytes cumulative stack size, 64 bytes "
           "smem\n"
           "ptxas info    : Compiling entry function 'other' for 'sm_80'\n"
           "ptxas info    : Used 99 registers\n";
    const auto kernels = read_ptxas_logs(folder, "sm_90a");
    ASSERT_EQ(kernels.size(), 1u);
    const KernelResources expected{31, 8, 16, 64};
    EXPECT_EQ(kernels.begin()->second, expected);
    EXPECT_EQ(short_name(kernels.begin()->first), "hello<float>");
}

}  // namespace
}  // namespace speedrun::testing
