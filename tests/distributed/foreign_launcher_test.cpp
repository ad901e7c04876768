#include "train/comm/foreign_launcher.h"
#include "tests/errors.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "kernels/device/error.h"

namespace speedrun {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<LauncherClaim> claim_of(const Variables& variables) {
    return find_claim([&](const char* name) {
        const auto found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
    });
}

TEST(ForeignLauncherTest, RecognisesEveryLauncher) {
    const std::vector<std::pair<Variables, std::string>> cases = {
        {{{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "0"}}, "OMPI_COMM_WORLD_SIZE=4"},
        {{{"PMI_SIZE", "4"}, {"PMI_RANK", "0"}}, "PMI_SIZE=4"},
        {{{"MV2_COMM_WORLD_SIZE", "2"}}, "MV2_COMM_WORLD_SIZE=2"},
        {{{"MPI_LOCALNRANKS", "2"}}, "MPI_LOCALNRANKS=2"},
        {{{"JSM_NAMESPACE_SIZE", "6"}}, "JSM_NAMESPACE_SIZE=6"},
        {{{"PMIX_RANK", "1"}}, "PMIX_RANK=1"},
        {{{"PALS_RANKID", "3"}}, "PALS_RANKID=3"},
        {{{"ALPS_APP_PE", "3"}}, "ALPS_APP_PE=3"},
        {{{"WORLD_SIZE", "4"}, {"RANK", "0"}}, "WORLD_SIZE=4"},
        {{{"WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}}, "WORLD_SIZE=4"},
        {{{"SLURM_STEP_ID", "0"},
          {"SLURM_STEP_NUM_TASKS", "8"},
          {"SLURM_NTASKS", "4"},
          {"SLURM_PROCID", "0"}},
         "SLURM_STEP_NUM_TASKS=8"},
        {{{"SLURM_STEP_NUM_TASKS", "8"}}, "SLURM_STEP_NUM_TASKS=8"},
        {{{"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}, "SLURM_NTASKS=4"},
        {{{"SLURM_STEPID", "2"}, {"SLURM_NPROCS", "4"}}, "SLURM_NPROCS=4"},
        {{{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "1"}}, "SLURM_NTASKS=4"},
        {{{"SLURM_PROCID", "1"}}, "SLURM_PROCID=1"},
    };
    for (const auto& [variables, variable] : cases) {
        const auto claim = claim_of(variables);
        ASSERT_TRUE(claim) << variable;
        EXPECT_EQ(claim->variable, variable);
        EXPECT_TRUE(claim->is_started) << variable;
        EXPECT_GT(claim->processes, 1) << variable;
    }
}

TEST(ForeignLauncherTest, IgnoresSingleProcess) {
    const std::vector<Variables> cases = {
        {},
        {{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}},
        {{"PMI_SIZE", "1"}, {"PMI_RANK", "0"}},
        {{"PMIX_RANK", "0"}},
        {{"WORLD_SIZE", "1"}, {"RANK", "0"}},
        {{"WORLD_SIZE", "4"}},  // a common name without a rank
        {{"RANK", "3"}},
        // mpirun -np 1 on a node of a Slurm job, and an interactive Slurm shell.
        {{"OMPI_COMM_WORLD_SIZE", "1"},
         {"SLURM_STEP_ID", "0"},
         {"SLURM_STEP_NUM_TASKS", "4"},
         {"SLURM_NTASKS", "8"}},
        {{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}},
    };
    for (size_t i = 0; i < cases.size(); ++i) EXPECT_FALSE(claim_of(cases[i])) << "case " << i;
}

TEST(ForeignLauncherTest, IgnoresInvalidNumbers) {
    for (const char* value : {"", "four", "4x", " 4", "-4", "0", "4.5", "99999999999999999999", "1e3"})
        for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "SLURM_STEP_NUM_TASKS"})
            EXPECT_FALSE(claim_of({{variable, value}})) << variable << "='" << value << "'";
}

TEST(ForeignLauncherTest, SlurmJobOutsideStepWarns) {
    for (const Variables& variables :
         {Variables{{"SLURM_NTASKS", "4"}}, Variables{{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}},
          Variables{{"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", "4294967290"}}}) {
        const auto claim = claim_of(variables);
        ASSERT_TRUE(claim);
        EXPECT_FALSE(claim->is_started);
        ::testing::internal::CaptureStderr();
        expect_no_launcher(claim, "Open MPI v4");
        EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("warning: SLURM_NTASKS=4"));
    }
}

TEST(ForeignLauncherTest, ErrorShowsLaunchCommand) {
    expect_no_launcher(std::nullopt, "");
    for (const auto& [version, way] :
         {std::pair{"Open MPI v4", "mpirun -np 4 speedrun"}, std::pair{"", "has no MPI"}}) {
        expect_error(ExitCode::usage, {"PMI_SIZE=4", way, "--alone"}, [&, version = version] {
            expect_no_launcher(claim_of({{"PMI_SIZE", "4"}}), version);
        });
    }
}

TEST(ForeignLauncherTest, ForgetLauncherClearsEnvironment) {
    setenv("MV2_COMM_WORLD_SIZE", "4", 1);
    setenv("SLURM_STEP_NUM_TASKS", "4", 1);
    forget_launcher();
    EXPECT_FALSE(find_claim([](const char* name) { return std::getenv(name); }));
}

}  // namespace
}  // namespace speedrun
