// Features of the CPU device other than streams and memory.
// Covers: kernels/device/buffer.cpp kernels/device/memory_table.cpp kernels/device/tensor.cpp
#include "kernels/cpu/cpu_device.h"

#include <gtest/gtest.h>

#include "kernels/ops/ops.h"

namespace speedrun::testing::cpu_device_test {

// A dry run counts work and allocates memory, runs nothing, and leaves the contents of memory unchanged.
TEST(CpuDeviceTest, DryRunCountsAndExecutesNothing) {
    CpuDevice device(2);
    const auto ops = make_cpu_ops(device);
    const auto stream = device.create_stream("compute");
    constexpr int64_t kSide = 1024;
    const Buffer memory(device, "x", MemoryCategory::activations, 3 * kSide * kSide * 4);
    const auto matrix = [&](int64_t i) {
        return memory.tensor(DType::f32, {kSide, kSide}, i * kSide * kSide * 4);
    };
    for (const int64_t i : {1, 2}) ops->fill({.x = matrix(i), .value = 0.5f}, *stream);
    stream->synchronize();
    const auto product = [&] {
        ops->matmul({.c = matrix(0), .a = matrix(1), .b = matrix(2)}, *stream);
        stream->synchronize();
        return matrix(0).as<float>()[kSide];
    };

    device.set_dry_run(true);
    EXPECT_EQ(product(), 0.0f);
    EXPECT_EQ(ops->flops(), 2 * kSide * kSide * kSide);
    device.set_dry_run(false);
    EXPECT_EQ(matrix(1).as<float>()[kSide], 0.5f);
    EXPECT_EQ(product(), kSide * 0.25f);
}

}  // namespace speedrun::testing::cpu_device_test
