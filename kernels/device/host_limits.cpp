#include "kernels/device/host_limits.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace speedrun {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kKiB = 1024;

// Number after "key:" in a file of /proc; a following "kB" is ignored.
std::optional<int64_t> number_of(const fs::path& file, const std::string& key) {
    std::ifstream stream(file);
    for (std::string line; std::getline(stream, line);) {
        if (!line.starts_with(key + ":")) continue;
        char* end = nullptr;
        const char* const begin = line.c_str() + key.size() + 1;
        const int64_t value = std::strtoll(begin, &end, 10);
        return end == begin ? std::nullopt : std::optional(value);
    }
    return std::nullopt;
}

std::optional<int64_t> soft_limit(__rlimit_resource resource) {
    rlimit limit{};
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
    return static_cast<int64_t>(limit.rlim_cur);
}

// `ulimit -u` does not apply to root, unless it is the root of a user namespace.
bool is_root_of_host() {
    std::ifstream map("/proc/self/uid_map");
    uint64_t inside = 1, outside = 1, count = 0;
    map >> inside >> outside >> count;
    constexpr uint64_t kAllUsers = 4294967295;
    return getuid() == 0 && inside == 0 && outside == 0 && count == kAllUsers;
}

int64_t tasks_of_user() {
    int64_t tasks = 0;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator("/proc", error)) {
        const std::string name = entry.path().filename().string();
        if (name.find_first_not_of("0123456789") != std::string::npos) continue;
        const fs::path status = entry.path() / "status";
        if (number_of(status, "Uid") != static_cast<int64_t>(getuid())) continue;
        tasks += number_of(status, "Threads").value_or(0);
    }
    return tasks;
}

std::optional<AmountLimit> user_tasks() {
    const std::optional<int64_t> limit = soft_limit(RLIMIT_NPROC);
    if (!limit || is_root_of_host()) return std::nullopt;
    return AmountLimit{*limit, std::max<int64_t>(0, *limit - tasks_of_user()), "ulimit -u"};
}

std::optional<AmountLimit> all_tasks() {
    std::optional<AmountLimit> tasks = read_control_group().tasks;
    if (const std::optional<AmountLimit> user = user_tasks()) tighten(tasks, *user);
    return tasks;
}

int usable_cores() {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    if (sched_getaffinity(0, sizeof cores, &cores) == 0) return std::max(1, CPU_COUNT(&cores));
    return std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));  // more cores than a cpu_set_t holds
}

// Threads for streams, prefetcher, checkpoints, monitoring of other ranks, MPI and CUDA.
constexpr int64_t kOtherThreads = 12;

int threads_of_limit(const CoreLimit& limit, int ranks) {
    constexpr double kMax = 1e6;
    return std::max(1, static_cast<int>(std::ceil(std::min(limit.cores, kMax))) / ranks);
}

int threads_of_tasks(const AmountLimit& tasks, int ranks) {
    constexpr int64_t kMax = 1000000;
    return static_cast<int>(std::clamp<int64_t>(tasks.left / ranks - kOtherThreads, 1, kMax));
}

}  // namespace

const HostThreads& host_threads() {
    static const HostThreads host{
        .cores = usable_cores(), .limit = read_control_group().cores, .tasks = all_tasks()};
    return host;
}

int threads_within(const HostThreads& host, int ranks) {
    int threads = host.cores;
    if (host.limit) threads = std::min(threads, threads_of_limit(*host.limit, ranks));
    if (host.tasks) threads = std::min(threads, threads_of_tasks(*host.tasks, ranks));
    return threads;
}

std::optional<int> omp_num_threads() {
    const char* text = std::getenv("OMP_NUM_THREADS");
    if (!text) return std::nullopt;
    while (*text == ' ') ++text;
    constexpr int kMax = 1000000;
    int value = 0;
    const auto [rest, error] = std::from_chars(text, text + std::strlen(text), value);
    if (error == std::errc::result_out_of_range) return *text == '-' ? std::nullopt : std::optional(kMax);
    if (error != std::errc() || value <= 0) return std::nullopt;
    return std::min(value, kMax);
}

std::string threads_note(const HostThreads& host, int threads) {
    const int most = threads_within(host);
    if (threads < most || (threads == most && most == host.cores)) return "";
    std::string bound = fmt::format("the {} cores that this process may use", host.cores);
    if (host.limit && threads_of_limit(*host.limit, 1) == most)
        bound = fmt::format("the control group's limit of {:g} cores ({})", host.limit->cores,
                            host.limit->source);
    else if (host.tasks && threads_of_tasks(*host.tasks, 1) == most)
        bound = fmt::format("the limit of {} processes and threads, of which {} are left ({})",
                            host.tasks->limit, host.tasks->left, host.tasks->source);
    if (threads == most) return fmt::format("threads is {}: {}", threads, bound);
    return fmt::format("threads is {}, which exceeds {}: threads take turns; set threads={} or less", threads,
                       bound, most);
}

HostMemory host_memory() {
    HostMemory memory;
    if (const std::optional<int64_t> kib = number_of("/proc/meminfo", "MemAvailable"))
        memory.available = *kib * kKiB;
    std::optional<AmountLimit> limit = read_control_group().memory;
    struct Use {
        const char *key, *limit;
    };
    const auto add = [&](__rlimit_resource resource, const Use& use) {
        const std::optional<int64_t> bytes = soft_limit(resource);
        if (!bytes) return;
        const int64_t used = number_of("/proc/self/status", use.key).value_or(0) * kKiB;
        tighten(limit, {*bytes, std::max<int64_t>(0, *bytes - used), use.limit});
    };
    add(RLIMIT_AS, {"VmSize", "ulimit -v"});
    add(RLIMIT_DATA, {"VmData", "ulimit -d"});
    if (!limit || (memory.available >= 0 && limit->left >= memory.available)) return memory;
    memory.available = limit->left;
    memory.limit = limit;
    return memory;
}

std::string describe_task_limits() {
    std::string text =
        fmt::format("this process has {} threads", number_of("/proc/self/status", "Threads").value_or(0));
    if (const std::optional<AmountLimit> tasks = all_tasks())
        text += fmt::format(", and {} of {} processes and threads are left ({})", tasks->left, tasks->limit,
                            tasks->source);
    if (const std::optional<int64_t> bytes = soft_limit(RLIMIT_AS))
        text += fmt::format(", in {} MiB of addresses (ulimit -v)", *bytes / (kKiB * kKiB));
    return text;
}

}  // namespace speedrun
