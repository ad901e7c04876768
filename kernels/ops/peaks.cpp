#include "kernels/ops/peaks.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <limits>

namespace speedrun {

namespace {

constexpr int kRounds = 5, kMaxRounds = 100;
constexpr double kSeconds = 0.3;

bool is_cpu(const Device& device) {
    return device.kind() == DeviceKind::cpu;
}

}  // namespace

double shortest_ms(Device& device, Stream& stream, const std::function<void()>& call, int rounds,
                   double seconds) {
    using Clock = std::chrono::steady_clock;
    const auto begin = device.create_event(EventKind::timed), end = device.create_event(EventKind::timed);
    double shortest = std::numeric_limits<double>::max();
    const auto until = Clock::now() + std::chrono::duration<double>(seconds);
    for (int round = 0; round < rounds || (round < kMaxRounds && Clock::now() < until); ++round) {
        stream.record(*begin);
        call();
        stream.record(*end);
        stream.synchronize();
        shortest = std::min(shortest, end->elapsed_ms_since(*begin));
    }
    return std::max(shortest, 1e-6);
}

LargeMatmul::LargeMatmul(Device& device, Ops& ops, Stream& stream, DType compute_dtype, int64_t n)
    : device_(device),
      ops_(ops),
      stream_(stream),
      compute_dtype_(compute_dtype),
      n_(n),
      memory_(device, "ceiling", MemoryCategory::workspace, 3 * n * n * size_of(compute_dtype)) {
    const Buffer noise(device, "ceiling", MemoryCategory::workspace, n * n * size_of(DType::f32));
    const Tensor values = noise.tensor(DType::f32, {n * n});
    ops.random_normal({.x = values, .seed = 1, .sequence = 1, .offset = 0, .deviation = 1.0f}, stream);
    for (const int64_t i : {1, 2}) ops.cast({.out = matrix(i).reshaped({n * n}), .in = values}, stream);
    stream.synchronize();
}

Tensor LargeMatmul::matrix(int64_t index) const {
    return memory_.tensor(compute_dtype_, {n_, n_}, index * n_ * n_ * size_of(compute_dtype_));
}

double LargeMatmul::rate(int rounds, double seconds) {
    return rate(
        [this](Tensor c, Tensor a, Tensor b, Stream& stream) {
            ops_.matmul({.c = c, .a = a, .b = b, .transpose_b = true}, stream);
        },
        rounds, seconds);
}

double LargeMatmul::rate(const Product& product, int rounds, double seconds) {
    const double n = static_cast<double>(n_);
    const double ms = shortest_ms(
        device_, stream_, [&] { product(matrix(0), matrix(1), matrix(2), stream_); }, rounds, seconds);
    return 2 * n * n * n / (ms * 1e-3);
}

// Reads Linux's own files, because sysconf reports the host's cache on some virtual machines.
int64_t last_cache_bytes() {
    int64_t largest = 8 << 20;
    for (int index = 0; index < 5; ++index) {
        std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) + "/size");
        int64_t kibibytes = 0;
        if (file >> kibibytes) largest = std::max(largest, kibibytes << 10);
    }
    return largest;
}

PeakSizes peak_sizes(const Device& device) {
    if (is_cpu(device)) return {2048, 2 * last_cache_bytes()};
    return {8192, int64_t{2} << 30};
}

void measure_copy(Device& device, Ops& ops, Stream& stream, int64_t bytes, Peaks& peaks) {
    const Buffer to_memory(device, "ceiling", MemoryCategory::workspace, bytes),
        from_memory(device, "ceiling", MemoryCategory::workspace, bytes);
    const Tensor to = to_memory.tensor(DType::f32, {bytes / 4}),
                 from = from_memory.tensor(DType::f32, {bytes / 4});
    ops.random_normal({.x = from, .seed = 1, .sequence = 2, .offset = 0, .deviation = 1.0f},
                      stream);  // also touches every page
    const auto copied = [&](const char* name, const std::function<void()>& call) {
        const double ms = shortest_ms(device, stream, call, kRounds, kSeconds / 2);
        const double rate = 2.0 * static_cast<double>(bytes) / (ms * 1e-3);
        if (rate <= peaks.bytes_per_s) return;
        peaks.bytes_per_s = rate;
        peaks.copy_by = fmt::format("{} of {} MiB", name, bytes >> 20);
    };
    copied("device copy", [&] { device.copy(to.data, from.data, from.bytes(), stream); });
    copied("operation cast", [&] { ops.cast({.out = to, .in = from}, stream); });
}

void measure_peaks(Device& device, Ops& ops, Stream& stream, DType compute_dtype, const PeakSizes& sizes,
                   Peaks& peaks) {
    measure_copy(device, ops, stream, sizes.copy_bytes, peaks);
    const double rate =
        LargeMatmul(device, ops, stream, compute_dtype, sizes.product).rate(kRounds, kSeconds);
    if (rate <= peaks.flops_per_s) return;
    peaks.flops_per_s = rate;
    peaks.product_by = fmt::format("operation matmul, {} cubed {}", sizes.product, name_of(compute_dtype));
}

RooflineBound roofline_bound(double flops, double bytes, const Peaks& peaks) {
    const double compute = flops / peaks.flops_per_s * 1e3, memory = bytes / peaks.bytes_per_s * 1e3;
    return {std::max(compute, memory), compute > memory};
}

}  // namespace speedrun
