#include "train/runlog/machine.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace speedrun {

namespace {

namespace fs = std::filesystem;

// Returns the first line of a file, "" if it cannot be read.
std::string line_of(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

std::optional<int64_t> number_in(const std::string& text) {
    char* end = nullptr;
    const int64_t value = std::strtoll(text.c_str(), &end, 10);
    if (text.empty() || *end != '\0') return std::nullopt;  // "max": no limit
    return value;
}

// "always [madvise] never" -> "madvise"
std::string chosen(const std::string& choices) {
    const size_t begin = choices.find('['), end = choices.find(']');
    if (begin == std::string::npos || end == std::string::npos) return "";
    return choices.substr(begin + 1, end - begin - 1);
}

std::optional<int64_t> throttle_count(int64_t cores) {
    std::optional<int64_t> sum;
    for (int64_t core = 0; core < cores; ++core) {
        const std::string path =
            fmt::format("/sys/devices/system/cpu/cpu{}/thermal_throttle/core_throttle_count", core);
        if (const std::optional<int64_t> count = number_in(line_of(path))) sum = sum.value_or(0) + *count;
    }
    return sum;
}

void read_nccl(Machine& machine) {
    void* const library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
    if (!library) {
        machine.nccl = "no libnccl.so.2 on the loader's path";
        return;
    }
    using GetVersion = int (*)(int*);
    const auto get_version = reinterpret_cast<GetVersion>(dlsym(library, "ncclGetVersion"));
    int code = 0;
    machine.has_nccl = get_version && get_version(&code) == 0;
    // NCCL 2.9 and later: 10000 major + 100 minor + patch.
    machine.nccl = machine.has_nccl ? fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100)
                                    : "libnccl.so.2 does not report its version";
    dlclose(library);
}

std::string on_path(const std::string& program) {
    const char* const path = std::getenv("PATH");
    std::istringstream folders(path ? path : "");
    for (std::string folder; std::getline(folders, folder, ':');) {
        const std::string candidate = folder + "/" + program;
        if (access(candidate.c_str(), X_OK) == 0) return candidate;
    }
    return "";
}

}  // namespace

Machine read_machine() {
    Machine m;
    const int64_t cores = sysconf(_SC_NPROCESSORS_ONLN);
    m.threads = host_threads();
    m.memory = host_memory();
    m.governor = line_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    m.throttled = throttle_count(cores);
    m.huge_pages = chosen(line_of("/sys/kernel/mm/transparent_hugepage/enabled"));
    const std::string clocks = "/sys/devices/system/clocksource/clocksource0/";
    m.clock_source = line_of(clocks + "current_clocksource");
    m.other_clock_sources = line_of(clocks + "available_clocksource");
    read_nccl(m);
    m.launcher = on_path("mpirun");
    if (m.launcher.empty()) m.launcher = on_path("mpiexec");
    return m;
}

FolderSpace space_for(const std::string& folder) {
    std::error_code error;
    fs::path path = fs::absolute(folder, error);
    while (!fs::is_directory(path, error) && path.has_parent_path() && path != path.parent_path())
        path = path.parent_path();
    FolderSpace result;
    result.existing = path.string();
    result.writable = access(path.c_str(), W_OK) == 0;
    const fs::space_info space = fs::space(path, error);
    result.free_bytes = error ? 0 : static_cast<int64_t>(space.available);
    return result;
}

}  // namespace speedrun
