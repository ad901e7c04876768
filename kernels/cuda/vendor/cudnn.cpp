// Attention by cuDNN: supported calls, tensor layouts, one graph per shape.
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/device/cuda_info.h"
#include "kernels/cuda/device/stream_memory.h"
#include "kernels/cuda/vendor/cudnn_api.h"

namespace speedrun {

namespace {

// Longer sequences would need gigabytes for dP of the deterministic backward; our kernels need none.
constexpr int64_t kMaxWorkspace = int64_t{2} << 30;
constexpr int64_t kMargin = 1 << 20;
constexpr const char* kNoPlaces = "it requires one query per key, not queries at given places";

int64_t round_up(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

struct Operand {
    CudnnTensor name;
    Tensor tensor;
};

class Cudnn final : public AttentionLibrary {
  public:
    Cudnn(Device& device, std::unique_ptr<CudnnApi> api)
        : device_(device), api_(std::move(api)), workspaces_(device, "cuDNN") {}

    bool forward(const op::AttentionForward& a, Stream& stream) override {
        if (a.place.present()) return leave("attention", kNoPlaces);
        return attend("attention_forward", {{kQ, a.q}, {kK, a.k}, {kV, a.v}, {kO, a.o}}, a.lse, a.options,
                      stream);
    }
    bool backward(const op::AttentionBackward& a, Stream& stream) override {
        if (a.place.present()) return leave("attention", kNoPlaces);
        return attend("attention_backward",
                      {{kQ, a.q},
                       {kK, a.k},
                       {kV, a.v},
                       {kO, a.o},
                       {kDout, a.dout},
                       {kDq, a.dq},
                       {kDk, a.dk},
                       {kDv, a.dv}},
                      a.lse, a.options, stream);
    }
    std::vector<std::string> notes() const override { return notes_; }

  private:
    bool attend(const char* label, const std::vector<Operand>& operands, Tensor lse,
                const AttentionOptions& options, Stream& stream);
    // Reason for which cuDNN cannot run the call; empty if it can.
    static std::string refusal(const std::vector<Operand>& operands, const AttentionOptions& options);
    bool leave(const std::string& what, const std::string& why);

    Device& device_;
    const std::unique_ptr<CudnnApi> api_;
    std::map<std::string, std::unique_ptr<CudnnGraph>> graphs_;  // null: no cuDNN kernel
    StreamMemory workspaces_;
    std::vector<std::string> notes_;
};

std::string Cudnn::refusal(const std::vector<Operand>& operands, const AttentionOptions& options) {
    const DType dtype = operands.front().tensor.dtype;
    if (dtype != DType::bf16) return fmt::format("it takes bf16, not {}", name_of(dtype));
    if (options.head_dim != 64 && options.head_dim != 128)
        return fmt::format("we use it for head sizes 64 and 128, not {}", options.head_dim);
    if (const int64_t value_dim = value_dim_of(operands[kV].tensor, options); value_dim != options.head_dim)
        return fmt::format("we use it for heads of q and v of one width, not {} and {}", options.head_dim,
                           value_dim);
    if (options.documents)
        return "it needs the documents' lengths in advance; it can be used with data.document_mask "
               "off";
    const bool aligned = std::all_of(operands.begin(), operands.end(), [](const Operand& x) {
        return reinterpret_cast<uintptr_t>(x.tensor.data) % 16 == 0 && x.tensor.row_stride % 8 == 0;
    });
    return aligned ? "" : "its tensors are aligned to 16 bytes";
}

bool Cudnn::leave(const std::string& what, const std::string& why) {
    const std::string note = fmt::format("{} is left to our own kernels by cuDNN: {}", what, why);
    if (std::find(notes_.begin(), notes_.end(), note) == notes_.end()) notes_.push_back(note);
    return false;
}

bool Cudnn::attend(const char* label, const std::vector<Operand>& operands, Tensor lse,
                   const AttentionOptions& options, Stream& stream) {
    auto& cuda_stream = static_cast<CudaStream&>(stream);
    if (const std::string why = refusal(operands, options); !why.empty()) return leave("attention", why);

    const int64_t rows = lse.shape[1], length = options.sequence_length;
    CudnnProblem problem{.backward = operands.size() > 4,
                         .shape = {options.num_heads, rows / length, length, options.head_dim},
                         .strides = {},
                         .window = options.window < length ? options.window : 0,
                         .scale = options.scale};
    CudnnPointers pointers{};
    for (const auto& [name, x] : operands) {
        problem.strides[name] = {options.head_dim, length * x.row_stride, x.row_stride, 1};
        pointers[name] = x.data;
    }
    problem.strides[kLse] = {rows, length, 1, 1};
    pointers[kLse] = lse.data;

    const int64_t bytes = problem.workspace_bytes();
    if (bytes > kMaxWorkspace)
        return leave(label, fmt::format("its scratch memory would be {:.1f} GiB for {} sequences of {}",
                                        static_cast<double>(bytes) / (1 << 30), rows / length, length));
    if (device_.dry()) {
        workspaces_.at(cuda_stream, bytes);
        return true;
    }
    const auto [entry, fresh] = graphs_.try_emplace(problem.key());
    std::unique_ptr<CudnnGraph>& graph = entry->second;
    std::string why;
    if (fresh) {
        graph = api_->make_graph(problem, why);
        if (graph && graph->workspace_bytes() > bytes) {
            why = fmt::format("it needs {} bytes of scratch memory, but {} are planned",
                              graph->workspace_bytes(), bytes);
            graph = nullptr;
        }
        if (!graph) leave(label, why);
    }
    if (!graph) return false;
    const Buffer& scratch = workspaces_.at(cuda_stream, bytes);
    cuda_stream.begin_span(label);
    graph->execute(pointers, scratch.data(), cuda_stream.handle());
    cuda_stream.end_span();
    return true;
}

}  // namespace

CudnnDims CudnnProblem::dims_of(CudnnTensor tensor) const {
    return tensor == kLse ? CudnnDims{shape[0], shape[1], shape[2], 1} : shape;
}

std::string CudnnProblem::key() const {
    return fmt::format("{}:{}:{}:{}:{}", backward, shape, strides, window, scale);
}

int64_t CudnnProblem::workspace_bytes() const {
    if (!backward) return kMargin;
    const int64_t matrices = shape[0] * shape[1], length = shape[2];
    return matrices * (round_up(length, 64) * round_up(length, 128) * 2 + length * 4) + kMargin;
}

std::unique_ptr<AttentionLibrary> make_cudnn(Device& device, std::unique_ptr<CudnnApi> api) {
    return std::make_unique<Cudnn>(device, std::move(api));
}

std::unique_ptr<AttentionLibrary> make_cudnn(Device& device, std::string& why) {
    if (device.dry()) return make_cudnn(device, std::unique_ptr<CudnnApi>());
    const CudaInfo info = query_cuda();
    const auto index = static_cast<size_t>(static_cast<CudaDevice&>(device).index());
    if (index >= info.gpus.size()) {
        why = info.unavailable;
        return nullptr;
    }
    const CudaGpu& gpu = info.gpus[index];
    std::unique_ptr<CudnnApi> api = load_cudnn(gpu.major * 10 + gpu.minor, why);
    if (!api) return nullptr;
    return make_cudnn(device, std::move(api));
}

}  // namespace speedrun
