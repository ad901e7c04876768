// Attention by cuDNN on a GPU: against float64, against our kernels on the same inputs, with the same bits in
// every run and inside a graph.
// build: in gpu_tests
#include <algorithm>

#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "tests/kernels/op_test_support.h"

namespace speedrun::testing {
namespace {

struct Case {
    int64_t sequence_length, num_sequences, num_heads, head_dim, window;
    float scale;
};
constexpr Case kCases[] = {
    {128, 2, 3, 64, 0, 0.125f}, {256, 3, 2, 128, 100, 0.1f}, {200, 2, 2, 64, 66, 0.125f},
    {130, 1, 2, 128, 0, 0.1f},  {512, 2, 1, 128, 128, 0.1f}, {65, 4, 2, 64, 5, 0.125f},
};

Backend make_backend(std::unique_ptr<AttentionLibrary> (*library)(Device&)) {
    Backend backend;
    backend.device = std::make_unique<CudaDevice>(0, false);
    backend.ops = make_cuda_ops(*backend.device, nullptr, library(*backend.device));
    return backend;
}

const BackendFactory kNative{
    "hand",
    [](int, bool) { return make_backend(+[](Device&) { return std::unique_ptr<AttentionLibrary>(); }); },
    nullptr};
const BackendFactory kCudnn{"cudnn",
                            [](int, bool) {
                                return make_backend(+[](Device& device) {
                                    std::string why;
                                    return make_cudnn(device, why);
                                });
                            },
                            nullptr};

struct Inputs {
    AttentionOptions options;
    int64_t rows, width;
    Indices first_key;
    Matrix q, k, v, dout;
    reference::AttentionForward forward;

    explicit Inputs(const Case& c)
        : options{c.sequence_length, c.num_heads, c.head_dim, c.window, c.scale, false},
          rows(c.num_sequences * c.sequence_length),
          width(c.num_heads * c.head_dim),
          q(random_matrix(rows, width, 1, DType::bf16)),
          k(random_matrix(rows, width, 2, DType::bf16)),
          v(random_matrix(rows, width, 3, DType::bf16)),
          dout(random_matrix(rows, width, 4, DType::bf16)) {
        for (int64_t i = 0; i < rows; ++i)
            first_key.push_back(static_cast<int32_t>(i / c.sequence_length * c.sequence_length));
        forward = reference::attention_forward(q, k, v, first_key, options);
    }
};

// o, lse, dq, dk, dv; q|k|v and their gradients packed, as in the model. recorded: through a graph, after one
// call outside.
Outputs attend(const BackendFactory& backend, const Inputs& in, bool recorded) {
    Harness h(backend, 1);
    Matrix all(in.rows, 3 * in.width);
    for (int64_t t = 0; t < in.rows; ++t) {
        for (int64_t i = 0; i < in.width; ++i) {
            all(t, i) = in.q(t, i);
            all(t, in.width + i) = in.k(t, i);
            all(t, 2 * in.width + i) = in.v(t, i);
        }
    }
    const Tensor packed = h.input(all, DType::bf16), first_key = h.input(in.first_key);
    const Tensor o = h.output(DType::bf16, {in.rows, in.width});
    const Tensor lse = h.output(DType::f32, {in.options.num_heads, in.rows});
    const Tensor gradients = h.output(DType::bf16, {in.rows, 3 * in.width});
    const Tensor dout = h.input(in.dout, DType::bf16), forward_o = h.input(in.forward.o, DType::bf16);
    const Tensor forward_lse = h.input(in.forward.lse, DType::f32);
    const auto part = [&](const Tensor& x, int64_t i) { return x.column_slice(i * in.width, in.width); };
    const auto call = [&] {
        h.call(op::AttentionForward{.o = o,
                                    .lse = lse,
                                    .q = part(packed, 0),
                                    .k = part(packed, 1),
                                    .v = part(packed, 2),
                                    .first_key = first_key,
                                    .options = in.options});
        h.call(op::AttentionBackward{.dq = part(gradients, 0),
                                     .dk = part(gradients, 1),
                                     .dv = part(gradients, 2),
                                     .dout = dout,
                                     .o = forward_o,
                                     .lse = forward_lse,
                                     .q = part(packed, 0),
                                     .k = part(packed, 1),
                                     .v = part(packed, 2),
                                     .first_key = first_key,
                                     .options = in.options});
    };
    call();
    if (recorded) {
        h.stream().synchronize();
        h.call(op::Fill{.x = gradients, .value = 0.0f});  // unchanged values were not written by the graph
        h.call(op::Fill{.x = o, .value = 0.0f});
        const auto graph = h.device().capture_graph(h.stream(), call);
        graph->launch(h.stream());
    }
    Outputs out = {h.read(o), h.read(lse), h.read(part(gradients, 0)), h.read(part(gradients, 1)),
                   h.read(part(gradients, 2))};
    EXPECT_TRUE(h.ops().notes().empty()) << h.ops().notes().front();
    h.finish();
    return out;
}

class CudnnGpuTest : public ::testing::Test {
  protected:
    void SetUp() override {
        const auto device = std::make_unique<CudaDevice>(0, false);
        std::string why;
        if (!make_cudnn(*device, why)) GTEST_SKIP() << "cuDNN is not there: " << why;
    }
};

constexpr const char* kNames[] = {"o", "lse", "dq", "dk", "dv"};

// Tolerances of tests/kernels/attention_test.cpp for bf16, for the same reasons: cuDNN also rounds
// probabilities and their gradients to bf16 for the second matmuls.
TEST_F(CudnnGpuTest, AgreesWithFloat64AndNativeKernels) {
    for (const Case& c : kCases) {
        SCOPED_TRACE(fmt::format("S={} sequences={} H={} D={} window={}", c.sequence_length, c.num_sequences,
                                 c.num_heads, c.head_dim, c.window));
        const Inputs in(c);
        const auto expected =
            reference::attention_backward(in.dout, in.q, in.k, in.v, in.first_key, in.options);
        Tolerance rounded = reduction_of_rounded(DType::bf16, c.sequence_length + c.head_dim);
        const double largest_score =
            std::max(1.0, 3.0 * static_cast<double>(c.scale) * std::sqrt(c.head_dim));
        rounded.scaled += 16 * kF32Roundoff * largest_score;
        Tolerance of_lse = reduction_of_rounded(DType::f32, c.sequence_length + c.head_dim);
        of_lse.scaled += 16 * kF32Roundoff * largest_score;
        of_lse.absolute = 16 * kF32Roundoff;
        Tolerance of_scores = rounded;
        of_scores.absolute = 8 * c.scale * std::sqrt(c.head_dim) * kBf16Ulp;
        const Matrix* const exact[] = {&in.forward.o, &in.forward.lse, &expected.dq, &expected.dk,
                                       &expected.dv};
        const Tolerance tolerances[] = {rounded, of_lse, of_scores, of_scores, rounded};
        const Outputs cudnn = attend(kCudnn, in, false), native = attend(kNative, in, false);
        for (int i = 0; i < 5; ++i) {
            expect_close(cudnn[i], *exact[i], tolerances[i], std::string("cuDNN ") + kNames[i]);
            // Both may err by the tolerance, in opposite directions.
            Tolerance twice = tolerances[i];
            twice.relative *= 2, twice.scaled *= 2, twice.absolute *= 2;
            expect_close(cudnn[i], native[i], twice, std::string("cuDNN against our own ") + kNames[i]);
        }
    }
}

TEST_F(CudnnGpuTest, RerunsAndGraphsAreBitwiseEqual) {
    for (const Case& c : kCases) {
        const Inputs in(c);
        const Outputs first = attend(kCudnn, in, false);
        for (const bool recorded : {false, true, true}) {
            const Outputs again = attend(kCudnn, in, recorded);
            for (int i = 0; i < 5; ++i) expect_same_bits(again[i], first[i], kNames[i]);
        }
    }
}

}  // namespace
}  // namespace speedrun::testing
