#include "tests/bench/ceilings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "tests/bench/case_memory.h"

namespace speedrun::bench {

namespace {

constexpr TimingOptions kOptions{.seconds = 0.3, .min_repetitions = 5, .max_repetitions = 100};
constexpr int64_t kCompared = 128;  // elements of a product

}  // namespace

Ceilings measure_ceilings(Backend& backend, Stream& stream, Timer& timer, DType real, int64_t shrink,
                          std::string& warning) {
    Ceilings best;
    const auto copied = [&](const char* name, int64_t bytes, const std::function<void()>& call) {
        const double rate = 2.0 * static_cast<double>(bytes) / (timer.time({call}, kOptions).median_ms / 1e3);
        if (rate <= best.bytes_per_s) return;
        best.bytes_per_s = rate;
        best.copy_by = fmt::format("{} of {} MiB", name, bytes >> 20);
    };
    {
        CaseMemory memory(*backend.device, *backend.ops, stream, real);
        const int64_t bytes = backend.copy_bytes / shrink;
        const Tensor to = memory.output(DType::f32, {bytes / 4}),
                     from = memory.input(DType::f32, {bytes / 4});
        copied("device copy", bytes, [&] { backend.device->copy(to.data, from.data, from.bytes(), stream); });
        copied("operation cast", bytes, [&] { backend.ops->cast(to, from, stream); });
    }
    const int64_t n = std::max<int64_t>(backend.product_size / shrink, 128);
    CaseMemory memory(*backend.device, *backend.ops, stream, real);
    const Tensor c = memory.output({n, n}), a = memory.input({n, n}), b = memory.input({n, n});
    // The first elements of c: a product that is fast and wrong is no ceiling.
    const auto first_elements = [&] {
        std::vector<char> host(static_cast<size_t>(kCompared * size_of(real)));
        backend.device->copy(host.data(), c.data, static_cast<int64_t>(host.size()), stream);
        stream.synchronize();
        std::vector<double> values;
        for (int64_t i = 0; i < kCompared; ++i) {
            values.push_back(real == DType::bf16 ? reinterpret_cast<const Bf16*>(host.data())[i]
                                                 : reinterpret_cast<const float*>(host.data())[i]);
        }
        return values;
    };
    const auto multiplied = [&](const std::string& name, const std::function<void()>& call) {
        const double size = static_cast<double>(n);
        const double rate = 2.0 * size * size * size / (timer.time({call}, kOptions).median_ms / 1e3);
        return std::pair(rate, fmt::format("{}, {} cubed {}", name, n, name_of(real)));
    };
    std::tie(best.flops_per_s, best.product_by) = multiplied(
        "operation matmul", [&] { backend.ops->matmul(c, a, b, {}, {.transpose_b = true}, stream); });
    best.library_product = backend.library_matmul;
    const std::vector<double> ours = first_elements();
    for (const ProductProbe& probe : backend.probes) {
        backend.ops->fill(c, 0.0f, stream);
        try {
            const auto [rate, name] = multiplied(probe.name, [&] { probe.run(c, a, b, stream); });
            const std::vector<double> theirs = first_elements();
            // Deviation of a sum of n products; neighbours in bf16 are up to 0.03 of it apart.
            const double scale = std::sqrt(static_cast<double>(n));
            for (int64_t i = 0; i < kCompared; ++i) {
                if (std::abs(ours[i] - theirs[i]) <= 0.05 * scale) continue;
                throw_internal("element {} is {}, of the operation matmul {}", i, theirs[i], ours[i]);
            }
            best.library_product = true;
            if (rate > best.flops_per_s) std::tie(best.flops_per_s, best.product_by) = std::pair(rate, name);
        } catch (const std::exception& error) {
            warning += fmt::format("{}: {}; ", probe.name, error.what());
            settle(stream);
        }
    }
    return best;
}

}  // namespace speedrun::bench
