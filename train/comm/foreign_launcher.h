// Detects launchers that this build's MPI does not support: each of their processes would be a world of one rank and train
// alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace speedrun {

// Returns the value of an environment variable, or null.
using ReadVariable = std::function<const char*(const char*)>;

struct LauncherClaim {
    std::string variable;  // "PMI_SIZE=4"
    int64_t processes;     // lower bound
    // False for a Slurm job of several tasks outside its steps: sbatch runs its script as one process.
    bool is_started;
};

// Returns the claim of more than one process, if any. Non-numeric values are ignored. mpirun -np 1 inside another launcher is
// one process.
//   sizes  OMPI_COMM_WORLD_SIZE, PMI_SIZE, MV2_COMM_WORLD_SIZE, MPI_LOCALNRANKS, JSM_NAMESPACE_SIZE;
//          WORLD_SIZE (torchrun) with RANK or LOCAL_RANK; SLURM_STEP_NUM_TASKS; in a Slurm step without it SLURM_NTASKS
//   ranks  above 0: the same launchers' RANK variables, PMIX_RANK, PALS_RANKID, ALPS_APP_PE, SLURM_PROCID
std::optional<LauncherClaim> find_claim(const ReadVariable& read);

// Throws a usage error, with the way to start ranks, if the environment claims more than one process. Prints a warning on
// stderr if the claim is uncertain.
void expect_no_launcher(const std::optional<LauncherClaim>& claim, const std::string& mpi_version);

// Removes the variables above, so that child processes are single as well.
void forget_launcher();

}  // namespace speedrun
