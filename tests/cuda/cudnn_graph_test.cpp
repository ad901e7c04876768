// The real cuDNN without a GPU. With the description of an H100 and a driver that loads kernels but runs
// none, it plans our attention graphs down to the kernel. That checks that it accepts our shapes, strides,
// masks and the deterministic backward, and their memory; not correctness or speed.
// Covers: kernels/cuda/vendor/cudnn_graphs.cpp
// build: in cudnn_graph_tests
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <utility>

#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/vendor/cudnn_api.h"

namespace speedrun::testing {
namespace {

struct DescribedGpu {
    const char* name;
    int compute_capability, multiprocessors, shared_bytes, threads_per_multiprocessor;
};
// Source: CUDA C programming guide, table of compute capabilities; data sheets for the multiprocessors.
constexpr DescribedGpu kGpus[] = {{"H100", 90, 132, 232448, 2048}, {"A100", 80, 108, 166912, 2048}};

std::ostream& operator<<(std::ostream& out, const DescribedGpu& gpu) {
    return out << gpu.name;
}

std::string properties_of(const DescribedGpu& gpu) {
    return fmt::format(
        R"({{"deviceName":"{}","cudaDeviceId":0,"pciDeviceId":0,"deviceVer":{}0,"driverVer":{},)"
        R"("multiProcessorCount":{},"maxSharedMemoryPerBlockOptin":{},"maxThreadsPerSM":{},)"
        R"("maxSharedMemoryPerBlock":49152,"reservedSharedMemoryPerBlock":1024,"regsPerBlock":65536,)"
        R"("maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,"warpSize":32,)"
        R"("maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"isTccDriver":0,)"
        R"("supportCoopLaunch":1,"totalGlobalMem":85899345920,"l2CacheSize":52428800,)"
        R"("smClockRateKHz":1980000,"memClockRateKHz":2619000}})",
        gpu.name, gpu.compute_capability, CUDART_VERSION, gpu.multiprocessors, gpu.shared_bytes,
        gpu.threads_per_multiprocessor);
}

void* driver() {  // cuDNN finds it by the name libcuda.so.1
    static void* const library = dlopen(SPEEDRUN_FAKE_DRIVER, RTLD_NOW | RTLD_GLOBAL);
    return library;
}

struct Seen {
    int graphs = 0;
    std::string why;  // the last refusal
    CudnnProblem problem;
    int64_t workspace_bytes = 0;
};

class PlannedGraph final : public CudnnGraph {
  public:
    explicit PlannedGraph(std::unique_ptr<CudnnGraph> graph) : graph_(std::move(graph)) {}
    int64_t workspace_bytes() const override { return graph_->workspace_bytes(); }
    void execute(const CudnnPointers&, void*, cudaStream_t) override {}

  private:
    std::unique_ptr<CudnnGraph> graph_;
};

// Records cuDNN's own answers.
class PlanningApi final : public CudnnApi {
  public:
    PlanningApi(std::unique_ptr<CudnnApi> api, Seen& seen) : api_(std::move(api)), seen_(seen) {}
    std::unique_ptr<CudnnGraph> make_graph(const CudnnProblem& problem, std::string& why) override {
        auto graph = api_->make_graph(problem, why);
        seen_.problem = problem;
        seen_.why = why;
        if (!graph) return nullptr;
        ++seen_.graphs;
        seen_.workspace_bytes = graph->workspace_bytes();
        return std::make_unique<PlannedGraph>(std::move(graph));
    }

  private:
    std::unique_ptr<CudnnApi> api_;
    Seen& seen_;
};

class CudnnGraphTest : public ::testing::TestWithParam<DescribedGpu> {
  protected:
    void SetUp() override {
        ASSERT_TRUE(driver()) << dlerror();
        std::string why;
        auto api = load_cudnn_for(properties_of(GetParam()), GetParam().compute_capability, why);
        if (!api) GTEST_SKIP() << "cuDNN 9.8 or later is not there: " << why;
        library_ = make_cudnn(device_, std::make_unique<PlanningApi>(std::move(api), seen_));
        stream_ = device_.create_stream("compute");
    }
    // Tensors in the model's layout; q|k|v and their gradients packed. They are not accessed.
    bool plan(bool backward, const AttentionOptions& o, int64_t sequences) {
        const int64_t rows = sequences * o.sequence_length, width = o.num_heads * o.head_dim;
        void* const somewhere = reinterpret_cast<void*>(size_t{4096});
        const Tensor packed(somewhere, DType::bf16, {rows, 3 * width}),
            x(somewhere, DType::bf16, {rows, width});
        const Tensor q = packed.column_slice(0, width), k = packed.column_slice(width, width),
                     v = packed.column_slice(2 * width, width);
        const Tensor lse(somewhere, DType::f32, {o.num_heads, rows});
        if (!backward)
            return library_->forward(
                {.o = x, .lse = lse, .q = q, .k = k, .v = v, .first_key = {}, .options = o}, *stream_);
        return library_->backward({.dq = q,
                                   .dk = k,
                                   .dv = v,
                                   .dout = x,
                                   .o = x,
                                   .lse = lse,
                                   .q = q,
                                   .k = k,
                                   .v = v,
                                   .first_key = {},
                                   .options = o},
                                  *stream_);
    }

    Seen seen_;
    CudaDevice device_;
    std::unique_ptr<Stream> stream_;
    std::unique_ptr<AttentionLibrary> library_;
};
INSTANTIATE_TEST_SUITE_P(Gpus, CudnnGraphTest, ::testing::ValuesIn(kGpus),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(CudnnGraphTest, EveryShapeHasKernelWithinPlannedMemory) {
    const int& kernels = *static_cast<int*>(dlsym(driver(), "fake_driver_kernels"));
    struct Case {
        int64_t length, sequences, heads, head_dim, window;
    };
    for (const Case& c : {Case{1024, 32, 12, 64, 0}, Case{2048, 16, 6, 128, 0}, Case{2048, 16, 6, 128, 448},
                          Case{200, 3, 2, 64, 66}, Case{130, 1, 2, 128, 0}, Case{65, 2, 3, 64, 5}}) {
        const AttentionOptions o{c.length, c.heads, c.head_dim, c.window, 0.1f, false};
        for (const bool backward : {false, true}) {
            const int before = kernels;
            ASSERT_TRUE(plan(backward, o, c.sequences))
                << "S=" << c.length << " D=" << c.head_dim << " window=" << c.window << ": " << seen_.why;
            EXPECT_GT(kernels, before);
            EXPECT_LE(seen_.workspace_bytes, seen_.problem.workspace_bytes());
        }
    }
    EXPECT_TRUE(library_->notes().empty());
}

// The planner does refuse graphs: otherwise the test above could not fail.
TEST_P(CudnnGraphTest, RejectsImpossibleGraphWithReason) {
    std::string why;
    const auto api = load_cudnn_for(properties_of(GetParam()), GetParam().compute_capability, why);
    CudnnProblem problem{
        .backward = false, .shape = {2, 3, 64, 64}, .strides = {}, .window = 0, .scale = 0.1f};
    for (const CudnnTensor tensor : {kQ, kK, kV, kO}) problem.strides[tensor] = {64, 64 * 128, 128, 1};
    problem.strides[kLse] = {3 * 64, 64, 1, 1};
    EXPECT_TRUE(api->make_graph(problem, why)) << why;
    problem.shape[3] = 60;  // not a multiple of 8
    EXPECT_FALSE(api->make_graph(problem, why));
    EXPECT_FALSE(why.empty());
}

TEST(CudnnDescription, RejectsDamaged) {
    std::string why;
    EXPECT_FALSE(load_cudnn_for("{}", 90, why));
    EXPECT_FALSE(why.empty());
}

}  // namespace
}  // namespace speedrun::testing
