#include "kernels/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <cctype>

#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/early_launch.h"
#include "kernels/cuda/ops/cuda_ops.h"

namespace speedrun {

namespace {

// Cache file of algorithms, named after the GPU.
std::string cache_file(const CudaOptions& options) {
    const std::string folder = cache_folder();
    const CudaInfo info = query_cuda();
    if (folder.empty() || options.gpu >= static_cast<int>(info.gpus.size())) return "";
    std::string name = info.gpus[options.gpu].name;
    for (char& c : name)
        if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
    return folder + "/cublaslt_" + name + ".txt";
}

CudaGpu gpu_of(const CudaOptions& options) {
    const CudaInfo info = query_cuda();
    return options.gpu < static_cast<int>(info.gpus.size()) ? info.gpus[options.gpu] : CudaGpu{};
}

// Returns why the GPU cannot run our kernels for compute capability 9.0, or "". Without a GPU (plan), the target is assumed
// to run them.
std::string why_no_wgmma(const CudaOptions& options) {
    const CudaGpu gpu = gpu_of(options);
    if (gpu.name.empty() || (gpu.major == 9 && gpu.minor == 0)) return "";
    return fmt::format("{} has compute capability {}.{}, not 9.0", gpu.name, gpu.major, gpu.minor);
}

}  // namespace

CudaBackend make_cuda_backend(const CudaOptions& options) {
    CudaBackend backend;
    auto device = std::make_unique<CudaDevice>(options.gpu, options.dry);
    if (const CudaGpu gpu = gpu_of(options); options.dependent_launch && !options.dry) {
        if (gpu.major >= 9) {
            device->enable_dependent_launch(true);
        } else {
            backend.notes.push_back(fmt::format(
                "cuda.dependent_launch has no effect: {} has compute capability {}.{}, it is of 9.0 "
                "and above",
                gpu.name, gpu.major, gpu.minor));
        }
    }
    backend.device = std::move(device);
    std::unique_ptr<MatmulLibrary> library;
    if (options.libraries.products != MatmulKind::native) {
        std::string why;
        const CublasLtOptions library_options{.tune = true,
                                              .cache_file = options.dry ? "" : cache_file(options)};
        library = make_cublaslt(*backend.device, library_options, why);
        if (!library)
            backend.notes.push_back(
                fmt::format("cuBLASLt cannot be used ({}): matrix products run on our own kernels, "
                            "which are slower",
                            why));
    }
    std::unique_ptr<AttentionLibrary> attention;
    if (options.libraries.attention == AttentionKind::cudnn) {
        if (!built_with_cudnn()) {
            throw_usage(
                "attention 'cudnn' was asked for, but this build has no cuDNN: it needs the headers of cuDNN "
                "9 and of cudnn-frontend (pip install nvidia-cudnn-frontend), and is configured with "
                "-DCUDNN_FRONTEND_INCLUDE_DIR=<the folder of cudnn_frontend.h>; or use attention 'hand'");
        }
        std::string why;
        attention = make_cudnn(*backend.device, why);
        if (!attention)
            backend.notes.push_back(
                fmt::format("cuDNN cannot be used ({}): attention runs on our own kernels", why));
    }
    if (options.libraries.attention == AttentionKind::wgmma) {
        if (const std::string why = why_no_wgmma(options); why.empty())
            attention = make_wgmma_attention(*backend.device);
        else
            backend.notes.push_back(
                fmt::format("attention by wgmma cannot be had ({}): it runs on our other kernels", why));
    }
    bool wgmma_epilogues = false;
    if (options.libraries.products == MatmulKind::wgmma) {
        if (const std::string why = why_no_wgmma(options); why.empty())
            wgmma_epilogues = true;
        else
            backend.notes.push_back(fmt::format(
                "matmuls by wgmma cannot be had ({}): their epilogues run as passes after cuBLASLt", why));
    }
    backend.ops = make_cuda_ops(*backend.device, std::move(library), std::move(attention), wgmma_epilogues);
    auto& cuda_device = static_cast<CudaDevice&>(*backend.device);
    if (!cuda_device.dependent_launch_enabled()) return backend;
    if (const std::string fault = find_early_launch_fault(cuda_device, *backend.ops); !fault.empty()) {
        cuda_device.enable_dependent_launch(false);
        backend.notes.push_back(
            fmt::format("cuda.dependent_launch is off: a graph with early kernels failed ({})", fault));
    }
    return backend;
}

}  // namespace speedrun
