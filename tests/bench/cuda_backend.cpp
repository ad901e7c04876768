#include "kernels/cuda/cuda_backend.h"

#include <fmt/format.h>

#include "kernels/cuda/vendor/attention_library.h"
#include "tests/bench/backend.h"
#include "train/config/choices.h"

namespace speedrun::bench {

Backend make_cuda_backend(const CudaLibraries& libraries) {
    const CudaInfo info = query_cuda();
    if (!info.unavailable.empty()) throw_usage("no NVIDIA GPU/driver found: {}", info.unavailable);
    const CudaGpu& gpu = info.gpus.front();
    Backend backend;
    const bool cudnn = libraries.attention == AttentionKind::cudnn;
    if (cudnn && !built_with_cudnn()) {
        backend.missing = "this build has no cuDNN";
        return backend;
    }
    CudaBackend cuda = ::speedrun::make_cuda_backend({.libraries = libraries});
    for (const std::string& note : cuda.notes) {
        if (libraries.attention != AttentionKind::native && note.find("attention") != std::string::npos)
            backend.missing = note;
        if (note.find("matmuls by wgmma") != std::string::npos) backend.missing = note;
    }
    backend.device = std::move(cuda.device);
    backend.ops = std::move(cuda.ops);
    backend.cache_bytes = gpu.l2_bytes;
    backend.head_start_bytes = int64_t{2} << 30;
    backend.peaks = peak_sizes(*backend.device);
    backend.library_matmul = libraries.products != MatmulKind::native && cuda.notes.empty();
    if (libraries.products == MatmulKind::native) {
        // The library also sets the peak for our own kernels; it uses the same GPU memory and streams.
        auto library = std::make_shared<CudaBackend>(
            ::speedrun::make_cuda_backend({.libraries = {.products = MatmulKind::library}}));
        backend.probes = {{"library", [library](Tensor c, Tensor a, Tensor b, Stream& stream) {
                               if (!library->notes.empty()) throw_internal("{}", library->notes.front());
                               library->ops->matmul({.c = c, .a = a, .b = b, .transpose_b = true}, stream);
                           }}};
    }
    backend.description = {{"kind", "cuda"},
                           {"name", gpu.name},
                           {"compute_capability", fmt::format("{}.{}", gpu.major, gpu.minor)},
                           {"multiprocessors", gpu.multiprocessors},
                           {"memory_bytes", gpu.memory_bytes},
                           {"l2_bytes", gpu.l2_bytes},
                           {"driver_cuda", info.driver_version},
                           {"runtime_cuda", info.runtime_version},
                           {"products", word_of(libraries.products)},
                           {"attention", word_of(libraries.attention)},
                           {"notes", cuda.notes}};
    return backend;
}

}  // namespace speedrun::bench
