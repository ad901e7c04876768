// Our use of cuBLASLt without a GPU. The real library creates and holds the descriptors. A fake matmul reads
// them back and computes their result on the host. That checks layouts, transposes, strides and epilogues. It
// cannot check which algorithm is fast, or that the library accepts them on a GPU.
// Covers: kernels/cuda/vendor/cublaslt_api.cpp
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/vendor/cublaslt_api.h"
#include "tests/cuda/fake_gpu.h"
#include "tests/errors.h"
#include "tests/kernels/op_test_support.h"
#include "tests/temp_dir.h"

namespace speedrun::testing {
namespace {

template <class Function>
Function real(const char* symbol) {
    static void* const library =
        dlopen(fmt::format("libcublasLt.so.{}", CUDART_VERSION / 1000).c_str(), RTLD_NOW);
    return library ? reinterpret_cast<Function>(dlsym(library, symbol)) : nullptr;
}

struct Layout {
    uint32_t type = 0;
    uint64_t rows = 0, cols = 0;
    int64_t ld = 0;
};

Layout read_layout(cublasLtMatrixLayout_t layout) {
    static const auto get =
        real<decltype(&::cublasLtMatrixLayoutGetAttribute)>("cublasLtMatrixLayoutGetAttribute");
    Layout result;
    size_t written = 0;
    get(layout, CUBLASLT_MATRIX_LAYOUT_TYPE, &result.type, sizeof result.type, &written);
    get(layout, CUBLASLT_MATRIX_LAYOUT_ROWS, &result.rows, sizeof result.rows, &written);
    get(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &result.cols, sizeof result.cols, &written);
    get(layout, CUBLASLT_MATRIX_LAYOUT_LD, &result.ld, sizeof result.ld, &written);
    return result;
}

template <class T>
T read_desc(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute) {
    static const auto get =
        real<decltype(&::cublasLtMatmulDescGetAttribute)>("cublasLtMatmulDescGetAttribute");
    T value{};
    size_t written = 0;
    EXPECT_EQ(get(desc, attribute, &value, sizeof value, &written), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(written, sizeof value);
    return value;
}

double element(const void* data, uint32_t type, int64_t index) {
    if (type == CUDA_R_16BF) return static_cast<float>(static_cast<const Bf16*>(data)[index]);
    if (type == CUDA_R_8F_E4M3) return static_cast<float>(static_cast<const E4m3*>(data)[index]);
    if (type == CUDA_R_8F_E5M2) return static_cast<float>(static_cast<const E5m2*>(data)[index]);
    return static_cast<const float*>(data)[index];
}

int products = 0, zeros = 0;       // matmuls so far, matmuls with the result 0
std::vector<uint64_t> algorithms;  // first word of the algorithm of each matmul
std::vector<uint32_t> alignments;  // alignments of a, b, c and d passed to the heuristic

// D = alpha op(A) op(B) + beta C + bias, column-major, as the descriptors state.
cublasStatus_t fake_matmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                           cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                           const void* beta, const void* c, cublasLtMatrixLayout_t, void* d,
                           cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm,
                           void* workspace, size_t workspace_bytes, cudaStream_t stream) {
    EXPECT_NE(workspace, nullptr);
    EXPECT_GE(workspace_bytes, size_t{32} << 20);
    cudaStreamSynchronize(stream);
    const Layout la = read_layout(a_layout), lb = read_layout(b_layout), ld = read_layout(d_layout);
    const bool ta = read_desc<int32_t>(desc, CUBLASLT_MATMUL_DESC_TRANSA) == CUBLAS_OP_T;
    const bool tb = read_desc<int32_t>(desc, CUBLASLT_MATMUL_DESC_TRANSB) == CUBLAS_OP_T;
    const uint64_t m = ld.rows, n = ld.cols, k = ta ? la.rows : la.cols;
    EXPECT_EQ(ta ? la.cols : la.rows, m);
    EXPECT_EQ(tb ? lb.cols : lb.rows, k);
    EXPECT_EQ(tb ? lb.rows : lb.cols, n);
    const void* bias = nullptr;
    if (read_desc<uint32_t>(desc, CUBLASLT_MATMUL_DESC_EPILOGUE) == CUBLASLT_EPILOGUE_BIAS) {
        EXPECT_EQ(read_desc<uint32_t>(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE), ld.type);
        bias = read_desc<const void*>(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
    }
    double scale = *static_cast<const float*>(alpha);
    if (la.type == CUDA_R_8F_E4M3 || la.type == CUDA_R_8F_E5M2) {
        EXPECT_TRUE(ta && !tb) << "Hopper multiplies 8-bit numbers in one form alone";
        const bool both = la.type == CUDA_R_8F_E4M3 && lb.type == CUDA_R_8F_E4M3;
        EXPECT_EQ(read_desc<int8_t>(desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM), both ? 1 : 0);
        scale *= *read_desc<const float*>(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
        scale *= *read_desc<const float*>(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
    }
    const double keep = *static_cast<const float*>(beta);
    bool zero = true;
    for (uint64_t j = 0; j < n; ++j) {
        for (uint64_t i = 0; i < m; ++i) {
            double sum = 0;
            for (uint64_t p = 0; p < k; ++p) {
                sum += element(a, la.type, static_cast<int64_t>(ta ? p + i * la.ld : i + p * la.ld)) *
                       element(b, lb.type, static_cast<int64_t>(tb ? j + p * lb.ld : p + j * lb.ld));
            }
            const auto index = static_cast<int64_t>(i + j * ld.ld);
            zero = zero && sum == 0;
            sum *= scale;
            if (keep != 0) sum += keep * element(c, ld.type, index);
            if (bias) sum += element(bias, ld.type, static_cast<int64_t>(i));
            if (ld.type == CUDA_R_16BF)
                static_cast<Bf16*>(d)[index] = Bf16(static_cast<float>(sum));
            else
                static_cast<float*>(d)[index] = static_cast<float>(sum);
        }
    }
    ++products;
    zeros += zero;
    algorithms.push_back(algorithm->data[0]);
    // Makes algorithm 3 the fastest.
    std::this_thread::sleep_for(std::chrono::microseconds(algorithm->data[0] == 3 ? 100 : 2000));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t fake_heuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                              cublasLtMatmulPreference_t preference, int requested,
                              cublasLtMatmulHeuristicResult_t results[], int* count) {
    static const auto get =
        real<decltype(&::cublasLtMatmulPreferenceGetAttribute)>("cublasLtMatmulPreferenceGetAttribute");
    uint64_t bytes = 0;
    size_t written = 0;
    get(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes, &written);
    EXPECT_EQ(bytes, uint64_t{32} << 20);
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
        uint32_t alignment = 0;
        get(preference, attribute, &alignment, sizeof alignment, &written);
        alignments.push_back(alignment);
    }
    *count = std::min(requested, 4);
    for (int i = 0; i < *count; ++i) {
        results[i] = {};
        results[i].algo.data[0] = static_cast<uint64_t>(i + 1);
        results[i].state = CUBLAS_STATUS_SUCCESS;
    }
    return CUBLAS_STATUS_SUCCESS;
}

class CublasLtTest : public ::testing::TestWithParam<DType> {
  protected:
    void SetUp() override {
        std::string why;
        if (!load_cublaslt(api_, why)) GTEST_SKIP() << "cuBLASLt is not there: " << why;
        api_.create = [](cublasLtHandle_t* handle) {
            *handle = reinterpret_cast<cublasLtHandle_t>(size_t{8});
            return CUBLAS_STATUS_SUCCESS;
        };
        api_.destroy = [](cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; };
        api_.heuristic = fake_heuristic;
        api_.check_algorithm = [](cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                  cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                  const cublasLtMatmulAlgo_t*,
                                  cublasLtMatmulHeuristicResult_t*) { return CUBLAS_STATUS_SUCCESS; };
        api_.matmul = fake_matmul;
        products = 0;
        zeros = 0;
        algorithms.clear();
    }

    Tensor upload(Device& device, const Matrix& values, DType dtype, int64_t stride,
                  std::vector<Buffer>& keep) {
        keep.emplace_back(device, "test", MemoryCategory::data, values.rows * stride * size_of(dtype));
        for (int64_t r = 0; r < values.rows; ++r) {
            for (int64_t c = 0; c < values.cols; ++c) {
                const auto value = static_cast<float>(values(r, c));
                void* const base = keep.back().data();
                if (dtype == DType::bf16)
                    static_cast<Bf16*>(base)[r * stride + c] = Bf16(value);
                else if (dtype == DType::e4m3)
                    static_cast<E4m3*>(base)[r * stride + c] = E4m3(value);
                else if (dtype == DType::e5m2)
                    static_cast<E5m2*>(base)[r * stride + c] = E5m2(value);
                else
                    static_cast<float*>(base)[r * stride + c] = value;
            }
        }
        return keep.back().tensor(dtype, {values.rows, stride}).column_slice(0, values.cols);
    }

    CublasLtApi api_;
    const TempDir dir_;
    const std::string file_ = dir_.file("algorithms.txt");
};
INSTANTIATE_TEST_SUITE_P(Types, CublasLtTest, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(CublasLtTest, DescribesEveryLayout) {
    CudaDevice device;
    const auto stream = device.create_stream("compute");
    const DType real_type = GetParam();
    const auto library = make_cublaslt(device, CublasLtOptions{.tune = false, .cache_file = ""}, api_);
    constexpr int64_t kM = 5, kN = 7, kK = 11, kPad = 3;
    for (const bool ta : {false, true}) {
        for (const bool tb : {false, true}) {
            for (const bool accumulate : {false, true}) {
                for (const DType out : {real_type, DType::f32}) {
                    for (const bool with_bias : {false, true}) {
                        if (accumulate && with_bias) continue;
                        std::vector<Buffer> keep;
                        const Matrix a = random_matrix(ta ? kK : kM, ta ? kM : kK, 1, real_type);
                        const Matrix b = random_matrix(tb ? kN : kK, tb ? kK : kN, 2, real_type);
                        const Matrix before = random_matrix(kM, kN, 3, out),
                                     bias = random_matrix(1, kN, 4, out);
                        const Tensor c = upload(device, before, out, kN + kPad, keep);
                        Tensor bias_tensor;
                        if (with_bias) {
                            upload(device, bias, out, kN, keep);
                            bias_tensor = keep.back().tensor(out, {kN});
                        }
                        ASSERT_TRUE(library->matmul({.c = c,
                                                     .a = upload(device, a, real_type, a.cols + kPad, keep),
                                                     .b = upload(device, b, real_type, b.cols + kPad, keep),
                                                     .bias = bias_tensor,
                                                     .transpose_a = ta,
                                                     .transpose_b = tb,
                                                     .accumulate = accumulate},
                                                    *stream));
                        for (int64_t i = 0; i < kM; ++i) {
                            for (int64_t j = 0; j < kN; ++j) {
                                double sum = accumulate ? before(i, j) : 0.0;
                                for (int64_t p = 0; p < kK; ++p)
                                    sum += (ta ? a(p, i) : a(i, p)) * (tb ? b(j, p) : b(p, j));
                                if (with_bias) sum += bias(0, j);
                                const double got =
                                    element(c.data, out == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F,
                                            i * c.row_stride + j);
                                ASSERT_NEAR(got, sum,
                                            std::abs(sum) * (out == DType::bf16 ? kBf16Ulp : 1e-6) + 1e-6)
                                    << ta << tb << accumulate << with_bias << " at " << i << "," << j;
                            }
                        }
                    }
                }
            }
        }
    }
}

// c in the type of the test. A second matmul of the same plan has different scales.
TEST_P(CublasLtTest, ScaledFp8Matmuls) {
    CudaDevice device;
    const auto stream = device.create_stream("compute");
    const auto library = make_cublaslt(device, CublasLtOptions{.tune = false, .cache_file = ""}, api_);
    constexpr int64_t kM = 16, kN = 32, kK = 48, kPad = 16;
    for (const DType type_a : {DType::e4m3, DType::e5m2}) {
        for (const float scale : {0.5f, 3.0f}) {
            std::vector<Buffer> keep;
            const Matrix a = random_matrix(kM, kK, 1, type_a), b = random_matrix(kN, kK, 2, DType::e4m3),
                         before = random_matrix(kM, kN, 3, GetParam());
            const Tensor c = upload(device, before, GetParam(), kN, keep);
            upload(device, Matrix(1, 2, scale), DType::f32, 2, keep);
            const Tensor scales = keep.back().tensor(DType::f32, {2, 1});
            scales.as<float>()[1] = 7.0f;
            ASSERT_TRUE(library->scaled_matmul({.c = c,
                                                .a = upload(device, a, type_a, kK + kPad, keep),
                                                .b = upload(device, b, DType::e4m3, kK, keep),
                                                .scale_a = scales.row_slice(0, 1).reshaped({1}),
                                                .scale_b = scales.row_slice(1, 1).reshaped({1}),
                                                .accumulate = true},
                                               *stream));
            for (int64_t i = 0; i < kM; ++i) {
                for (int64_t j = 0; j < kN; ++j) {
                    double sum = 0;
                    for (int64_t p = 0; p < kK; ++p) sum += a(i, p) * b(j, p);
                    sum = sum * scale * 7 + before(i, j);
                    const bool narrow = GetParam() == DType::bf16;
                    ASSERT_NEAR(element(c.data, narrow ? CUDA_R_16BF : CUDA_R_32F, i * kN + j), sum,
                                std::abs(sum) * (narrow ? kBf16Ulp : 1e-6) + 1e-6);
                }
            }
        }
    }
}

TEST_P(CublasLtTest, TimesEachShapeOnce) {
    const Matrix a = random_matrix(4, 6, 1, GetParam()), b = random_matrix(6, 8, 2, GetParam());
    const Matrix c = random_matrix(4, 8, 3, DType::f32);
    for (int run = 0; run < 2; ++run) {
        CudaDevice device;
        const auto stream = device.create_stream("compute");
        const auto library = make_cublaslt(device, CublasLtOptions{.tune = true, .cache_file = file_}, api_);
        std::vector<Buffer> keep;
        const Tensor ta = upload(device, a, GetParam(), 6, keep), tb = upload(device, b, GetParam(), 8, keep),
                     tc = upload(device, c, DType::f32, 8, keep);
        products = 0;
        ASSERT_TRUE(library->matmul({.c = tc, .a = ta, .b = tb, .accumulate = true}, *stream));
        const int first = products;
        if (run == 0)
            EXPECT_GT(first, 4) << "all candidates are timed";
        else
            EXPECT_EQ(first, 1) << "the file knows";
        EXPECT_EQ(algorithms.back(), 3u) << "the fastest";
        double sum = c(1, 2);
        for (int64_t p = 0; p < 6; ++p) sum += a(1, p) * b(p, 2);
        EXPECT_NEAR(tc.as<float>()[1 * 8 + 2], sum, 1e-5) << "timing must not add to c";
        ASSERT_TRUE(library->matmul({.c = tc, .a = ta, .b = tb, .accumulate = true}, *stream));
        EXPECT_EQ(products, first + 1);
    }
}

// Operands are zeros in a warm-up: only the matmul itself reads them.
TEST_P(CublasLtTest, TimesAlgorithmsOnRandomOperands) {
    CudaDevice device;
    const auto stream = device.create_stream("compute");
    const auto library = make_cublaslt(device, CublasLtOptions{.tune = true, .cache_file = ""}, api_);
    const Buffer operands(device, "x", MemoryCategory::data, 4096),
        result(device, "c", MemoryCategory::data, 4096);
    const Tensor x = operands.tensor(GetParam(), {16, 16}), c = result.tensor(GetParam(), {16, 16});
    ASSERT_TRUE(library->matmul({.c = c, .a = x, .b = x}, *stream));
    EXPECT_GT(products, 4);
    EXPECT_EQ(zeros, 1);
}

// cuBLASLt assumes 256 bytes by default.
TEST_P(CublasLtTest, HeuristicReceivesAlignment) {
    CudaDevice device;
    const auto stream = device.create_stream("compute");
    const auto library = make_cublaslt(device, CublasLtOptions{.tune = false, .cache_file = ""}, api_);
    const Matrix values = random_matrix(16, 16, 1, GetParam());
    for (const int64_t stride : {16, 18}) {
        std::vector<Buffer> keep;
        const Tensor x = upload(device, values, GetParam(), stride, keep);
        const Tensor c = upload(device, values, GetParam(), 16, keep);
        alignments.clear();
        ASSERT_TRUE(library->matmul({.c = c, .a = x, .b = x}, *stream));
        const auto expected = static_cast<uint32_t>(stride == 16 ? 16 : 2 * size_of(GetParam()));
        EXPECT_EQ(alignments, std::vector<uint32_t>(4, expected)) << "rows of " << stride;
    }
}

TEST_P(CublasLtTest, DryDeviceCountsEqualMemory) {
    CudaDevice real_device, dry(0, true);
    std::string why;
    int64_t totals[2];
    int i = 0;
    for (CudaDevice* device : {&real_device, &dry}) {
        const auto stream = device->create_stream("compute");
        const auto library = make_cublaslt(*device, CublasLtOptions{.tune = false, .cache_file = ""}, api_);
        const Buffer x(*device, "x", MemoryCategory::data, 4096);
        const Tensor square = x.tensor(GetParam(), {16, 16});
        ASSERT_TRUE(library->matmul({.c = square, .a = square, .b = square}, *stream));
        totals[i++] = device->memory().total();
    }
    EXPECT_EQ(totals[0], totals[1]);
    EXPECT_EQ(totals[0], 4096 + (32 << 20));
}

TEST_P(CublasLtTest, UnsupportedMatmulFallsBackToNativeKernel) {
    api_.heuristic = [](cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                        cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                        cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t*, int* count) {
        *count = 0;
        return CUBLAS_STATUS_NOT_SUPPORTED;
    };
    CudaDevice device;
    const auto stream = device.create_stream("compute");
    CudaOps ops(device, make_cublaslt(device, CublasLtOptions{.tune = true, .cache_file = ""}, api_));
    const Buffer x(device, "x", MemoryCategory::data, 4096);
    const Tensor square = x.tensor(GetParam(), {16, 16});
    const int64_t launches = fake_gpu_pieces_of_work();
    ops.matmul({.c = square, .a = square, .b = square}, *stream);
    EXPECT_EQ(products, 0);
    EXPECT_EQ(fake_gpu_pieces_of_work(), launches + 1);
    EXPECT_EQ(ops.flops(), 2 * 16 * 16 * 16);
    ops.matmul({.c = square, .a = square, .b = square}, *stream);
    ASSERT_EQ(ops.notes().size(), 1u);
    EXPECT_THAT(ops.notes()[0], HasSubstr("cuBLASLt has no kernel for matmul of 16x16x16, "));
}

TEST_P(CublasLtTest, ReportsBiasOfAnotherType) {
    CudaDevice device;
    const auto stream = device.create_stream("compute");
    const auto library = make_cublaslt(device, CublasLtOptions{.tune = false, .cache_file = ""}, api_);
    const Buffer x(device, "x", MemoryCategory::data, 4096);
    const Tensor square = x.tensor(GetParam(), {16, 16});
    const Tensor bias = x.tensor(GetParam() == DType::f32 ? DType::bf16 : DType::f32, {16});
    for (int calls = 0; calls < 2; ++calls)
        EXPECT_FALSE(library->matmul({.c = square, .a = square, .b = square, .bias = bias}, *stream));
    ASSERT_EQ(library->notes().size(), 1u);
    EXPECT_THAT(library->notes()[0], HasSubstr(" bias for matmul of 16x16x16, "));
}

}  // namespace
}  // namespace speedrun::testing
