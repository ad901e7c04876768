// Compile gate: the largest launch of each kernel on Hopper must equal the committed table
// in kernels/cuda/tables.txt, whose section sass has the registers. After an intended change: scripts/regenerate.sh
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/cuda/committed_table.h"
#include "tests/cuda/fake_gpu.h"
#include "tests/cuda/ptxas_log.h"
#include "tests/runs/run_fixture.h"
#include "tests/train/small_model.h"

namespace speedrun::testing {
namespace {

std::string version_line() {
    return fmt::format("# CUDA {}.{}, sm_90a", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
}

constexpr int64_t kRegistersOfSm = 65536;  // compute capability 9.0
// Maximum shared memory of a block on an H100, an A100, a 4090 (compute capability 9.0, 8.0, 8.9).
constexpr int64_t kHopper = 227 << 10, kAmpere = 163 << 10, kAda = 99 << 10;

using Launches = std::map<std::string, FakeLaunch>;  // key: mangled name

class Resources : public RunFixture {
  protected:
    ~Resources() override { set_fake_gpu({}); }
    // Launches the kernels of training, on a GPU with this much shared memory: a step of every kind of model.
    // Throws if a kernel needs more and has no alternative.
    Launches launches(int64_t card) {
        set_fake_gpu({.shared_memory = card});
        const auto launch = [this, card](const char* name, std::vector<std::string> settings) {
            settings.insert(settings.end(), {"device=cuda", "cuda.products=hand", "schedule.steps=1",
                                             "batch.sequence_length=256", "batch.microbatch_tokens=1024",
                                             "batch.tokens_per_step=2048", "model.vocab_size=50304"});
            run(config(settings), std::string(name) + std::to_string(card));
        };
        forget_fake_gpu_launches();
        const std::string adamw = R"(optimizers.groups=[{"type":"adamw","params":["*"],"lr":0.003}])";
        for (const char* precision : {"f32", "bf16"}) {
            const std::string type = std::string("precision=") + precision;
            for (const int heads : {1, 2, 8}) {  // head sizes 128, 64 and 16
                const std::string size = "model.layers.each.attention.heads=" + std::to_string(heads),
                                  width = "model.model_dim=128";
                const std::string name = precision + std::to_string(heads);
                launch(("modern" + name).c_str(),
                       together({{type, size, width, kMix, "optimizers.groups.0.normuon=true",
                                  "optimizers.clip=1"},
                                 with_tables({.values = 1, .max_ngram = 3, .ngram_rows = 500})}));
                const char* const norm = heads == 1 ? "1" : heads == 2 ? "2" : "3";
                launch(("gpt2" + name).c_str(), {type, size, width, "model.preset=gpt2", adamw,
                                                 std::string("optimizers.clip_norm=") + norm});
            }
            launch((std::string("odd") + precision).c_str(),
                   {type, "model.model_dim=36", "model.layers.each.attention.heads=2", "model.preset=gpt2",
                    adamw, "optimizers.clip_norm=inf"});
        }
        return fake_gpu_launches();
    }

    // A row per kernel that the runs launch on any of the cards.
    static std::string table_of(const std::map<std::string, KernelResources>& kernels,
                                const std::vector<Launches>& cards) {
        Launches all;
        for (const Launches& card : cards) all.insert(card.begin(), card.end());
        std::set<std::string> rows;
        for (const auto& [name, launch] : all) {
            if (kernels.count(name) == 0) continue;
            std::string row = fmt::format("{:<90} {:>5}", short_name(name), launch.threads);
            for (const Launches& card : cards) {
                const auto on = card.find(name);
                row += on == card.end() ? fmt::format(" {:>7}", "-")
                                        : fmt::format(" {:>7}", on->second.shared_bytes);
            }
            rows.insert(row + "\n");
        }
        std::string text =
            version_line() +
            "\n# The largest launch of each kernel in the runs of resources_test.cpp: threads, and "
            "bytes of dynamic shared memory\n# on an H100, on an A100 and on a 4090 (-: not launched)\n";
        for (const std::string& row : rows) text += row;
        return text;
    }
};

TEST_F(Resources, AreTheCommittedTable) {
    const auto kernels = read_ptxas_logs(SPEEDRUN_PTXAS_FOLDER)["sm_90a"];
    if (kernels.empty()) GTEST_SKIP() << "this build has no code for sm_90a (SPEEDRUN_CUDA_ARCHITECTURES)";
    const Launches launched = launches(kHopper), ampere = launches(kAmpere), ada = launches(kAda);
    for (const auto& [name, launch] : ada) EXPECT_LE(launch.shared_bytes, kAda) << short_name(name);
    for (const auto& [name, launch] : ampere) EXPECT_LE(launch.shared_bytes, kAmpere) << short_name(name);
    int64_t num_launched = 0;
    for (const auto& [name, launch] : launched) {
        const auto used = kernels.find(name);
        if (used == kernels.end()) continue;
        ++num_launched;
        EXPECT_LE(used->second.registers * launch.threads, kRegistersOfSm) << short_name(name);
        EXPECT_LE(launch.shared_bytes, kHopper) << short_name(name);
    }
    EXPECT_GT(num_launched, 60) << "the runs launch too few kernels";
    compare_with_committed("resources", table_of(kernels, {launched, ampere, ada}),
                           "SPEEDRUN_UPDATE_RESOURCES");
}

}  // namespace
}  // namespace speedrun::testing
