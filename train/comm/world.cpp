#include "train/comm/world.h"

#include <array>
#include <cstdio>
#include <cstdlib>

#include "train/comm/foreign_launcher.h"
#include "train/comm/joint_check.h"
#include "train/comm/message_world.h"
#include "train/comm/self_world.h"

namespace speedrun {

bool launched_with_mpi() {
    // Open MPI; PMIx (Slurm's srun --mpi=pmix); PMI (MPICH, Intel MPI).
    constexpr std::array<const char*, 3> kVariables{"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"};
    for (const char* variable : kVariables) {
        if (std::getenv(variable)) return true;
    }
    return false;
}

std::unique_ptr<World> make_world(const WorldOptions& options) {
    if (!(options.timeout_s > 0))
        throw_usage("the timeout for a lost peer is {} s: want more than 0", options.timeout_s);
    if (!launched_with_mpi()) return make_self_world();
    return make_message_world(make_mpi_transport(), options);
}

std::unique_ptr<World> make_training_world(const WorldOptions& options, bool alone) {
    if (alone) {
        forget_launcher();
        return make_self_world();
    }
    const auto claim =
        find_claim([](const char* variable) { return std::getenv(variable); });  // MPI sets some
    std::unique_ptr<World> world = make_world(options);
    if (world->size() > 1) return world;
    try {
        expect_no_launcher(claim, mpi_library_version());
    } catch (const Error&) {
        world->finish();
        throw;
    }
    return world;
}

int run_rank(World& world, const std::function<int()>& body) {
    const auto fail = [&](ExitCode code, const char* reason) {
        const std::string who = world.size() > 1 ? fmt::format("rank {}: ", world.rank()) : "";
        std::fprintf(stderr, "error: %s%s\n", who.c_str(), reason);
        world.abort(code, reason);
        return static_cast<int>(code);
    };
    try {
        const int result = body();
        world.finish();
        return result;
    } catch (const JointError& error) {  // all ranks reach this handler
        if (world.rank() == 0) std::fprintf(stderr, "error: %s\n", error.what());
        world.finish();
        return static_cast<int>(error.code());
    } catch (const Error& error) {
        return fail(error.code(), error.what());
    } catch (const std::exception& error) {
        return fail(ExitCode::failure, error.what());
    }
}

}  // namespace speedrun
