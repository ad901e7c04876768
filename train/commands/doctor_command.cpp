#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "kernels/cuda/device/cuda_info.h"
#include "kernels/device/error.h"
#include "train/commands/commands.h"
#include "train/commands/findings.h"

namespace speedrun {

namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

const char* name_of(Status status) {
    constexpr std::array<const char*, 4> kNames{"ok", "note", "warn", "fail"};
    return kNames[static_cast<size_t>(status)];
}

double gib(int64_t bytes) {
    return static_cast<double>(bytes) / kGiB;
}

void add_launcher(Findings& all, const Environment& e, const Machine& m) {
    if (!e.has_mpi) return;
    all.push_back({m.launcher.empty() ? Status::warn : Status::ok, "launcher",
                   m.launcher.empty() ? "neither mpirun nor mpiexec on PATH" : m.launcher,
                   m.launcher.empty() ? "for several ranks install openmpi-bin" : ""});
}

void add_gpus(Findings& all, const Environment& e) {
    if (!e.has_cuda) return;
    if (!e.cuda.unavailable.empty()) {
        all.push_back({e.cuda.driver_version > 0 ? Status::warn : Status::note, "GPU",
                       fmt::format("none ({})", e.cuda.unavailable), "runs use the CPU"});
    }
    for (const CudaGpu& gpu : e.cuda.gpus) {
        constexpr int kAmpere = 8;
        all.push_back({gpu.major >= kAmpere ? Status::ok : Status::note, "GPU",
                       fmt::format("{}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB", gpu.name,
                                   gpu.major, gpu.minor, gpu.multiprocessors, gib(gpu.memory_bytes)),
                       gpu.major >= kAmpere ? "" : "no bf16 tensor cores: precision auto is f32"});
    }
}

void add_cpu(Findings& all, const Environment& e, const Machine& m) {
    const HostThreads& host = m.threads;
    const bool fewer = host.cores < e.cores;
    all.push_back(
        {fewer ? Status::note : Status::ok, "CPU",
         fmt::format("{}, {} of {} cores usable, {:.0f} MHz", e.cpu, host.cores, e.cores, e.cpu_mhz),
         fewer ? "this process is tied to some cores (taskset, mpirun --bind-to, a job's share)" : ""});
    const std::string few =
        fmt::format("runs start {} threads unless \"threads\" says more", threads_within(host));
    if (host.limit && host.limit->cores < host.cores) {
        all.push_back(
            {Status::warn, "CPU limit",
             fmt::format("{:g} cores, by its control group ({})", host.limit->cores, host.limit->source),
             few + ": raise the limit to use all cores"});
    }
    if (host.tasks) {
        constexpr int64_t kEnough = 64;  // threads of a run, without its loops' threads
        const bool little = host.tasks->left < host.cores + kEnough;
        all.push_back({little ? Status::warn : Status::ok, "task limit",
                       fmt::format("{} of {} processes and threads left ({})", host.tasks->left,
                                   host.tasks->limit, host.tasks->source),
                       little ? few + ": raise the limit" : ""});
    }
    if (const char* const threads = std::getenv("OMP_NUM_THREADS")) {
        all.push_back({Status::note, "threads", fmt::format("OMP_NUM_THREADS={}", threads),
                       omp_num_threads() ? "limits every run; unset it or use \"threads\" in the config"
                                         : "no number above 0: it has no effect"});
    }
    const bool saves = m.governor == "powersave" || m.governor == "conservative";
    all.push_back(
        {m.governor.empty() ? Status::note
         : saves            ? Status::warn
                            : Status::ok,
         "governor", m.governor.empty() ? "not readable (as in most virtual machines)" : m.governor,
         saves ? "cores may run below their speed: sudo cpupower frequency-set -g performance" : ""});
    if (m.throttled) {
        all.push_back(
            {*m.throttled > 0 ? Status::warn : Status::ok, "throttling",
             fmt::format("{} times since the machine started", *m.throttled),
             *m.throttled > 0 ? "heat slows the cores down: timings will not repeat; improve cooling" : ""});
    }
}

void add_memory(Findings& all, const Environment& e, const Machine& m) {
    const int64_t available = std::max<int64_t>(0, m.memory.available);
    const std::string limit = m.memory.limit ? fmt::format(" (limit {:.3g}, {})", gib(m.memory.limit->limit),
                                                           m.memory.limit->source)
                                             : "";
    constexpr double kMin = 1.0 / 16, kLittle = 1;  // GiB: for the smallest model; for a useful model
    all.push_back(
        {gib(available) < kMin      ? Status::fail
         : gib(available) < kLittle ? Status::warn
                                    : Status::ok,
         "memory",
         fmt::format("{:.3g} GiB available of {:.1f}{}", gib(available), gib(e.memory_bytes), limit),
         gib(available) < kLittle ? "even small models may not fit: end other programs, or raise the limit"
                                  : ""});
    const bool never = m.huge_pages == "never";
    all.push_back({m.huge_pages.empty() ? Status::note
                   : never              ? Status::warn
                                        : Status::ok,
                   "huge pages", m.huge_pages.empty() ? "not readable" : m.huge_pages,
                   never ? "large products read memory more slowly: echo madvise | sudo tee "
                           "/sys/kernel/mm/transparent_hugepage/enabled"
                         : ""});
}

void add_disk(Findings& all, const std::string& out) {
    const FolderSpace space = space_for(out);
    constexpr double kMin = 1.0 / 64, kLittle = 1;  // GiB
    const double free_gib = gib(space.free_bytes);
    const std::string value = fmt::format("{:.1f} GiB free in {}", free_gib, space.existing);
    if (!space.writable || free_gib < kMin) {
        all.push_back({Status::fail, "disk",
                       space.writable ? value : space.existing + " cannot be written to",
                       "runs need a folder for their results: set another one with --out, or free space"});
        return;
    }
    all.push_back(
        {free_gib < kLittle ? Status::warn : Status::ok, "disk", value,
         free_gib < kLittle ? "checkpoints may not fit: free space, or set another folder with --out" : ""});
}

void add_clock(Findings& all, const Machine& m) {
    const bool quick =
        m.clock_source == "tsc" || m.clock_source == "kvm-clock" || m.clock_source == "arch_sys_counter";
    all.push_back({quick ? Status::ok : Status::warn, "clock",
                   m.clock_source.empty() ? "not readable" : m.clock_source,
                   quick ? ""
                         : fmt::format("a slow clock source makes short timings noisy; this machine has: {}",
                                       m.other_clock_sources.empty() ? "?" : m.other_clock_sources)});
}

}  // namespace

int run_doctor(const DoctorOptions& options) {
    const Environment e = read_environment();
    const Machine m = read_machine();
    Findings all = build_findings(e, m);
    add_launcher(all, e, m);
    add_gpus(all, e);
    add_cpu(all, e, m);
    add_memory(all, e, m);
    add_disk(all, options.out);
    add_clock(all, m);
    Status worst = Status::ok;
    nlohmann::ordered_json json = nlohmann::ordered_json::array();
    for (const Finding& f : all) {
        worst = std::max(worst, f.status);
        json.push_back(
            {{"name", f.name}, {"status", name_of(f.status)}, {"value", f.value}, {"advice", f.advice}});
        if (options.json) continue;
        std::printf("%-5s %-11s %s%s%s\n", name_of(f.status), f.name.c_str(), f.value.c_str(),
                    f.advice.empty() ? "" : "  -> ", f.advice.c_str());
    }
    if (options.json)
        std::printf("%s\n",
                    nlohmann::ordered_json{{"status", name_of(worst)}, {"findings", json}}.dump(2).c_str());
    return worst == Status::fail ? static_cast<int>(ExitCode::usage) : 0;
}

}  // namespace speedrun
