// How kernels are launched, against the fake runtime: its limits, shared memory, ranks that are threads.
#include <gtest/gtest.h>

#include <barrier>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "tests/cuda/fake_gpu.h"
#include "tests/cuda/message_of.h"

namespace speedrun::testing {
namespace {

class CudaLaunchTest : public ::testing::Test {
  protected:
    ~CudaLaunchTest() override { set_fake_gpu({}); }
};

// A launch that the hardware would refuse names the kernel and the line that launched it.
TEST_F(CudaLaunchTest, RefusedLaunchNamesKernelAndPlace) {
    CudaDevice device;
    CudaOps ops(device);
    const auto stream = device.create_stream("compute");
    const Buffer x(device, "x", MemoryCategory::activations, 64);
    set_fake_gpu({.refuses_launches = true});
    const std::string message = message_of(
        [&] { ops.fill({.x = x.tensor(DType::f32, {16}), .value = 0.0f}, *stream); }, ExitCode::failure);
    EXPECT_NE(message.find("utilities.cu:"), std::string::npos) << message;
    EXPECT_NE(message.find("cudaErrorInvalidConfiguration"), std::string::npos) << message;
}

// A recorded launch needs what its kernel was allowed then.
TEST_F(CudaLaunchTest, AllowedSharedMemoryNeverShrinks) {
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
        ops.attention_backward({.dq = rows,
                                .dk = rows,
                                .dv = rows,
                                .dout = rows,
                                .o = rows,
                                .lse = line,
                                .q = rows,
                                .k = rows,
                                .v = rows,
                                .first_key = y.tensor(DType::i32, {kLength}),
                                .options = {kLength, 1, dim, 0, 0.1f}},
                               *stream);
        int64_t taken = 0;
        for (const auto& [name, launch] : fake_gpu_launches())
            if (name.find(kKernel) != std::string::npos) taken = launch.shared_bytes;
        const int64_t now = fake_gpu_allowed_shared(kKernel);
        EXPECT_GT(taken, 48 << 10) << "less needs no leave";
        EXPECT_GE(now, allowed) << "head dimension " << dim;
        if (dim == kNarrow) {
            EXPECT_LT(taken, now) << "nothing could shrink";
        }
        allowed = now;
    }
}

// A kernel that needs more than the card has says so, instead of failing in the driver.
TEST_F(CudaLaunchTest, SharedMemoryIsTheCards) {
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
        const auto attention = [&] {  // of f32: 49.4 KiB
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
        const std::string message = message_of(attention, ExitCode::usage);
        EXPECT_NE(message.find("attention_forward, launched at "), std::string::npos) << message;
        EXPECT_NE(message.find("needs 49.4 KiB of shared memory; this GPU lets a block have 49.0"),
                  std::string::npos)
            << message;
    }
}

// Ranks that are threads meet a kernel at the same time; what is known of it is known to all of them.
TEST_F(CudaLaunchTest, ThreadsMayLaunchAtOnce) {
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
                    launch([&] { ops.norm_term({.out = one, .x = y, .norm = norm}, *stream); });
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
