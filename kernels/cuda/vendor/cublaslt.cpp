// Matmuls by cuBLASLt: one plan per shape. Its algorithm is timed on first use and stored on disk.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "kernels/cuda/device/cuda_check.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/device/cuda_info.h"
#include "kernels/cuda/device/stream_memory.h"
#include "kernels/cuda/vendor/algorithm_cache.h"
#include "kernels/cuda/vendor/cublaslt_api.h"
#include "kernels/cuda/vendor/matmul_library.h"

namespace speedrun {

namespace {

constexpr int64_t kWorkspace =
    32 << 20;                   // recommended by NVIDIA for Hopper (cuBLAS documentation, cublasSetWorkspace)
constexpr int kCandidates = 8;  // candidates of the heuristic
constexpr int kTimedRuns = 7;   // runs per candidate; their median counts
// A later candidate must take less than this fraction of an earlier one's time, so that noise does not
// decide.
constexpr double kClearlyFaster = 0.98;

cudaDataType_t cuda_type(DType dtype) {
    switch (dtype) {
        case DType::bf16:
            return CUDA_R_16BF;
        case DType::e4m3:
            return CUDA_R_8F_E4M3;
        case DType::e5m2:
            return CUDA_R_8F_E5M2;
        default:
            return CUDA_R_32F;
    }
}

// One matmul in cuBLASLt's column-major terms: our row-major c is its cᵀ = op(b)ᵀ op(a)ᵀ. Its first factor is
// our b, its m our n. A row of ours, which the bias applies to, is a column of its result.
struct Product : op::Matmul {
    const float *scale_a = nullptr, *scale_b = nullptr;  // in device memory; FP8 scales

    int64_t m() const { return c.shape[0]; }
    int64_t n() const { return c.shape[1]; }
    int64_t k() const { return transpose_a ? a.shape[0] : a.shape[1]; }
    bool adds() const { return accumulate || addend.present(); }
    const void* added() const { return addend.present() ? addend.data : c.data; }
    // Largest power of two, at most 16 bytes, that aligns every row of every operand. Kernels require no more
    // than 16.
    uint32_t alignment() const {
        constexpr uintptr_t kMax = 16;
        uintptr_t bits = kMax;
        for (const Tensor* x : {&c, &a, &b, &addend})
            bits |= reinterpret_cast<uintptr_t>(x->data) |
                    static_cast<uintptr_t>(x->row_stride * size_of(x->dtype));
        return static_cast<uint32_t>(bits & (~bits + 1));  // lowest set bit
    }
    // All properties that the choice of an algorithm may depend on.
    std::string key() const {
        return fmt::format("{}x{}x{}:{}{}:{}{}:{}:{}:{}:{}{}{}", m(), n(), k(), transpose_a ? 't' : 'n',
                           transpose_b ? 't' : 'n', name_of(a.dtype), name_of(c.dtype), c.row_stride,
                           a.row_stride, b.row_stride, adds() ? "+" : "", bias.present() ? "b" : "",
                           alignment() == 16 ? "" : fmt::format("u{}", alignment()));
    }
};

// Describes a matmul that our own kernel serves instead, for a note.
std::string describe(const char* label, const Product& product) {
    return fmt::format("{} of {}x{}x{}, {} and {}: our own, slower one runs", label, product.m(), product.n(),
                       product.k(), name_of(product.a.dtype), name_of(product.b.dtype));
}

class CublasLt final : public MatmulLibrary {
  public:
    CublasLt(Device& device, const CublasLtOptions& options, const CublasLtApi& api);
    ~CublasLt() override;
    bool matmul(const op::Matmul& a, Stream& stream) override;
    bool scaled_matmul(const op::ScaledMatmul& a, Stream& stream) override;
    std::vector<std::string> notes() const override { return {notes_.begin(), notes_.end()}; }

  private:
    struct Plan {
        cublasLtMatmulDesc_t desc = nullptr;
        cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
        cublasLtMatmulAlgo_t algorithm{};
        bool supported = false;
    };

    bool multiply(const Product& product, const char* label, Stream& stream);
    template <class T>
    void set(const Plan& plan, cublasLtMatmulDescAttributes_t attribute, const T& value) const {
        api_.check(api_.desc_set(plan.desc, attribute, &value, sizeof value),
                   "cublasLtMatmulDescSetAttribute");
    }
    // Sets the pointers, which differ between matmuls of a plan.
    void set_pointers(const Plan& plan, const Product& product) const;
    Plan make_plan(const Product& product) const;
    void destroy(Plan& plan) const;
    std::vector<cublasLtMatmulAlgo_t> candidates(const Plan& plan, const Product& product) const;
    bool take(Plan& plan, const AlgorithmWords& words) const;
    void choose(Plan& plan, const Product& product, CudaStream& stream);
    // Returns a tensor of the layout of `like`, in `memory`, with random values.
    Tensor noise(const Tensor& like, std::vector<Buffer>& memory, CudaStream& stream);
    double median_ms(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const Product& product,
                     CudaStream& stream);
    cublasStatus_t run(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const Product& product,
                       CudaStream& stream);

    Device& device_;
    const CublasLtOptions options_;
    const CublasLtApi api_;
    cublasLtHandle_t handle_ = nullptr;
    std::map<std::string, Plan> plans_;
    StreamMemory workspaces_;
    std::unique_ptr<AlgorithmCache> cache_;
    std::set<std::string> notes_;
};

CublasLt::CublasLt(Device& device, const CublasLtOptions& options, const CublasLtApi& api)
    : device_(device), options_(options), api_(api), workspaces_(device, "cuBLASLt") {
    if (device.dry()) return;
    api_.check(api_.create(&handle_), "cublasLtCreate");
    const CudaInfo info = query_cuda();
    const int index = static_cast<CudaDevice&>(device).index();
    const std::string gpu = index < static_cast<int>(info.gpus.size()) ? info.gpus[index].name : "GPU";
    cache_ = std::make_unique<AlgorithmCache>(
        options.cache_file,
        fmt::format("speedrun cuBLASLt {}, random operands, {}", api_.get_version(), gpu));
}

CublasLt::~CublasLt() {
    for (auto& [key, plan] : plans_) destroy(plan);
    if (handle_) api_.destroy(handle_);
}

void CublasLt::set_pointers(const Plan& plan, const Product& product) const {
    if (product.bias.present()) set(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias.data);
    if (!product.scale_a) return;
    set(plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.scale_b);
    set(plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.scale_a);
}

CublasLt::Plan CublasLt::make_plan(const Product& product) const {
    Plan plan;
    const auto layout = [&](cublasLtMatrixLayout_t& to, const Tensor& x) {  // our rows are cuBLASLt's columns
        api_.check(api_.layout_create(&to, cuda_type(x.dtype), static_cast<uint64_t>(x.shape[1]),
                                      static_cast<uint64_t>(x.shape[0]), x.row_stride),
                   "cublasLtMatrixLayoutCreate");
    };
    api_.check(api_.desc_create(&plan.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    set(plan, CUBLASLT_MATMUL_DESC_TRANSA, product.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(plan, CUBLASLT_MATMUL_DESC_TRANSB, product.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    // The bias is the only epilogue of the library that is used. CUBLASLT_EPILOGUE_GELU_AUX_BIAS and DGELU
    // would save the gpt2 family one pass over [T,4D] per layer forward and two backward: 2.4 of some 50 ms
    // per microbatch of the 124M model at 3.0 TB/s (counted, not measured). They apply to f32 sums, while the
    // activations of ops.h apply to values rounded to the compute type. So each backend would need new
    // operations: a matmul that writes two tensors.
    if (product.bias.present()) {
        const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        const int32_t type = cuda_type(product.bias.dtype);
        set(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
        set(plan, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
    }
    // Matmuls of two e4m3 may accumulate in the tensor cores throughout, with 14 bits of mantissa on Hopper,
    // as is common in forward. Gradients may not.
    const int8_t fast = product.a.dtype == DType::e4m3 && product.b.dtype == DType::e4m3;
    if (fast) set(plan, CUBLASLT_MATMUL_DESC_FAST_ACCUM, fast);
    set_pointers(plan, product);
    layout(plan.first, product.b);
    layout(plan.second, product.a);
    layout(plan.result, product.c);
    return plan;
}

void CublasLt::destroy(Plan& plan) const {
    if (plan.result) api_.layout_destroy(plan.result);
    if (plan.second) api_.layout_destroy(plan.second);
    if (plan.first) api_.layout_destroy(plan.first);
    if (plan.desc) api_.desc_destroy(plan.desc);
}

std::vector<cublasLtMatmulAlgo_t> CublasLt::candidates(const Plan& plan, const Product& product) const {
    cublasLtMatmulPreference_t preference = nullptr;
    api_.check(api_.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
    const uint64_t bytes = kWorkspace;
    cublasStatus_t set =
        api_.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
    // The heuristic assumes alignment to 256 bytes by default, which regions of parameters and column slices
    // lack.
    const uint32_t alignment = product.alignment();
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
        if (set == CUBLAS_STATUS_SUCCESS)
            set = api_.preference_set(preference, attribute, &alignment, sizeof alignment);
    }
    cublasLtMatmulHeuristicResult_t results[kCandidates];
    int count = 0;
    const cublasStatus_t found = api_.heuristic(handle_, plan.desc, plan.first, plan.second, plan.result,
                                                plan.result, preference, kCandidates, results, &count);
    api_.preference_destroy(preference);
    api_.check(set, "cublasLtMatmulPreferenceSetAttribute");
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    if (found != CUBLAS_STATUS_SUCCESS) return algorithms;  // not supported: use the hand-written kernel
    for (int i = 0; i < count; ++i)
        if (results[i].state == CUBLAS_STATUS_SUCCESS) algorithms.push_back(results[i].algo);
    return algorithms;
}

cublasStatus_t CublasLt::run(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const Product& product,
                             CudaStream& stream) {
    const float alpha = 1.0f, beta = product.adds() ? 1.0f : 0.0f;
    const Buffer& scratch = workspaces_.at(stream, kWorkspace);
    return api_.matmul(handle_, plan.desc, &alpha, product.b.data, plan.first, product.a.data, plan.second,
                       &beta, product.added(), plan.result, product.c.data, plan.result, &algorithm,
                       scratch.data(), static_cast<size_t>(scratch.bytes()), stream.handle());
}

Tensor CublasLt::noise(const Tensor& like, std::vector<Buffer>& memory, CudaStream& stream) {
    constexpr int64_t kPattern = 1 << 20;  // bytes, repeated
    const int64_t bytes = ((like.shape[0] - 1) * like.row_stride + like.shape[1]) * size_of(like.dtype);
    memory.emplace_back(device_, "timing of matmuls", MemoryCategory::workspace, bytes);
    char* const data = static_cast<char*>(memory.back().data());
    std::vector<char> pattern(static_cast<size_t>(std::min(bytes, kPattern)));
    std::minstd_rand random;
    std::uniform_real_distribution<float> values(-1.0f, 1.0f);
    const auto fill = [&]<class T>(T) {
        for (size_t i = 0; i + sizeof(T) <= pattern.size(); i += sizeof(T)) {
            const T value(values(random));
            std::memcpy(pattern.data() + i, &value, sizeof value);
        }
    };
    switch (like.dtype) {
        case DType::bf16:
            fill(Bf16());
            break;
        case DType::e4m3:
            fill(E4m3());
            break;
        case DType::e5m2:
            fill(E5m2());
            break;
        default:
            fill(float());
    }
    for (int64_t at = 0; at < bytes; at += kPattern)
        device_.copy(data + at, pattern.data(), std::min(bytes - at, kPattern), stream);
    stream.synchronize();  // `pattern` is freed next
    Tensor tensor = like;
    tensor.data = data;
    return tensor;
}

double CublasLt::median_ms(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const Product& product,
                           CudaStream& stream) {
    std::vector<double> times;
    CudaEvent begin(false, EventKind::timed), end(false, EventKind::timed);
    for (int i = 0; i <= kTimedRuns; ++i) {  // the first run is a warm-up
        stream.record(begin);
        if (run(plan, algorithm, product, stream) != CUBLAS_STATUS_SUCCESS) return 1e30;
        stream.record(end);
        if (i > 0)
            times.push_back(end.elapsed_ms_since(begin));
        else
            end.synchronize();
    }
    std::nth_element(times.begin(), times.begin() + kTimedRuns / 2, times.end());
    return times[kTimedRuns / 2];
}

// Returns false if the library does not accept the algorithm.
bool CublasLt::take(Plan& plan, const AlgorithmWords& words) const {
    std::memcpy(&plan.algorithm, words.data(), sizeof plan.algorithm);
    cublasLtMatmulHeuristicResult_t result{};
    plan.supported = api_.check_algorithm(handle_, plan.desc, plan.first, plan.second, plan.result,
                                          plan.result, &plan.algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
                     result.workspaceSize <= static_cast<size_t>(kWorkspace);
    return plan.supported;
}

// Times the algorithms on random operands in separate memory. The operands of a warm-up are zeros, with which a GPU at its power
// limit is faster. A matmul that adds to c must change it once.
void CublasLt::choose(Plan& plan, const Product& product, CudaStream& stream) {
    static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(AlgorithmWords));
    const std::string key = product.key();
    if (const auto kept = cache_->find(key); kept && take(plan, *kept)) return;
    const std::vector<cublasLtMatmulAlgo_t> algorithms = candidates(plan, product);
    if (algorithms.empty()) return;
    plan.supported = true;
    plan.algorithm = algorithms.front();
    if (!options_.tune || algorithms.size() == 1 || stream.capturing()) return;
    std::vector<Buffer> memory;
    Product timed = product;
    try {
        for (Tensor* x : {&timed.a, &timed.b, &timed.c}) *x = noise(*x, memory, stream);
        if (timed.addend.present()) timed.addend = noise(timed.addend, memory, stream);
    } catch (const Error&) {
        return;  // no memory for timing: keep the heuristic's first choice
    }
    double best = 1e30;
    for (const cublasLtMatmulAlgo_t& algorithm : algorithms) {
        const double ms = median_ms(plan, algorithm, timed, stream);
        if (ms < best * kClearlyFaster) {
            best = ms;
            plan.algorithm = algorithm;
        }
    }
    plan.supported = best < 1e30;
    stream.synchronize();  // `memory` is freed next
    if (!plan.supported) return;
    AlgorithmWords fastest;
    std::memcpy(fastest.data(), &plan.algorithm, sizeof plan.algorithm);
    if (!take(plan, cache_->agree(key, fastest))) take(plan, fastest);
}

bool CublasLt::matmul(const op::Matmul& a, Stream& stream) {
    const Product product{a};
    // No epilogue supports a bias of a type other than c's.
    if (device_.dry() || !a.bias.present() || a.bias.dtype == a.c.dtype)
        return multiply(product, "matmul", stream);
    notes_.insert(
        fmt::format("cuBLASLt adds no {} bias for {}", name_of(a.bias.dtype), describe("matmul", product)));
    return false;
}

bool CublasLt::scaled_matmul(const op::ScaledMatmul& a, Stream& stream) {
    return multiply(
        {{.c = a.c, .a = a.a, .b = a.b, .transpose_b = true, .accumulate = a.accumulate, .addend = a.addend},
         a.scale_a.as<float>(),
         a.scale_b.as<float>()},
        "scaled_matmul", stream);
}

bool CublasLt::multiply(const Product& product, const char* label, Stream& stream) {
    auto& cuda_stream = static_cast<CudaStream&>(stream);
    workspaces_.at(cuda_stream, kWorkspace);
    if (device_.dry()) return true;
    auto [entry, fresh] = plans_.try_emplace(product.key());
    Plan& plan = entry->second;
    if (fresh) {
        plan = make_plan(product);
        choose(plan, product, cuda_stream);
        if (!plan.supported)
            notes_.insert(fmt::format("cuBLASLt has no kernel for {}", describe(label, product)));
    }
    if (!plan.supported) return false;
    set_pointers(plan, product);
    cuda_stream.begin_span(label);
    api_.check(run(plan, plan.algorithm, product, cuda_stream), "cublasLtMatmul");
    cuda_stream.end_span();
    return true;
}

}  // namespace

std::unique_ptr<MatmulLibrary> make_cublaslt(Device& device, const CublasLtOptions& options,
                                             const CublasLtApi& api) {
    return std::make_unique<CublasLt>(device, options, api);
}

std::unique_ptr<MatmulLibrary> make_cublaslt(Device& device, const CublasLtOptions& options,
                                             std::string& why) {
    CublasLtApi api;
    if (device.dry()) return std::make_unique<CublasLt>(device, options, api);
    if (!load_cublaslt(api, why)) return nullptr;
    try {
        return std::make_unique<CublasLt>(device, options, api);
    } catch (const Error& error) {
        why = error.what();
        return nullptr;
    }
}

std::string cache_folder() {
    const auto variable = [](const char* name) -> std::string {
        const char* const value = std::getenv(name);
        return value ? value : "";
    };
    if (const std::string own = variable("SPEEDRUN_CACHE_DIR"); !own.empty()) return own;
    if (const std::string xdg = variable("XDG_CACHE_HOME"); !xdg.empty()) return xdg + "/speedrun";
    if (const std::string home = variable("HOME"); !home.empty()) return home + "/.cache/speedrun";
    return "";
}

}  // namespace speedrun
