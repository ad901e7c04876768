#include "train/comm/device_world.h"

#include <map>

#include "kernels/cuda/device/gpu_interop.h"
#include "train/comm/host_cores.h"
#include "train/comm/joint_check.h"
#include "train/comm/nccl_world.h"
#include "train/comm/staged_world.h"

namespace speedrun {

namespace {

// Returns why NCCL cannot serve these ranks, the same on all ranks; empty if it can.
std::string nccl_obstacle(World& world, const Device& device) {
    const std::vector<std::string> reasons = world.all_gather(nccl_unavailable());
    for (size_t rank = 0; rank < reasons.size(); ++rank) {
        if (!reasons[rank].empty()) return fmt::format("rank {}: {}", rank, reasons[rank]);
    }
    std::map<std::string, size_t> owners;
    const std::vector<std::string> gpus =
        world.all_gather(available_cores().host + " " + gpu_identity(device));
    for (size_t rank = 0; rank < gpus.size(); ++rank) {
        const auto [owner, fresh] = owners.emplace(gpus[rank], rank);
        if (!fresh) return fmt::format("ranks {} and {} share a GPU", owner->second, rank);
    }
    return "";
}

}  // namespace

DeviceWorld make_device_world(World& world, Device& device, const ParallelConfig& config) {
    if (world.size() == 1 || device.kind() != DeviceKind::cuda) return {};
    const bool needs_staged = config.communicator == CommunicatorKind::staged;
    const std::string obstacle =
        needs_staged ? "parallel.communicator is 'staged'" : nccl_obstacle(world, device);
    if (obstacle.empty()) {
        const NcclOptions options{.max_ctas = static_cast<int>(config.nccl_max_ctas),
                                  .timeout_s = config.timeout_s,
                                  .start_timeout_s = config.start_timeout_s};
        return {make_nccl_world(world, device, options), "ranks talk through NCCL " + nccl_version()};
    }
    if (config.communicator == CommunicatorKind::nccl) {
        throw JointError(
            ExitCode::usage,
            fmt::format("parallel.communicator: 'nccl' cannot be used: {}; use 'staged' or 'auto'",
                        obstacle));
    }
    return {make_staged_world(world, device),
            fmt::format("ranks talk through the host's memory, not NCCL ({})", obstacle)};
}

}  // namespace speedrun
