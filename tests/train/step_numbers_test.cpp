// Numbers of steps in device memory: work after a write reads its values, for any number of writes before the first is carried out.
#include "train/sharding/step_numbers.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "kernels/cpu/cpu_device.h"

namespace speedrun::testing::step_numbers_test {

TEST(StepNumbersTest, EachStepReadsItsValues) {
    Runtime runtime({.device = DeviceKind::cpu, .precision = DType::f32, .threads = 1});
    auto& stream = static_cast<CpuStream&>(runtime.optimizer());
    StepNumbers numbers({2, 0, 1}, runtime);
    std::promise<void> start;
    stream.submit("wait", [ready = start.get_future().share()] { ready.wait(); });
    constexpr int kSteps = 9;  // more than there is staging memory
    std::vector<std::vector<float>> seen;
    std::thread releases([&] {  // writes wait for the copies that they overtake
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        start.set_value();
    });
    for (int step = 0; step < kSteps; ++step) {
        const auto value = static_cast<float>(step);
        numbers.write({{value, value + 0.25f}, {}, {-value}});
        stream.submit("read", [&] {
            seen.push_back(
                {numbers.of(0).as<float>()[0], numbers.of(0).as<float>()[1], *numbers.of(2).as<float>()});
        });
    }
    releases.join();
    runtime.synchronize();
    ASSERT_EQ(seen.size(), size_t{kSteps});
    for (int step = 0; step < kSteps; ++step) {
        const auto value = static_cast<float>(step);
        EXPECT_EQ(seen[static_cast<size_t>(step)], (std::vector<float>{value, value + 0.25f, -value}));
    }
    EXPECT_EQ(numbers.of(1).numel(), 0);
}

TEST(StepNumbersTest, RejectsOtherCounts) {
    Runtime runtime({.device = DeviceKind::cpu, .precision = DType::f32, .threads = 1});
    StepNumbers numbers({2}, runtime);
    EXPECT_THROW(numbers.write({{1.0f}}), Error);
}

}  // namespace speedrun::testing::step_numbers_test
