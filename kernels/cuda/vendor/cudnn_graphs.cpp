// Attention graphs by cudnn-frontend. Its headers are slow to compile, so only this file includes them. cuDNN
// itself is loaded at run time (NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING).
#include <cudnn_frontend.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <exception>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/cuda/vendor/cudnn_api.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // the frontend looks up cuDNN's functions here
}

namespace speedrun {

namespace {

namespace fe = cudnn_frontend;
using Attributes = fe::graph::Tensor_attributes;

constexpr const char* kLibrary = "libcudnn.so.9";
constexpr const char* kNames[kCudnnTensors] = {"q", "k", "v", "o", "lse", "dout", "dq", "dk", "dv"};

int64_t uid_of(CudnnTensor tensor) {
    return tensor + 1;
}

void describe(Attributes& attributes, const CudnnProblem& problem, CudnnTensor tensor) {
    const CudnnDims dims = problem.dims_of(tensor), &strides = problem.strides[tensor];
    attributes.set_name(kNames[tensor])
        .set_uid(uid_of(tensor))
        .set_dim({dims.begin(), dims.end()})
        .set_stride({strides.begin(), strides.end()})
        .set_data_type(tensor == kLse ? fe::DataType_t::FLOAT : fe::DataType_t::BFLOAT16);
}

template <class Options>
void set_common(Options& options, const CudnnProblem& problem, const char* name) {
    options.set_name(name)
        .set_attn_scale(problem.scale)
        .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
        .set_diagonal_band_right_bound(0);  // causal
    // Keys with column + bound > row are kept (cudnn-frontend 1.32, utils/attn_score_modifiers.h): our
    // window.
    if (problem.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(problem.window));
}

void describe_graph(fe::graph::Graph& graph, const CudnnProblem& problem) {
    graph.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const auto input = [&](CudnnTensor tensor) {
        Attributes attributes;
        describe(attributes, problem, tensor);
        return graph.tensor(attributes);
    };
    const auto output = [&](const std::shared_ptr<Attributes>& attributes, CudnnTensor tensor) {
        describe(*attributes, problem, tensor);
        attributes->set_output(true);
    };
    const auto q = input(kQ), k = input(kK), v = input(kV);
    if (problem.backward) {
        fe::graph::SDPA_backward_attributes options;
        set_common(options, problem, "attention_backward");
        options.set_deterministic_algorithm(true);
        const auto o = input(kO), dout = input(kDout), lse = input(kLse);
        const auto [dq, dk, dv] = graph.sdpa_backward(q, k, v, o, dout, lse, options);
        output(dq, kDq);
        output(dk, kDk);
        output(dv, kDv);
    } else {
        fe::graph::SDPA_attributes options;
        set_common(options, problem, "attention_forward");
        options.set_generate_stats(true);
        const auto [o, lse] = graph.sdpa(q, k, v, options);
        output(o, kO);
        output(lse, kLse);
    }
}

class FrontendGraph final : public CudnnGraph {
  public:
    FrontendGraph(std::shared_ptr<fe::graph::Graph> graph, cudnnHandle_t handle, int64_t workspace,
                  const CudnnProblem& problem)
        : graph_(std::move(graph)), handle_(handle), workspace_(workspace) {
        for (int tensor = 0; tensor < kCudnnTensors; ++tensor)
            if (problem.strides[tensor][3] != 0) used_.push_back(static_cast<CudnnTensor>(tensor));
    }
    int64_t workspace_bytes() const override { return workspace_; }
    void execute(const CudnnPointers& pointers, void* workspace, cudaStream_t stream) override {
        if (fe::detail::set_stream(handle_, stream) != CUDNN_STATUS_SUCCESS)
            throw_internal("cudnnSetStream: {}", fe::detail::get_last_error_string_());
        std::unordered_map<int64_t, void*> pack;
        for (const CudnnTensor tensor : used_) pack[uid_of(tensor)] = pointers[tensor];
        fe::error_t error = graph_->execute(handle_, pack, workspace);
        if (error.is_bad()) throw_internal("cuDNN attention: {}", error.get_message());
    }

  private:
    std::shared_ptr<fe::graph::Graph> graph_;
    const cudnnHandle_t handle_;
    const int64_t workspace_;
    std::vector<CudnnTensor> used_;
};

// For the GPU of a handle, or for a described GPU.
class FrontendApi final : public CudnnApi {
  public:
    FrontendApi(cudnnHandle_t handle, int compute_capability)
        : handle_(handle), compute_capability_(compute_capability) {}
    FrontendApi(std::shared_ptr<const fe::DeviceProperties> properties, int compute_capability)
        : properties_(std::move(properties)), compute_capability_(compute_capability) {}
    ~FrontendApi() override {
        if (handle_) fe::detail::destroy_handle(handle_);
    }

    std::unique_ptr<CudnnGraph> make_graph(const CudnnProblem& problem, std::string& why) override {
        const std::vector<fe::HeurMode_t> modes = {fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK};
        try {
            auto graph = std::make_shared<fe::graph::Graph>();
            // Set before the nodes, which copy it. Without it, the frontend would load a CUDA runtime of its
            // own to query it.
            graph->set_sm_version(compute_capability_);
            if (properties_) graph->set_device_properties(properties_);
            describe_graph(*graph, problem);
            fe::error_t error = properties_ ? graph->build(modes) : graph->build(handle_, modes);
            int64_t workspace = 0;
            if (error.is_good()) error = graph->get_workspace_size(workspace);
            if (error.is_good())
                return std::make_unique<FrontendGraph>(std::move(graph), handle_, workspace, problem);
            why = first_line(error.get_message());
        } catch (const std::exception& error) {  // thrown for a function that the libraries lack
            why = error.what();
        }
        return nullptr;
    }

  private:
    static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

    const cudnnHandle_t handle_ = nullptr;
    const std::shared_ptr<const fe::DeviceProperties> properties_;
    const int compute_capability_ = 0;
};

bool open_library(std::string& why) {
    if (!fe::cudnn_dlhandle)  // kept for the life of the process
        fe::cudnn_dlhandle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (!fe::cudnn_dlhandle) why = dlerror();
    return fe::cudnn_dlhandle != nullptr;
}

}  // namespace

bool built_with_cudnn() {
    return true;
}

std::unique_ptr<CudnnApi> load_cudnn(int compute_capability, std::string& why) {
    if (!open_library(why)) return nullptr;
    try {
        cudnnHandle_t handle = nullptr;
        const cudnnStatus_t status = fe::detail::create_handle(&handle);
        if (status == CUDNN_STATUS_SUCCESS) return std::make_unique<FrontendApi>(handle, compute_capability);
        why = fmt::format("cudnnCreate: {}", fe::detail::get_error_string(status));
    } catch (const std::exception& error) {
        why = error.what();
    }
    return nullptr;
}

std::unique_ptr<CudnnApi> load_cudnn_for(const std::string& properties, int compute_capability,
                                         std::string& why) {
    if (!open_library(why)) return nullptr;
    try {
        auto device = std::make_shared<fe::DeviceProperties>();
        fe::error_t error = device->deserialize({properties.begin(), properties.end()});
        if (error.is_good()) return std::make_unique<FrontendApi>(std::move(device), compute_capability);
        why = error.get_message();
    } catch (const std::exception& error) {
        why = error.what();
    }
    return nullptr;
}

}  // namespace speedrun
