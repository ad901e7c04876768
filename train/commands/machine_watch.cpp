#include "train/commands/machine_watch.h"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/device/cuda_info.h"
#include "kernels/cuda/device/gpu_interop.h"
#include "train/comm/world.h"
#include "train/engine/memory_plan.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun {

namespace {

std::string name_of_host() {
    std::array<char, 256> name{};
    return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

// Returns the texts of the ranks on this host, without the host's name.
std::vector<std::string> said_on_this_host(World& world, const std::string& text) {
    const std::string host = name_of_host() + '\n';
    std::vector<std::string> said;
    for (const std::string& one : world.all_gather(host + text))
        if (one.starts_with(host)) said.push_back(one.substr(host.size()));
    return said;
}

}  // namespace

std::string gpu_of_rank(World& world, const Config& config) {
    const RuntimeOptions options = runtime_options(config, resolve_ranks(config, world));
    if (options.device == DeviceKind::cpu) return "";
    const CudaInfo info = query_cuda();
    const bool known = info.unavailable.empty() && options.gpu < static_cast<int>(info.gpus.size());
    return known ? gpu_identity(options.gpu) : "";
}

void MachineWatch::begin(const std::string& gpu) {
    cores_.clear();
    for (const std::string& list : said_on_this_host(world_, allowed_cores()))
        cores_.merge(cores_in_list(list));
    if (clocks_ && clocks_->gpu() != gpu) clocks_.reset();
    if (!clocks_ && !gpu.empty()) clocks_.emplace(gpu, nvml_);
    begin_ = read_machine_counters(cores_);
    if (clocks_) clocks_->begin();
}

MachineState MachineWatch::end() {
    const auto gpu_throttle = clocks_ ? clocks_->end() : std::nullopt;
    const MachineCounters now = read_machine_counters(cores_);
    double own_s = 0;
    for (const std::string& text : said_on_this_host(world_, fmt::format("{:.9f}", now.own_s - begin_.own_s)))
        own_s += std::strtod(text.c_str(), nullptr);
    MachineState state = state_between(begin_, now, own_s);
    state.gpu_throttle = gpu_throttle;
    for (const std::string& text : world_.all_gather(machine_state_to_json(state)))
        state = worst_of(state, machine_state_from_json(text, "machine state of a rank"));
    for (const std::string& problem : world_.all_gather(clocks_ ? clocks_->problem() : "")) {
        if (problem.empty() || warned_) continue;
        if (world_.rank() == 0)
            std::fprintf(stderr, "warning: no reasons for reduced clocks of a GPU: %s\n", problem.c_str());
        warned_ = true;
    }
    return state;
}

}  // namespace speedrun
