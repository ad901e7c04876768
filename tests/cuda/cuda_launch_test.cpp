// Kernel launch with the fake runtime: limits, shared memory, ranks that are threads.
// Covers: kernels/cuda/blocks/launch.cu kernels/cuda/blocks/tensor_map.cu kernels/cuda/early_launch.cpp
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "tests/cuda/fake_gpu.h"
#include "tests/cuda/ptxas_log.h"
#include "tests/errors.h"

namespace speedrun::testing {
namespace {

class CudaLaunchTest : public ::testing::Test {
  protected:
    ~CudaLaunchTest() override { set_fake_gpu({}); }
};

// A launch that the hardware would refuse names the kernel and the line of the launch.
TEST_F(CudaLaunchTest, LaunchErrorNamesKernelAndLine) {
    CudaDevice device;
    CudaOps ops(device);
    const auto stream = device.create_stream("compute");
    const Buffer x(device, "x", MemoryCategory::activations, 64);
    set_fake_gpu({.refuses_launches = true});
    const std::string message = error_of(
        ExitCode::failure, [&] { ops.fill({.x = x.tensor(DType::f32, {16}), .value = 0.0f}, *stream); });
    EXPECT_THAT(message, HasSubstr("utilities.cu:"));
    EXPECT_THAT(message, HasSubstr("cudaErrorInvalidConfiguration"));
}

// Arguments of a kind are one tensor: only shapes matter here. keys: q, k, dq, dk; values: v, o, dv, dout.
op::AttentionBackward backward_of(const Tensor& keys, const Tensor& values, const Tensor& lse,
                                  const Tensor& first_key, const AttentionOptions& options,
                                  const Tensor& place = {}) {
    return {.dq = keys,
            .dk = keys,
            .dv = values,
            .dout = values,
            .o = values,
            .lse = lse,
            .q = keys,
            .k = keys,
            .v = values,
            .first_key = first_key,
            .place = place,
            .options = options};
}

// A captured launch needs the limit that its kernel had then.
TEST_F(CudaLaunchTest, SharedMemoryLimitNeverShrinks) {
    CudaDevice device;
    CudaOps ops(device);
    const auto stream = device.create_stream("compute");
    constexpr int64_t kLength = 32, kWide = 128, kNarrow = 112;
    const std::string kKernel = "attention_backward_keys_kernelIf";
    const Buffer x(device, "x", MemoryCategory::activations, 4 * kLength * kWide);
    const Buffer y(device, "y", MemoryCategory::activations, 4 * kLength);
    int64_t allowed = 0;
    for (const int64_t dim : {kWide, kNarrow}) {
        const Tensor rows = x.tensor(DType::f32, {kLength, dim}), line = y.tensor(DType::f32, {1, kLength});
        forget_fake_gpu_launches();
        ops.attention_backward(
            backward_of(rows, rows, line, y.tensor(DType::i32, {kLength}), {kLength, 1, dim, 0, 0.1f}),
            *stream);
        int64_t taken = 0;
        for (const auto& [name, launch] : fake_gpu_launches())
            if (name.find(kKernel) != std::string::npos) taken = launch.shared_bytes;
        const int64_t now = fake_gpu_allowed_shared(kKernel);
        EXPECT_GT(taken, 48 << 10) << "48 KiB or less need no attribute";
        EXPECT_GE(now, allowed) << "head dimension " << dim;
        if (dim == kNarrow) {
            EXPECT_LT(taken, now) << "nothing could shrink";
        }
        allowed = now;
    }
}

// Attention of one row of 32 tokens and one head, forward and backward; returns the launched kernels.
struct AttentionCase {
    DType type = DType::bf16;
    HeadWidths widths = {64, 64};
    bool places = false;
    float scale = 0.125f;
};
std::set<std::string> attention_launches(CudaBackend& backend, const AttentionCase& c) {
    constexpr int64_t kLength = 32;
    const auto stream = backend.device->create_stream("compute");
    const auto [head_dim, value_dim] = c.widths;
    const Buffer x(*backend.device, "x", MemoryCategory::activations,
                   4 * kLength * std::max(head_dim, value_dim));
    const Buffer y(*backend.device, "y", MemoryCategory::activations, 4 * kLength);
    const Tensor keys = x.tensor(c.type, {kLength, head_dim}),
                 values = x.tensor(c.type, {kLength, value_dim}), line = y.tensor(DType::f32, {1, kLength}),
                 indices = y.tensor(DType::i32, {kLength}), place = c.places ? indices : Tensor();
    const AttentionOptions options{
        .sequence_length = kLength, .num_heads = 1, .head_dim = head_dim, .scale = c.scale};
    forget_fake_gpu_launches();
    backend.ops->attention_forward({.o = values,
                                    .lse = line,
                                    .q = keys,
                                    .k = keys,
                                    .v = values,
                                    .first_key = indices,
                                    .place = place,
                                    .options = options},
                                   *stream);
    backend.ops->attention_backward(backward_of(keys, values, line, indices, options, place), *stream);
    std::set<std::string> names;
    for (const auto& [mangled, launch] : fake_gpu_launches()) names.insert(short_name(mangled));
    return names;
}

TEST_F(CudaLaunchTest, WgmmaRunsOnHopperOnly) {
    const CudaOptions options{.libraries = {MatmulKind::native, AttentionKind::wgmma}};
    CudaBackend hopper = make_cuda_backend(options);
    EXPECT_TRUE(hopper.notes.empty());
    const std::string attention = "attention::attention_";
    for (const HeadWidths widths : {HeadWidths{64, 64}, {64, 128}, {96, 96}, {96, 128}, {128, 128}}) {
        const std::string size = fmt::format("wgmma_kernel<{}, {}>", widths.head_dim, widths.value_dim);
        EXPECT_EQ(attention_launches(hopper, {.widths = widths}),
                  (std::set<std::string>{attention + "visible_kernel", attention + "forward_" + size,
                                         attention + "backward_keys_" + size,
                                         attention + "backward_queries_" + size}));
    }
    EXPECT_TRUE(hopper.ops->notes().empty());
    const std::map<std::string, AttentionCase> left = {{"another type than bf16", {.type = DType::f32}},
                                                       {"heads of other widths", {.widths = {64, 96}}},
                                                       {"queries at given places", {.places = true}},
                                                       {"a scale that is not positive", {.scale = -1}}};
    for (const auto& [why, c] : left) {
        for (const std::string& kernel : attention_launches(hopper, c))
            EXPECT_EQ(kernel.find("wgmma"), std::string::npos) << kernel << ": " << why;
        std::string all;
        for (const std::string& note : hopper.ops->notes()) all += note + "\n";
        EXPECT_THAT(all, HasSubstr(why));
    }
    set_fake_gpu({.major = 8, .minor = 0});
    CudaBackend ampere = make_cuda_backend(options);
    ASSERT_EQ(ampere.notes.size(), 1u);
    EXPECT_THAT(ampere.notes[0], HasSubstr("fake GPU has compute capability 8.0, not 9.0"));
    for (const std::string& kernel : attention_launches(ampere, {}))
        EXPECT_EQ(kernel.find("wgmma"), std::string::npos);
}

// Returns the kernels of a matmul of 64 x 64 outputs with relu² or, without squares, alone.
std::set<std::string> matmul_launches(CudaBackend& backend, int64_t k, bool squares,
                                      DType type = DType::bf16) {
    constexpr int64_t kSide = 64;
    const auto stream = backend.device->create_stream("compute");
    const Buffer a(*backend.device, "a", MemoryCategory::activations, 4 * kSide * k);
    const Buffer c(*backend.device, "c", MemoryCategory::activations, 4 * kSide * kSide);
    const Tensor rows = a.tensor(type, {kSide, k});
    forget_fake_gpu_launches();
    backend.ops->matmul({.c = c.tensor(type, {kSide, kSide}),
                         .a = rows,
                         .b = rows,
                         .transpose_b = true,
                         .epilogue = {.relu_squared = squares}},
                        *stream);
    std::set<std::string> names;
    for (const auto& [mangled, launch] : fake_gpu_launches()) {
        const std::string name = short_name(mangled);
        names.insert(name.substr(0, name.find('<')));
    }
    return names;
}

// Our matmul by wgmma runs on compute capability 9.0, for matmuls with an epilogue and an inner dimension for which it wins.
TEST_F(CudaLaunchTest, WgmmaMatmulRunsOnHopperOnly) {
    const CudaOptions options{.libraries = {.products = MatmulKind::wgmma}};
    using Names = std::set<std::string>;
    const Names ours = {"product_wgmma::product_wgmma_kernel"},
                pass = {"product::matmul_mma_kernel", "map_kernel"};
    const auto of_wgmma = [](const std::vector<std::string>& notes) {
        return std::count_if(notes.begin(), notes.end(),
                             [](const std::string& note) { return note.find("wgmma") != std::string::npos; });
    };
    CudaBackend hopper = make_cuda_backend(options);
    EXPECT_EQ(of_wgmma(hopper.notes), 0);
    EXPECT_EQ(matmul_launches(hopper, 64, true), ours);
    EXPECT_EQ(matmul_launches(hopper, 64, false), Names{"product::matmul_mma_kernel"});
    EXPECT_EQ(matmul_launches(hopper, 64, true, DType::f32),
              (Names{"product::matmul_f32_kernel", "map_kernel"}));
    EXPECT_EQ(of_wgmma(hopper.ops->notes()), 0);
    EXPECT_EQ(matmul_launches(hopper, 52, true), pass);  // rows of 104 bytes
    EXPECT_EQ(of_wgmma(hopper.ops->notes()), 1);
    CudaBackend portable = make_cuda_backend({.libraries = {.products = MatmulKind::native}});
    EXPECT_EQ(matmul_launches(portable, 64, true), pass);
    set_fake_gpu({.major = 8, .minor = 0});
    CudaBackend ampere = make_cuda_backend(options);
    EXPECT_EQ(of_wgmma(ampere.notes), 1);
    EXPECT_EQ(matmul_launches(ampere, 64, true), pass);
}

// Bulk copies read slices of wider rows, sequence by sequence.
TEST_F(CudaLaunchTest, TensorMapsDescribeSlicesOfRows) {
    CudaBackend backend = make_cuda_backend({.libraries = {MatmulKind::native, AttentionKind::wgmma}});
    constexpr int64_t kLength = 32, kWidth = 128;
    const auto stream = backend.device->create_stream("compute");
    const Buffer x(*backend.device, "x", MemoryCategory::activations, 2 * kLength * 3 * kWidth * 2);
    const Buffer y(*backend.device, "y", MemoryCategory::activations, 2 * 2 * kLength * 4);
    const Tensor qkv = x.tensor(DType::bf16, {2 * kLength, 3 * kWidth});
    for (const auto& [head_dim, value_dim] : {HeadWidths{64, 64}, {64, 128}, {128, 128}}) {
        const int64_t heads = kWidth / value_dim, width = heads * head_dim;
        forget_fake_gpu_launches();
        backend.ops->attention_forward({.o = qkv.column_slice(0, kWidth),
                                        .lse = y.tensor(DType::f32, {heads, 2 * kLength}),
                                        .q = qkv.column_slice(0, width),
                                        .k = qkv.column_slice(kWidth, width),
                                        .v = qkv.column_slice(2 * kWidth, kWidth),
                                        .first_key = y.tensor(DType::i32, {2 * kLength}),
                                        .options = {kLength, heads, head_dim, 0, 0.1f}},
                                       *stream);
        std::vector<FakeTensorMap> maps = fake_gpu_tensor_maps();
        std::sort(maps.begin(), maps.end(), [](const auto& a, const auto& b) { return a.data < b.data; });
        ASSERT_EQ(maps.size(), 3u);
        for (size_t i = 0; i < maps.size(); ++i) {
            EXPECT_EQ(maps[i].data,
                      static_cast<const char*>(qkv.data) + static_cast<int64_t>(i) * kWidth * 2);
            EXPECT_EQ(maps[i].sizes, (std::vector<int64_t>{i < 2 ? width : kWidth, kLength, 2}));
            EXPECT_EQ(maps[i].strides, (std::vector<int64_t>{3 * kWidth * 2, kLength * 3 * kWidth * 2}));
            EXPECT_EQ(maps[i].box, (std::vector<int64_t>{64, 128, 1}));
            EXPECT_TRUE(maps[i].bf16 && maps[i].swizzled);
            EXPECT_EQ(maps[i].promoted_bytes, 2 * (i < 2 ? head_dim : value_dim));
        }
    }
}

TEST_F(CudaLaunchTest, DependentLaunchNeedsHopper) {
    for (const int major : {8, 9, 10}) {
        set_fake_gpu({.major = major, .minor = 0});
        for (const bool requested : {false, true}) {
            CudaBackend backend =
                make_cuda_backend({.libraries = {MatmulKind::native}, .dependent_launch = requested});
            EXPECT_EQ(backend.notes.size(), requested && major < 9 ? 1u : 0u);
            attention_launches(backend, {});
            for (const auto& [name, launch] : fake_gpu_launches())
                EXPECT_EQ(launch.early, requested && major >= 9 ? launch.calls : 0)
                    << name << " on " << major;
        }
    }
}

TEST_F(CudaLaunchTest, EarlyKernelsAreOffIfGraphsCannotCaptureThem) {
    set_fake_gpu({.captures_early_launches = false});
    CudaBackend backend = make_cuda_backend({.libraries = {MatmulKind::native}, .dependent_launch = true});
    ASSERT_EQ(backend.notes.size(), 1u);
    EXPECT_THAT(backend.notes[0],
                HasSubstr("cuda.dependent_launch is off: a graph with early kernels failed"));
    EXPECT_THAT(backend.notes[0], HasSubstr(", launched at "));
    forget_fake_gpu_launches();
    attention_launches(backend, {});
    for (const auto& [name, launch] : fake_gpu_launches()) EXPECT_EQ(launch.early, 0) << name;
}

// A multiprocessor of an H100, an A100 and a 4090 runs two blocks of the loss: each block uses 1 KiB more than it requests.
TEST_F(CudaLaunchTest, MultiprocessorRunsTwoBlocksOfTheLoss) {
    constexpr int64_t kTokens = 4, kVocab = 50304;
    for (const int64_t block : {227 << 10, 163 << 10, 99 << 10}) {
        set_fake_gpu({.shared_memory = block});
        forget_fake_gpu_launches();
        CudaDevice device;
        const auto stream = device.create_stream("compute");
        CudaOps ops(device);
        const Buffer logits(device, "logits", MemoryCategory::activations, 2 * kTokens * kVocab);
        const Buffer rows(device, "rows", MemoryCategory::activations, 4 * kTokens);
        ops.cross_entropy({.losses = rows.tensor(DType::f32, {kTokens}),
                           .dlogits = logits.tensor(DType::bf16, {kTokens, kVocab}),
                           .logits = logits.tensor(DType::bf16, {kTokens, kVocab}),
                           .targets = rows.tensor(DType::i32, {kTokens}),
                           .vocab_size = kVocab,
                           .softcap = {.cap = 15.0f},
                           .gradient_scale = 1.0f},
                          *stream);
        stream->synchronize();
        int64_t largest = 0;
        for (const auto& [name, launch] : fake_gpu_launches())
            largest = std::max(largest, launch.shared_bytes);
        EXPECT_GT(largest, int64_t{40} << 10) << block;
        EXPECT_LE(2 * (largest + (1 << 10)), block + (1 << 10)) << block;
    }
}

// A kernel that needs more than the GPU has throws, instead of failing in the driver.
TEST_F(CudaLaunchTest, SharedMemoryLimitIsOfGpu) {
    constexpr int64_t kLength = 32, kDim = 128;
    for (const int64_t card : {227 << 10, 163 << 10, 99 << 10, 49 << 10}) {
        set_fake_gpu({.shared_memory = card});
        CudaDevice device;
        const auto stream = device.create_stream("compute");
        EXPECT_EQ(device.max_shared_memory(), card);
        CudaOps ops(device);
        const Buffer x(device, "x", MemoryCategory::activations, 4 * kLength * kDim);
        const Buffer y(device, "y", MemoryCategory::activations, 4 * kLength);
        const Tensor rows = x.tensor(DType::f32, {kLength, kDim});
        const auto attention = [&] {  // f32: 49.4 KiB
            ops.attention_forward({.o = rows,
                                   .lse = y.tensor(DType::f32, {1, kLength}),
                                   .q = rows,
                                   .k = rows,
                                   .v = rows,
                                   .first_key = y.tensor(DType::i32, {kLength}),
                                   .options = {kLength, 1, kDim, 0, 0.1f}},
                                  *stream);
        };
        if (card > 49 << 10) {
            EXPECT_NO_THROW(attention()) << card;
            continue;
        }
        const std::string message = error_of(ExitCode::usage, attention);
        EXPECT_THAT(message, HasSubstr("attention_forward, launched at "));
        EXPECT_THAT(message, HasSubstr("needs 49.4 KiB of shared memory; this GPU lets a block have 49.0"));
    }
}

// Ranks that are threads launch a kernel concurrently; its limits are shared by all of them.
TEST_F(CudaLaunchTest, ThreadsLaunchConcurrently) {
    constexpr int kThreads = 8;
    constexpr int64_t kRows = 64, kCols = 64;
    std::barrier together(kThreads);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&] {
            CudaDevice device;
            CudaOps ops(device);
            const auto stream = device.create_stream("compute");
            const Buffer memory(device, "x", MemoryCategory::activations, 4 * kRows * kCols);
            const Tensor x = memory.tensor(DType::f32, {kRows, kCols}), flat = x.reshaped({kRows * kCols}),
                         one = memory.tensor(DType::f32, {1}), row = memory.tensor(DType::f32, {kCols});
            const Tensor half = memory.tensor(DType::bf16, {kRows * kCols});
            const auto launch = [&](const auto& operation) {
                together.arrive_and_wait();
                operation();
            };
            for (const Tensor& y : {flat, half}) {
                const Tensor wide = y.reshaped({kRows, kCols});
                launch([&] { ops.fill({.x = y, .value = 0.0f}, *stream); });
                launch([&] { ops.scale({.x = y, .factor = 0.0f}, *stream); });
                launch([&] { ops.cast({.out = y, .in = flat}, *stream); });
                launch([&] { ops.add({.y = wide, .x = wide, .z = wide}, *stream); });
                launch([&] { ops.count_nonfinite({.out = one, .x = y}, *stream); });
                for (const VectorNorm norm :
                     {VectorNorm::one, VectorNorm::two, VectorNorm::three, VectorNorm::infinity})
                    launch([&] { ops.norm_term({.pieces = {{.out = one, .x = y}}, .norm = norm}, *stream); });
            }
            launch([&] {
                ops.random_normal({.x = flat, .seed = 1, .sequence = 1, .offset = 0, .deviation = 1.0f},
                                  *stream);
            });
            launch([&] {
                ops.random_uniform({.x = flat, .seed = 1, .sequence = 1, .offset = 0, .bound = 1.0f},
                                   *stream);
            });
            launch([&] { ops.sum({.out = one, .x = flat, .accumulate = false}, *stream); });
            launch([&] { ops.column_sum({.out = row, .x = x, .accumulate = false}, *stream); });
            launch([&] { ops.matmul({.c = x, .a = x, .b = x}, *stream); });
            stream->synchronize();
        });
    }
    for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace speedrun::testing
