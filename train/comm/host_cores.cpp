#include "train/comm/host_cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

// "host 0 1 5"
std::string to_text(const CoreSet& set) {
    std::string text = set.host;
    for (const int core : set.cores) text += fmt::format(" {}", core);
    return text;
}

CoreSet from_text(const std::string& text) {
    std::istringstream words(text);
    CoreSet set;
    words >> set.host;
    for (int core = 0; words >> core;) set.cores.push_back(core);
    return set;
}

}  // namespace

std::string host_name() {
    std::array<char, 256> host{};
    if (gethostname(host.data(), host.size() - 1) != 0) throw_internal("the host has no name");
    return host.data();
}

CoreSet available_cores() {
    CoreSet set{.host = host_name(), .cores = {}};
    cpu_set_t cores;
    CPU_ZERO(&cores);
    if (sched_getaffinity(0, sizeof cores, &cores) != 0) return set;  // more cores than it can tell of
    for (int core = 0; core < CPU_SETSIZE; ++core) {
        if (CPU_ISSET(core, &cores)) set.cores.push_back(core);
    }
    return set;
}

int share_of_cores(const std::vector<CoreSet>& processes, size_t own) {
    double share = 0;
    for (const int core : processes[own].cores) {
        int users = 0;
        for (const CoreSet& process : processes) {
            users += process.host == processes[own].host &&
                     std::binary_search(process.cores.begin(), process.cores.end(), core);
        }
        share += 1.0 / users;
    }
    constexpr double kRounding = 1e-6;  // three thirds make one
    return std::max(1, static_cast<int>(share + kRounding));
}

int threads_of_rank(World& world) {
    if (world.size() == 1) return 0;
    std::vector<CoreSet> processes;
    for (const std::string& text : world.all_gather(to_text(available_cores())))
        processes.push_back(from_text(text));
    if (std::getenv("OMP_NUM_THREADS")) return 0;
    return share_of_cores(processes, static_cast<size_t>(world.rank()));
}

}  // namespace speedrun
