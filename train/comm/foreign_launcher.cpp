#include "train/comm/foreign_launcher.h"

#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

constexpr std::array kSizes{"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "MPI_LOCALNRANKS",
                            "JSM_NAMESPACE_SIZE"};
constexpr std::array kRanks{"OMPI_COMM_WORLD_RANK", "PMIX_RANK",   "PMI_RANK",          "MV2_COMM_WORLD_RANK",
                            "PALS_RANKID",          "ALPS_APP_PE", "JSM_NAMESPACE_RANK"};
constexpr std::array kTorch{"WORLD_SIZE", "RANK", "LOCAL_RANK"};
constexpr std::array kSlurm{"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS",  "SLURM_NPROCS",
                            "SLURM_PROCID",         "SLURM_STEP_ID", "SLURM_STEPID"};
constexpr int64_t kMaxProcesses = 100'000'000;
constexpr int64_t kFirstSpecialStep = 0xfffffff0;  // Slurm's steps of batch scripts, interactive shells etc.

class Claims {
  public:
    explicit Claims(const ReadVariable& read) : read_(read) {}

    std::optional<int64_t> number(const char* variable, int64_t most = kMaxProcesses) const {
        const char* const text = read_(variable);
        if (!text) return std::nullopt;
        int64_t value = 0;
        const char* const end = text + std::strlen(text);
        const auto [stop, error] = std::from_chars(text, end, value);
        if (error != std::errc() || stop != end || value < 0 || value > most) return std::nullopt;
        return value;
    }

    std::optional<LauncherClaim> size(const char* variable, bool is_started = true) const {
        const std::optional<int64_t> value = number(variable);
        if (!value || *value < 2) return std::nullopt;
        return LauncherClaim{fmt::format("{}={}", variable, *value), *value, is_started};
    }

    // A rank r > 0 implies at least r + 1 ranks.
    std::optional<LauncherClaim> rank(const char* variable) const {
        const std::optional<int64_t> value = number(variable);
        if (!value || *value < 1) return std::nullopt;
        return LauncherClaim{fmt::format("{}={}", variable, *value), *value + 1, true};
    }

    std::optional<LauncherClaim> torch() const {
        return number("RANK") || number("LOCAL_RANK") ? size("WORLD_SIZE") : std::nullopt;
    }

    std::optional<LauncherClaim> slurm() const {
        std::optional<int64_t> step = number("SLURM_STEP_ID", INT64_MAX);
        if (!step) step = number("SLURM_STEPID", INT64_MAX);
        const bool is_special = step && *step >= kFirstSpecialStep;
        if (!is_special && number("SLURM_STEP_NUM_TASKS")) return size("SLURM_STEP_NUM_TASKS");
        const bool is_task = (step && !is_special) || rank("SLURM_PROCID");
        for (const char* variable : {"SLURM_NTASKS", "SLURM_NPROCS"})
            if (const auto claim = size(variable, is_task)) return claim;
        return rank("SLURM_PROCID");
    }

  private:
    const ReadVariable& read_;
};

}  // namespace

std::optional<LauncherClaim> find_claim(const ReadVariable& read) {
    const Claims claims(read);
    if (claims.number("OMPI_COMM_WORLD_SIZE") == 1) return std::nullopt;
    for (const char* variable : kSizes)
        if (const auto claim = claims.size(variable)) return claim;
    for (const char* variable : kRanks)
        if (const auto claim = claims.rank(variable)) return claim;
    if (const auto claim = claims.torch()) return claim;
    return claims.slurm();
}

void expect_no_launcher(const std::optional<LauncherClaim>& claim, const std::string& mpi_version) {
    if (!claim) return;
    const std::string way =
        mpi_version.empty()
            ? "This build has no MPI, which several ranks need (libopenmpi-dev, -DSPEEDRUN_MPI=ON)"
            : fmt::format(
                  "Start ranks with 'mpirun -np {0} speedrun ARGUMENTS' ({1}), under Slurm with 'srun "
                  "--mpi=pmix --ntasks={0} speedrun ARGUMENTS'",
                  claim->processes, mpi_version);
    if (!claim->is_started) {
        std::fprintf(stderr, "warning: %s, and this process trains alone. %s. --alone removes this warning\n",
                     claim->variable.c_str(), way.c_str());
        return;
    }
    throw_usage(
        "{}: a launcher started {} processes or more, but this one is a world of one rank, and each would train alone. {}. "
        "--alone trains on one rank anyway",
        claim->variable, claim->processes, way);
}

void forget_launcher() {
    const auto remove = [](const auto& variables) {
        for (const char* variable : variables) unsetenv(variable);
    };
    remove(kSizes);
    remove(kRanks);
    remove(kTorch);
    remove(kSlurm);
}

}  // namespace speedrun
