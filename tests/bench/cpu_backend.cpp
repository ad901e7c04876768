#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/isa.h"
#include "kernels/device/shared_library.h"
#include "tests/bench/backend.h"

namespace speedrun::bench {

namespace {

// f32 matmuls C (n x n) = A Bᵀ of the libraries on this machine, for comparison. Both libraries use row-major
// matrices and OMP_NUM_THREADS.
using OneDnnGemm = int (*)(char, char, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*,
                           int64_t, float, float*, int64_t);
using CblasGemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int, float,
                           float*, int);

template <class Function>
Function find_in(const std::vector<const char*>& names, const char* symbol) {
    for (const char* name : names) {
        Function function = nullptr;
        SharedLibrary(name).find(function, symbol);
        if (function) return function;
    }
    return nullptr;
}

// A probe that runs on the stream's thread, for f32 matmuls only.
template <class Run>
MatmulProbe probe(const char* name, Run run) {
    return {name, [run](Tensor c, Tensor a, Tensor b, Stream& stream) {
                if (a.dtype != DType::f32) throw_internal("products of f32 alone");
                static_cast<CpuStream&>(stream).submit(
                    "library product", [=] { run(c.shape[0], c.as<float>(), a.as<float>(), b.as<float>()); });
            }};
}

std::vector<MatmulProbe> library_products() {
    std::vector<MatmulProbe> probes;
    if (const auto gemm = find_in<OneDnnGemm>({"libdnnl.so.3", "libdnnl.so.2"}, "dnnl_sgemm")) {
        probes.push_back(probe("oneDNN", [gemm](int64_t n, float* c, const float* a, const float* b) {
            gemm('N', 'T', n, n, n, 1.0f, a, n, b, n, 0.0f, c, n);
        }));
    }
    if (const auto gemm = find_in<CblasGemm>({"libopenblas.so.0"}, "cblas_sgemm")) {
        probes.push_back(probe("OpenBLAS", [gemm](int64_t size, float* c, const float* a, const float* b) {
            constexpr int kByRows = 101, kPlain = 111, kTransposed = 112;
            const int n = static_cast<int>(size);
            gemm(kByRows, kPlain, kTransposed, n, n, n, 1.0f, a, n, b, n, 0.0f, c, n);
        }));
    }
    return probes;
}

}  // namespace

Backend make_cpu_backend(int num_threads) {
    Backend backend;
    auto device = std::make_unique<CpuDevice>(num_threads);
    backend.description = {{"kind", "cpu"}, {"threads", device->num_threads()}, {"isa", name_of(cpu_isa())}};
    backend.cache_bytes = last_cache_bytes();
    backend.peaks = peak_sizes(*device);
    backend.probes = library_products();
    backend.device = std::move(device);
    backend.ops = make_cpu_ops(*backend.device);
    return backend;
}

}  // namespace speedrun::bench
