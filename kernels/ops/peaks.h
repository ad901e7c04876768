// Measured peaks of a device: a large matmul and a large copy. Utilisation and roofline bounds refer to them.
#pragma once

#include <functional>
#include <string>

#include "kernels/ops/ops.h"

namespace speedrun {

struct Peaks {
    double flops_per_s = 0, bytes_per_s = 0;
    std::string product_by, copy_by;  // fastest measured implementation, with sizes
};

// Returns the shortest time of a call on the stream in ms, from events around each call. Runs `rounds` calls and
// further ones that fit into `seconds`, at most 100.
double shortest_ms(Device& device, Stream& stream, const std::function<void()>& call, int rounds,
                   double seconds = 0);

// c = a bᵀ of random values, all real [n,n]. Zeros would be faster than real data.
class LargeMatmul {
  public:
    using Product = std::function<void(Tensor c, Tensor a, Tensor b, Stream& stream)>;

    LargeMatmul(Device& device, Ops& ops, Stream& stream, DType compute_dtype, int64_t n);

    // Returns the FLOP/s of the operation matmul, or of another implementation.
    double rate(int rounds, double seconds = 0);
    double rate(const Product& product, int rounds, double seconds = 0);
    Tensor result() const { return matrix(0); }  // result of the last matmul

  private:
    Tensor matrix(int64_t index) const;

    Device& device_;
    Ops& ops_;
    Stream& stream_;
    const DType compute_dtype_;
    const int64_t n_;
    Buffer memory_;
};

struct PeakSizes {
    int64_t product = 0;     // n
    int64_t copy_bytes = 0;  // per buffer of a copy
};
// On a CPU both buffers together are four times the last-level cache.
PeakSizes peak_sizes(const Device& device);

// Returns the size of the CPU's last-level cache, as reported by Linux.
int64_t last_cache_bytes();

// Measures the bytes read and written per second by the device's copy or the operation cast, whichever is faster.
void measure_copy(Device& device, Ops& ops, Stream& stream, int64_t bytes, Peaks& peaks);

// Measures both peaks, a few tenths of a second each. Only raises values in `peaks`, because the device's speed may
// drift.
void measure_peaks(Device& device, Ops& ops, Stream& stream, DType compute_dtype, const PeakSizes& sizes,
                   Peaks& peaks);

struct RooflineBound {
    double ms = 0;
    bool compute_bound = false;
};
// Returns the roofline bound: the larger of FLOPs and bytes over their peaks.
RooflineBound roofline_bound(double flops, double bytes, const Peaks& peaks);

}  // namespace speedrun
