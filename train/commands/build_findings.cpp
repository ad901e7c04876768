#include <fmt/format.h>
#include <gnu/libc-version.h>
#include <openssl/crypto.h>
#include <spdlog/version.h>
#include <utf8proc.h>
#include <zlib.h>
#include <boost/version.hpp>

#include <CLI/Version.hpp>
#include <nlohmann/json.hpp>

#include "kernels/cpu/isa.h"
#include "train/comm/message_channel.h"
#include "train/commands/findings.h"

namespace speedrun {

namespace {

// The first four are run-time versions, the others compile-time versions.
std::string library_versions() {
    return fmt::format(
        "glibc {}, OpenSSL {}, zlib {}, utf8proc {}; compiled with fmt {}.{}.{}, spdlog {}.{}.{}, "
        "nlohmann-json {}.{}.{}, CLI11 {}, Boost {}.{}.{}",
        gnu_get_libc_version(), OpenSSL_version(OPENSSL_VERSION_STRING), zlibVersion(), utf8proc_version(),
        FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100, SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR,
        SPDLOG_VER_PATCH, NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
        NLOHMANN_JSON_VERSION_PATCH, CLI11_VERSION, BOOST_VERSION / 100000, BOOST_VERSION / 100 % 1000,
        BOOST_VERSION % 100);
}

Finding build_finding(const Environment& e) {
    const bool release = e.build_type == "Release";
    return {release ? Status::ok : Status::warn, "build",
            fmt::format("{} {}, {}", e.build_type, e.git_sha, e.compiler),
            release ? "" : "slow: build with the preset release"};
}

Finding mpi_finding(const Environment& e) {
    if (e.has_mpi) return {Status::ok, "MPI", mpi_library_version(), ""};
    return {Status::note, "MPI", "not in this build",
            "one rank only; install libopenmpi-dev and build again"};
}

Finding nccl_finding(const Machine& m) {
    return {m.has_nccl ? Status::ok : Status::note, "NCCL", m.nccl,
            m.has_nccl ? "" : "only ranks on several GPUs need it"};
}

Finding cuda_finding(const Environment& e) {
    if (!e.has_cuda) {
        return {Status::note, "CUDA", "not in this build", "to use a GPU, build where nvcc is on PATH"};
    }
    const auto version = [](int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); };
    const bool driver = e.cuda.driver_version > 0;
    const bool old = driver && e.cuda.driver_version / 1000 < e.cuda.runtime_version / 1000;
    return {old ? Status::warn : Status::ok, "CUDA",
            fmt::format("built with {}, driver {}", version(e.cuda.runtime_version),
                        driver ? "for " + version(e.cuda.driver_version) : "not installed"),
            old ? "the driver is older than the build: update it" : ""};
}

Finding level_finding(const Environment& e) {
    if (e.isas.empty()) {
        return {Status::fail, "CPU level", "no AVX2 with FMA",
                "runs on the CPU need a processor with AVX2: Intel since 2013, AMD since 2015"};
    }
    const bool lowered = e.isa != e.isas.back();
    return {lowered ? Status::warn : Status::ok, "CPU level",
            fmt::format("{} (this processor has {}): precision auto is {}", e.isa, e.isas.back(),
                        cpu_has_bf16() ? "bf16" : "f32"),
            lowered ? "SPEEDRUN_ISA lowers it; unset it for the fastest loops" : ""};
}

}  // namespace

Findings build_findings(const Environment& e, const Machine& m) {
    return {build_finding(e), level_finding(e), {Status::ok, "libraries", library_versions(), ""},
            mpi_finding(e),   nccl_finding(m),  cuda_finding(e)};
}

std::string version_text() {
    const Environment e = read_environment();
    std::string text = "speedrun " + e.version;
    for (const Finding& f : build_findings(e, read_machine()))
        text += fmt::format("\n{:<11} {}", f.name, f.value);
    return text;
}

}  // namespace speedrun
