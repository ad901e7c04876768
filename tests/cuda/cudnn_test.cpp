// Our side of attention by cuDNN without a GPU. A fake cuDNN computes on the host, from dimensions, strides,
// window and scale. That checks how our tensors are described, and when our own kernels run.
// tests/cuda/cudnn_graph_test.cpp checks cuDNN's interpretation.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/vendor/cudnn_api.h"
#include "tests/cuda/fake_gpu.h"
#include "tests/errors.h"
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {
namespace {

struct Calls {
    int made = 0, executed = 0;
    std::string refusal;        // answer of make_graph; empty: accepts
    int64_t extra_scratch = 0;  // scratch bytes of a graph beyond the planned ones
};

class HostGraph final : public CudnnGraph {
  public:
    HostGraph(const CudnnProblem& problem, Calls& calls) : problem_(problem), calls_(calls) {}
    int64_t workspace_bytes() const override { return problem_.workspace_bytes() + calls_.extra_scratch; }
    void execute(const CudnnPointers& pointers, void* workspace, cudaStream_t stream) override {
        EXPECT_NE(workspace, nullptr);
        ++calls_.executed;
        cudaStreamSynchronize(stream);
        pointers_ = pointers;
        for (int64_t b = 0; b < problem_.shape[0]; ++b)
            for (int64_t h = 0; h < problem_.shape[1]; ++h)
                problem_.backward ? backward(b, h) : forward(b, h);
    }

  private:
    Bf16& at(CudnnTensor tensor, int64_t b, int64_t h, int64_t s, int64_t d) const {
        return static_cast<Bf16*>(pointers_[tensor])[offset(tensor, b, h, s, d)];
    }
    float& lse(int64_t b, int64_t h, int64_t s) const {
        return static_cast<float*>(pointers_[kLse])[offset(kLse, b, h, s, 0)];
    }
    int64_t offset(CudnnTensor tensor, int64_t b, int64_t h, int64_t s, int64_t d) const {
        const CudnnDims& strides = problem_.strides[tensor];
        return b * strides[0] + h * strides[1] + s * strides[2] + d * strides[3];
    }
    double dot(CudnnTensor x, int64_t i, CudnnTensor y, int64_t j, int64_t b, int64_t h) const {
        double sum = 0;
        for (int64_t d = 0; d < problem_.shape[3]; ++d)
            sum += static_cast<double>(static_cast<float>(at(x, b, h, i, d))) *
                   static_cast<float>(at(y, b, h, j, d));
        return sum;
    }
    int64_t first_of(int64_t i) const {
        return problem_.window > 0 ? std::max<int64_t>(0, i - problem_.window + 1) : 0;
    }
    void forward(int64_t b, int64_t h) const {
        for (int64_t i = 0; i < problem_.shape[2]; ++i) {
            double sum = 0;
            std::vector<double> o(static_cast<size_t>(problem_.shape[3]));
            for (int64_t j = first_of(i); j <= i; ++j) {
                const double weight = std::exp(problem_.scale * dot(kQ, i, kK, j, b, h));
                sum += weight;
                for (size_t d = 0; d < o.size(); ++d)
                    o[d] += weight * static_cast<float>(at(kV, b, h, j, static_cast<int64_t>(d)));
            }
            for (size_t d = 0; d < o.size(); ++d)
                at(kO, b, h, i, static_cast<int64_t>(d)) = Bf16(static_cast<float>(o[d] / sum));
            lse(b, h, i) = static_cast<float>(std::log(sum));
        }
    }
    void backward(int64_t b, int64_t h) const {
        const int64_t length = problem_.shape[2], width = problem_.shape[3];
        Matrix dq(length, width), dk(length, width), dv(length, width);
        for (int64_t i = 0; i < length; ++i) {
            const double delta = dot(kDout, i, kO, i, b, h);
            for (int64_t j = first_of(i); j <= i; ++j) {
                const double p = std::exp(problem_.scale * dot(kQ, i, kK, j, b, h) - lse(b, h, i));
                const double ds = problem_.scale * p * (dot(kDout, i, kV, j, b, h) - delta);
                for (int64_t d = 0; d < width; ++d) {
                    dq(i, d) += ds * static_cast<float>(at(kK, b, h, j, d));
                    dk(j, d) += ds * static_cast<float>(at(kQ, b, h, i, d));
                    dv(j, d) += p * static_cast<float>(at(kDout, b, h, i, d));
                }
            }
        }
        for (int64_t s = 0; s < length; ++s) {
            for (int64_t d = 0; d < width; ++d) {
                at(kDq, b, h, s, d) = Bf16(static_cast<float>(dq(s, d)));
                at(kDk, b, h, s, d) = Bf16(static_cast<float>(dk(s, d)));
                at(kDv, b, h, s, d) = Bf16(static_cast<float>(dv(s, d)));
            }
        }
    }

    const CudnnProblem problem_;
    Calls& calls_;
    CudnnPointers pointers_{};
};

class HostApi final : public CudnnApi {
  public:
    explicit HostApi(Calls& calls) : calls_(calls) {}
    std::unique_ptr<CudnnGraph> make_graph(const CudnnProblem& problem, std::string& why) override {
        ++calls_.made;
        why = calls_.refusal;
        return why.empty() ? std::make_unique<HostGraph>(problem, calls_) : nullptr;
    }

  private:
    Calls& calls_;
};

// q|k|v and their gradients packed, o and dout among other columns: each stride differs from the next.
struct Tensors {
    int64_t rows, width, value_width;
    DType dtype;
    Matrix q, k, v, dout;
    std::vector<Buffer> keep;
    Tensor tq, tk, tv, to, tdout, lse, first_key, dq, dk, dv;

    // value_dim: 0: head_dim
    Tensors(Device& device, const AttentionOptions& o, int64_t sequences, DType type, int64_t value_dim = 0)
        : rows(sequences * o.sequence_length),
          width(o.num_heads * o.head_dim),
          value_width(value_dim > 0 ? o.num_heads * value_dim : width),
          dtype(type),
          q(random_matrix(rows, width, 1, type)),
          k(random_matrix(rows, width, 2, type)),
          v(random_matrix(rows, value_width, 3, type)),
          dout(random_matrix(rows, value_width, 4, type)) {
        const Tensor packed = make(device, 2 * width + value_width),
                     gradients = make(device, 2 * width + value_width);
        tq = fill(packed.column_slice(0, width), q);
        tk = fill(packed.column_slice(width, width), k);
        tv = fill(packed.column_slice(2 * width, value_width), v);
        dq = gradients.column_slice(0, width);
        dk = gradients.column_slice(width, width);
        dv = gradients.column_slice(2 * width, value_width);
        to = make(device, value_width + 8).column_slice(0, value_width);
        tdout = fill(make(device, value_width + 16).column_slice(8, value_width), dout);
        keep.emplace_back(device, "lse", MemoryCategory::data, o.num_heads * rows * 4);
        lse = keep.back().tensor(DType::f32, {o.num_heads, rows});
        keep.emplace_back(device, "first_key", MemoryCategory::data, rows * 4);
        first_key = keep.back().tensor(DType::i32, {rows});
    }
    op::AttentionForward forward_of(const AttentionOptions& o) const {
        return {.o = to, .lse = lse, .q = tq, .k = tk, .v = tv, .first_key = first_key, .options = o};
    }
    op::AttentionBackward backward_of(const AttentionOptions& o) const {
        return {.dq = dq,
                .dk = dk,
                .dv = dv,
                .dout = tdout,
                .o = to,
                .lse = lse,
                .q = tq,
                .k = tk,
                .v = tv,
                .first_key = first_key,
                .options = o};
    }
    void forward(Ops& ops, const AttentionOptions& o, Stream& stream) const {
        ops.attention_forward(forward_of(o), stream);
    }
    void backward(Ops& ops, const AttentionOptions& o, Stream& stream) const {
        ops.attention_backward(backward_of(o), stream);
    }
    Matrix read(const Tensor& t) const {
        Matrix result(t.rows(), t.cols());
        for (int64_t r = 0; r < result.rows; ++r) {
            for (int64_t c = 0; c < result.cols; ++c) {
                const int64_t at = r * t.row_stride + c;
                result(r, c) =
                    t.dtype == DType::f32 ? t.as<float>()[at] : static_cast<float>(t.as<Bf16>()[at]);
            }
        }
        return result;
    }

  private:
    Tensor make(Device& device, int64_t cols) {
        keep.emplace_back(device, "test", MemoryCategory::data, rows * cols * size_of(dtype));
        return keep.back().tensor(dtype, {rows, cols});
    }
    Tensor fill(Tensor t, const Matrix& values) const {
        if (dtype == DType::f32) return t;  // only cuDNN's results are compared
        for (int64_t r = 0; r < values.rows; ++r)
            for (int64_t c = 0; c < values.cols; ++c)
                t.as<Bf16>()[r * t.row_stride + c] = Bf16(static_cast<float>(values(r, c)));
        return t;
    }
};

class CudnnTest : public ::testing::Test {
  protected:
    CudnnTest() : stream_(device_.create_stream("compute")) {}
    CudaOps ops() {
        return CudaOps(device_, nullptr, make_cudnn(device_, std::make_unique<HostApi>(calls_)));
    }

    Calls calls_;
    CudaDevice device_;
    std::unique_ptr<Stream> stream_;
};

TEST_F(CudnnTest, GraphsDescribeTensors) {
    for (const AttentionOptions o :
         {AttentionOptions{20, 3, 64, 0, 0.125f, false}, AttentionOptions{33, 2, 128, 7, 0.1f, false},
          AttentionOptions{16, 1, 64, 16, 0.2f, false}}) {
        SCOPED_TRACE(
            fmt::format("S={} H={} D={} window={}", o.sequence_length, o.num_heads, o.head_dim, o.window));
        CudaOps cuda = ops();
        const Tensors t(device_, o, 2, DType::bf16);
        Indices first_key;
        for (int64_t i = 0; i < t.rows; ++i)
            first_key.push_back(static_cast<int32_t>(i / o.sequence_length * o.sequence_length));
        calls_ = {};
        t.forward(cuda, o, *stream_);
        t.backward(cuda, o, *stream_);
        EXPECT_EQ(calls_.executed, 2);
        EXPECT_TRUE(cuda.notes().empty());
        const auto forward = reference::attention_forward(t.q, t.k, t.v, first_key, o);
        const auto backward = reference::attention_backward(t.dout, t.q, t.k, t.v, first_key, o);
        // Both sides compute in float64. The result is rounded once. The gradients of q and k are differences
        // of dout·v and dout·o, and o was rounded.
        const Tolerance once{.relative = kBf16Ulp, .scaled = 1e-6},
            twice{.relative = kBf16Ulp, .scaled = 0.02};
        expect_close(t.read(t.to), forward.o, once, "o");
        expect_close(t.read(t.lse), forward.lse, {.relative = 1e-6, .scaled = 1e-6}, "lse");
        expect_close(t.read(t.dq), backward.dq, twice, "dq");
        expect_close(t.read(t.dk), backward.dk, twice, "dk");
        expect_close(t.read(t.dv), backward.dv, once, "dv");
    }
}

TEST_F(CudnnTest, BuildsOneGraphPerShape) {
    const AttentionOptions o{16, 2, 64, 0, 0.1f, false};
    CudaOps cuda = ops();
    const Tensors t(device_, o, 2, DType::bf16);
    for (int i = 0; i < 3; ++i) {
        t.forward(cuda, o, *stream_);
        t.backward(cuda, o, *stream_);
    }
    AttentionOptions windowed = o;
    windowed.window = 4;
    t.forward(cuda, windowed, *stream_);
    windowed.window = 100;  // no limit: there are 16 keys
    t.forward(cuda, windowed, *stream_);
    EXPECT_EQ(calls_.made, 3);
    EXPECT_EQ(calls_.executed, 8);
    EXPECT_EQ(cuda.flops(), 2 * 2 * 64 * (4 * (3 * 136 + 136 + 58) + 8 * 3 * 136));
}

// Calls for our own kernels: they are launched, cuDNN is not called, and a note appears once.
TEST_F(CudnnTest, NativeKernelsRunIfUnsupported) {
    struct Case {
        AttentionOptions options;
        DType dtype;
        const char* said;
        int64_t value_dim = 0;
        size_t notes = 1;
    };
    for (const Case& c : {Case{{16, 2, 64, 0, 0.1f, false}, DType::f32, "bf16, not f32"},
                          Case{{16, 2, 32, 0, 0.1f, false}, DType::bf16, "128, not 32"},
                          Case{{16, 2, 64, 0, 0.1f, true}, DType::bf16, "data.document_mask"},
                          Case{{16, 2, 64, 0, 0.1f, false}, DType::bf16, "not 64 and 128", 128},
                          Case{{16, 2, 64, 0, 0.1f, false}, DType::bf16, "without tensor cores", 96, 2}}) {
        CudaOps cuda = ops();
        const Tensors t(device_, c.options, 2, c.dtype, c.value_dim);
        const int64_t before = fake_gpu_pieces_of_work();
        for (int i = 0; i < 2; ++i) {
            t.forward(cuda, c.options, *stream_);
            t.backward(cuda, c.options, *stream_);
        }
        EXPECT_EQ(fake_gpu_pieces_of_work(), before + 2 * (1 + 4)) << c.said;
        ASSERT_EQ(cuda.notes().size(), c.notes) << c.said;
        EXPECT_THAT(cuda.notes().back(), HasSubstr(c.said));
    }
    EXPECT_EQ(calls_.made, 0);
}

TEST_F(CudnnTest, FallsBackForUnalignedTensorsAndPlaces) {
    const AttentionOptions o{16, 2, 64, 0, 0.1f, false};
    CudaOps cuda = ops();
    Tensors t(device_, o, 2, DType::bf16);
    t.tq.data = t.tq.as<Bf16>() + 4;
    t.forward(cuda, o, *stream_);
    EXPECT_EQ(calls_.made, 0);
    ASSERT_EQ(cuda.notes().size(), 1u);
    EXPECT_THAT(cuda.notes()[0], HasSubstr("16 bytes"));
    op::AttentionForward placed = t.forward_of(o);
    placed.q = placed.k;
    placed.place = t.first_key;
    cuda.attention_forward(placed, *stream_);
    EXPECT_EQ(calls_.made, 0);
    ASSERT_EQ(cuda.notes().size(), 2u);
    EXPECT_THAT(cuda.notes()[1], HasSubstr("given places"));
}

TEST_F(CudnnTest, RefusedGraphFallsBack) {
    const AttentionOptions o{16, 2, 64, 0, 0.1f, false};
    const Tensors t(device_, o, 2, DType::bf16);
    for (const bool refuses : {true, false}) {
        calls_ = {};
        if (refuses)
            calls_.refusal = "no engine";
        else
            calls_.extra_scratch = 1;
        CudaOps cuda = ops();
        const int64_t before = fake_gpu_pieces_of_work();
        for (int i = 0; i < 2; ++i) t.forward(cuda, o, *stream_);
        EXPECT_EQ(calls_.made, 1) << "a refusal is remembered";
        EXPECT_EQ(calls_.executed, 0);
        EXPECT_EQ(fake_gpu_pieces_of_work(), before + 2);
        ASSERT_EQ(cuda.notes().size(), 1u);
        EXPECT_THAT(cuda.notes()[0], HasSubstr(refuses ? "no engine" : "scratch memory"));
    }
}

// dP of 2 heads and one sequence of 32,768 would take 4 GiB.
TEST_F(CudnnTest, FallsBackForGigabytesOfScratch) {
    const AttentionOptions o{32768, 2, 64, 0, 0.1f, false};
    CudaDevice dry(0, true);
    const auto stream = dry.create_stream("compute");
    const auto library = make_cudnn(dry, std::unique_ptr<CudnnApi>());
    const Tensor x(nullptr, DType::bf16, {32768, 128}), lse(nullptr, DType::f32, {2, 32768});
    EXPECT_TRUE(library->forward({.o = x, .lse = lse, .q = x, .k = x, .v = x, .first_key = {}, .options = o},
                                 *stream));
    EXPECT_FALSE(library->backward({.dq = x,
                                    .dk = x,
                                    .dv = x,
                                    .dout = x,
                                    .o = x,
                                    .lse = lse,
                                    .q = x,
                                    .k = x,
                                    .v = x,
                                    .first_key = {},
                                    .options = o},
                                   *stream));
    ASSERT_EQ(library->notes().size(), 1u);
    EXPECT_THAT(library->notes()[0], HasSubstr("4.0 GiB"));
}

TEST_F(CudnnTest, DryDeviceCountsEqualMemory) {
    const AttentionOptions o{100, 2, 64, 0, 0.1f, false};
    CudaDevice dry(0, true);
    int64_t held[2];
    int i = 0;
    for (CudaDevice* device : {&device_, &dry}) {
        const auto stream = device->create_stream("compute");
        const auto library = make_cudnn(
            *device, device->dry() ? std::unique_ptr<CudnnApi>() : std::make_unique<HostApi>(calls_));
        const Tensors t(device_, o, 2, DType::bf16);
        const int64_t before = device->memory().total();
        ASSERT_TRUE(library->forward(t.forward_of(o), *stream));
        ASSERT_TRUE(library->backward(t.backward_of(o), *stream));
        held[i++] = device->memory().total() - before;
    }
    EXPECT_EQ(held[0], held[1]);
    EXPECT_EQ(held[0], 4 * (128 * 128 * 2 + 100 * 4) + (1 << 20));
}

TEST_F(CudnnTest, CaptureAllocatesNothing) {
    const AttentionOptions o{16, 2, 64, 0, 0.1f, false};
    CudaOps cuda = ops();
    const Tensors t(device_, o, 2, DType::bf16);
    const auto both = [&] {
        t.forward(cuda, o, *stream_);
        t.backward(cuda, o, *stream_);
    };
    both();
    device_.capture_graph(*stream_, [] {});  // graphs are tested before the first one
    const int64_t allocations = fake_gpu_allocations();
    ASSERT_TRUE(device_.capture_graph(*stream_, both));
    EXPECT_EQ(calls_.executed, 4);
    EXPECT_EQ(fake_gpu_allocations(), allocations);
}

TEST_F(CudnnTest, MissingCudnnIsReported) {
    if (built_with_cudnn()) {
        std::string why;
        if (load_cudnn(90, why)) GTEST_SKIP() << "cuDNN and a GPU are there";
        const CudaBackend backend =
            make_cuda_backend({.libraries = {MatmulKind::native, AttentionKind::cudnn}});
        ASSERT_EQ(backend.notes.size(), 1u);
        EXPECT_THAT(backend.notes[0], HasSubstr("cuDNN cannot be used (" + why));
        return;
    }
    expect_error(ExitCode::usage, {"CUDNN_FRONTEND_INCLUDE_DIR"}, [&] {
        make_cuda_backend({.libraries = {MatmulKind::native, AttentionKind::cudnn}});
    });
}

}  // namespace
}  // namespace speedrun::testing
