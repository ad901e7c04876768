#include "train/runlog/environment.h"

#include <fmt/chrono.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/cpu/isa.h"
#include "kernels/cuda/device/cuda_info.h"
#include "train/runlog/build_info.h"

namespace speedrun {

namespace {

// Returns the value after "key : " in a file of such lines, or "".
std::string value_in(const char* path, const std::string& key) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        if (line.compare(0, key.size(), key) != 0) continue;
        const size_t begin = line.find_first_not_of(" \t", line.find(':') + 1);
        return begin == std::string::npos ? "" : line.substr(begin);
    }
    return "";
}

int64_t kilobytes_in(const char* path, const std::string& key) {
    return std::strtoll(value_in(path, key).c_str(), nullptr, 10) * 1024;
}

}  // namespace

RankLocation RankLocation::from_text(const std::string& text) {
    const size_t end = text.find('\n');
    return {.host = text.substr(0, end), .device = text.substr(std::min(text.size(), end + 1))};
}

Environment read_environment() {
    Environment e;
    e.version = build_info().version;
    e.git_sha = build_info().git_sha;
    e.compiler = build_info().compiler;
    e.build_type = build_info().build_type;
    e.build_flags = build_info().flags;
    e.has_mpi = build_info().has_mpi;
    e.has_cuda = build_info().has_cuda;
    utsname name{};
    if (uname(&name) == 0) {
        e.host = name.nodename;
        e.os = fmt::format("{} {} {}", name.sysname, name.release, name.machine);
    }
    e.cpu = value_in("/proc/cpuinfo", "model name");
    e.cpu_mhz = std::strtod(value_in("/proc/cpuinfo", "cpu MHz").c_str(), nullptr);
    e.cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
    for (const Isa isa : usable_isas()) e.isas.emplace_back(name_of(isa));
    if (!e.isas.empty()) e.isa = name_of(cpu_isa());
    e.memory_bytes = kilobytes_in("/proc/meminfo", "MemTotal");
    e.available_memory_bytes = kilobytes_in("/proc/meminfo", "MemAvailable");
    e.cuda = query_cuda();
    std::ifstream clock("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    std::getline(clock, e.clock_source);
    e.time_utc = fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
    return e;
}

std::string environment_to_json(const Environment& e) {
    nlohmann::ordered_json gpus = nlohmann::ordered_json::array();
    for (const CudaGpu& gpu : e.cuda.gpus) {
        gpus.push_back({{"name", gpu.name},
                        {"compute_capability", fmt::format("{}.{}", gpu.major, gpu.minor)},
                        {"multiprocessors", gpu.multiprocessors},
                        {"memory_bytes", gpu.memory_bytes}});
    }
    nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
    for (const RankLocation& place : e.ranks)
        ranks.push_back({{"host", place.host}, {"device", place.device}});
    const nlohmann::ordered_json json = {
        {"version", e.version},
        {"git_sha", e.git_sha},
        {"build",
         {{"type", e.build_type},
          {"compiler", e.compiler},
          {"flags", e.build_flags},
          {"mpi", e.has_mpi},
          {"cuda", e.has_cuda}}},
        {"ranks", ranks},
        {"host", e.host},
        {"os", e.os},
        {"cpu", {{"model", e.cpu}, {"cores", e.cores}, {"mhz", e.cpu_mhz}, {"isa", e.isa}, {"isas", e.isas}}},
        {"cuda",
         {{"gpus", gpus},
          {"driver", e.cuda.driver_version},
          {"runtime", e.cuda.runtime_version},
          {"unavailable", e.cuda.unavailable}}},
        {"memory_bytes", e.memory_bytes},
        {"available_memory_bytes", e.available_memory_bytes},
        {"clock_source", e.clock_source},
        {"time_utc", e.time_utc}};
    return json.dump(2) + "\n";
}

int64_t peak_rss_bytes() {
    return kilobytes_in("/proc/self/status", "VmHWM");
}

void reset_peak_rss() {
    std::ofstream("/proc/self/clear_refs") << 5;  // proc(5): resets VmHWM to VmRSS
}

int64_t current_rss_bytes() {
    return kilobytes_in("/proc/self/status", "VmRSS");
}

}  // namespace speedrun
