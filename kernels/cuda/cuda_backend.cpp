#include "kernels/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <cctype>

#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/ops/cuda_ops.h"

namespace speedrun {

namespace {

// The file that remembers algorithms, named after the GPU.
std::string cache_file(const CudaOptions& options) {
    const std::string folder = cache_folder();
    const CudaInfo info = query_cuda();
    if (folder.empty() || options.gpu >= static_cast<int>(info.gpus.size())) return "";
    std::string name = info.gpus[options.gpu].name;
    for (char& c : name)
        if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
    return folder + "/cublaslt_" + name + ".txt";
}

// Empty: this GPU has it.
std::string why_no_wgmma(int gpu) {
    const CudaInfo info = query_cuda();
    if (gpu >= static_cast<int>(info.gpus.size())) return "the GPU is not known";
    const CudaGpu& card = info.gpus[gpu];
    if (card.major == 9 && card.minor == 0) return "";
    return fmt::format("{} has compute capability {}.{}, not 9.0", card.name, card.major, card.minor);
}

}  // namespace

CudaBackend make_cuda_backend(const CudaOptions& options) {
    CudaBackend backend;
    backend.device = std::make_unique<CudaDevice>(options.gpu, options.dry);
    std::unique_ptr<MatmulLibrary> library;
    if (options.libraries.products == Products::library) {
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
        const std::string why = options.dry ? "" : why_no_wgmma(options.gpu);
        if (why.empty()) {
            attention = make_wgmma_attention(*backend.device);
        } else {
            backend.notes.push_back(
                fmt::format("attention by wgmma cannot be had ({}): it runs on our other kernels", why));
        }
    }
    backend.ops = make_cuda_ops(*backend.device, std::move(library), std::move(attention));
    return backend;
}

}  // namespace speedrun
