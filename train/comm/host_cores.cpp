#include "train/comm/host_cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "kernels/device/error.h"
#include "kernels/device/host_limits.h"

namespace speedrun {

namespace {

// "host 2.5 -1 0 1 5"
std::string to_text(const CoreSet& set) {
    std::string text = fmt::format("{} {} {}", set.host, set.limit, set.tasks);
    for (const int core : set.cores) text += fmt::format(" {}", core);
    return text;
}

CoreSet from_text(const std::string& text) {
    std::istringstream words(text);
    CoreSet set;
    words >> set.host >> set.limit >> set.tasks;
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
    const HostThreads& host = host_threads();
    CoreSet set{.host = host_name(), .cores = {}};
    if (host.limit) set.limit = host.limit->cores;
    if (host.tasks) set.tasks = host.tasks->left;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    if (sched_getaffinity(0, sizeof cores, &cores) != 0)
        return set;  // fails if the host has more cores than cpu_set_t
    for (int core = 0; core < CPU_SETSIZE; ++core) {
        if (CPU_ISSET(core, &cores)) set.cores.push_back(core);
    }
    return set;
}

int share_of_cores(const std::vector<CoreSet>& processes, size_t own) {
    double share = 0;
    const CoreSet& self = processes[own];
    for (const int core : self.cores) {
        int users = 0;
        for (const CoreSet& process : processes) {
            users += process.host == self.host &&
                     std::binary_search(process.cores.begin(), process.cores.end(), core);
        }
        share += 1.0 / users;
    }
    constexpr double kRounding = 1e-6;  // three thirds add up to 1
    HostThreads host{.cores = std::max(1, static_cast<int>(share + kRounding)), .limit = {}, .tasks = {}};
    if (self.limit > 0) host.limit = CoreLimit{.cores = self.limit, .source = {}};
    if (self.tasks >= 0) host.tasks = AmountLimit{.limit = self.tasks, .left = self.tasks, .source = {}};
    const auto neighbours = std::count_if(processes.begin(), processes.end(),
                                          [&](const CoreSet& process) { return process.host == self.host; });
    return threads_within(host, static_cast<int>(neighbours));
}

int threads_of_rank(World& world) {
    if (world.size() == 1) return 0;
    std::vector<CoreSet> processes;
    for (const std::string& text : world.all_gather(to_text(available_cores())))
        processes.push_back(from_text(text));
    const int threads = share_of_cores(processes, static_cast<size_t>(world.rank()));
    return std::min(threads, omp_num_threads().value_or(threads));
}

}  // namespace speedrun
