#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "kernels/device/error.h"
#include "train/commands/commands.h"
#include "train/record/environment.h"

namespace speedrun {

namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

void line(const char* name, const std::string& value, const std::string& advice = "") {
    std::printf("%-12s %s%s%s\n", name, value.c_str(), advice.empty() ? "" : "  -> ", advice.c_str());
}

void print_gpus(const Environment& e) {
    if (!e.has_cuda) return line("CUDA", "not in this build", "build where nvcc is on PATH to use a GPU");
    const auto version = [](int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); };
    line("CUDA",
         fmt::format("built with {}, driver {}", version(e.cuda.runtime_version),
                     e.cuda.driver_version > 0 ? "for " + version(e.cuda.driver_version) : "not installed"),
         e.cuda.driver_version > 0 && e.cuda.driver_version / 1000 < e.cuda.runtime_version / 1000
             ? "the driver is older than the build: update it"
             : "");
    if (!e.cuda.unavailable.empty())
        line("GPU", fmt::format("none ({}): runs use the CPU", e.cuda.unavailable));
    for (const CudaGpu& gpu : e.cuda.gpus) {
        line("GPU",
             fmt::format("{}, compute capability {}.{}, {} multiprocessors, {:.1f} GiB", gpu.name, gpu.major,
                         gpu.minor, gpu.multiprocessors, static_cast<double>(gpu.memory_bytes) / kGiB));
    }
}

}  // namespace

int run_doctor(const DoctorOptions&) {
    const Environment e = read_environment();
    line("build", fmt::format("{} {}, {}", e.build_type, e.git_sha.substr(0, 12), e.compiler),
         e.build_type == "Release" ? "" : "not a Release build: slow; use the preset release");
    line("OpenMP", e.has_openmp ? "yes" : "no", e.has_openmp ? "" : "our loops run on one thread");
    line("oneDNN", e.onednn_version);
    line("MPI", e.has_mpi ? "in this build: mpirun -np N speedrun train ..." : "not in this build",
         e.has_mpi ? "" : "one rank only; install libopenmpi-dev and build again");
    print_gpus(e);
    line("CPU", fmt::format("{}, {} cores, {:.0f} MHz", e.cpu, e.cores, e.cpu_mhz));
    line("AVX-512", e.cpu_avx512 ? "yes" : "no", e.cpu_avx512 ? "" : "kernels use narrower vectors");
    line("bf16",
         e.cpu_bf16 ? "avx512_bf16: precision auto is bf16" : "no avx512_bf16: precision auto is f32");
    const double free_gib = static_cast<double>(e.available_memory_bytes) / kGiB;
    line("memory",
         fmt::format("{:.1f} GiB available of {:.1f}", free_gib, static_cast<double>(e.memory_bytes) / kGiB),
         free_gib < 1 ? "less than 1 GiB: even small models may not fit" : "");
    std::error_code error;
    const auto space = std::filesystem::space(".", error);
    const double disk_gib = error ? 0 : static_cast<double>(space.available) / kGiB;
    line("disk", fmt::format("{:.1f} GiB free here", disk_gib),
         disk_gib < 1 ? "less than 1 GiB: runs may fail to write" : "");
    line("clock", e.clock_source.empty() ? "unknown" : e.clock_source,
         e.clock_source == "tsc" || e.clock_source == "kvm-clock" || e.clock_source == "arch_sys_counter"
             ? ""
             : "a slow clock source makes short timings noisy");
    const char* threads = std::getenv("OMP_NUM_THREADS");
    if (threads)
        line("threads", fmt::format("OMP_NUM_THREADS={}", threads),
             "limits every run; unset it or use \"threads\" in the config");
    return 0;
}

}  // namespace speedrun
