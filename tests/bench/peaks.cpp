#include "tests/bench/peaks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/bench/timing.h"

namespace speedrun::bench {

namespace {

constexpr int kRounds = 5;
constexpr double kSeconds = 0.3;
constexpr int64_t kCompared = 128;  // compared elements of a matmul

// The first elements of c: a fast but wrong matmul must not set the peak.
std::vector<double> first_elements(Tensor c, Device& device, Stream& stream) {
    std::vector<char> host(static_cast<size_t>(kCompared * size_of(c.dtype)));
    device.copy(host.data(), c.data, static_cast<int64_t>(host.size()), stream);
    stream.synchronize();
    std::vector<double> values;
    for (int64_t i = 0; i < kCompared; ++i) {
        values.push_back(c.dtype == DType::bf16 ? reinterpret_cast<const Bf16*>(host.data())[i]
                                                : reinterpret_cast<const float*>(host.data())[i]);
    }
    return values;
}

}  // namespace

BackendPeaks measure_backend(Backend& backend, Stream& stream, DType compute_dtype, int64_t shrink,
                             std::string& warning) {
    BackendPeaks best;
    const int64_t n = std::max<int64_t>(backend.peaks.product / shrink, 128);
    measure_peaks(*backend.device, *backend.ops, stream, compute_dtype,
                  {n, backend.peaks.copy_bytes / shrink}, best);
    best.library_product = backend.library_matmul;
    if (backend.probes.empty()) return best;
    LargeMatmul product(*backend.device, *backend.ops, stream, compute_dtype, n);
    product.rate(1);
    const std::vector<double> ours = first_elements(product.result(), *backend.device, stream);
    for (const MatmulProbe& probe : backend.probes) {
        backend.ops->fill({.x = product.result(), .value = 0.0f}, stream);
        try {
            const double rate = product.rate(probe.run, kRounds, kSeconds);
            const std::vector<double> theirs = first_elements(product.result(), *backend.device, stream);
            // Standard deviation of a sum of n products; adjacent bf16 values are up to 0.03 of it apart.
            const double scale = std::sqrt(static_cast<double>(n));
            for (int64_t i = 0; i < kCompared; ++i) {
                if (std::abs(ours[i] - theirs[i]) <= 0.05 * scale) continue;
                throw_internal("element {} is {}, of the operation matmul {}", i, theirs[i], ours[i]);
            }
            best.library_product = true;
            if (rate <= best.flops_per_s) continue;
            best.flops_per_s = rate;
            best.product_by = fmt::format("{}, {} cubed {}", probe.name, n, name_of(compute_dtype));
        } catch (const std::exception& error) {
            warning += fmt::format("{}: {}; ", probe.name, error.what());
            settle(stream);
        }
    }
    return best;
}

}  // namespace speedrun::bench
