// What a device can do at best, measured: a large matrix product and a large copy. Utilisation and floors are
// shares of these.
#pragma once

#include <functional>
#include <string>

#include "kernels/ops/ops.h"

namespace speedrun {

struct Ceilings {
    double flops_per_s = 0, bytes_per_s = 0;
    std::string product_by, copy_by;  // the fastest of those tried, with sizes
};

// The shortest time, in ms, that the calls of `call` take on the stream, from events around each; `rounds` of
// them, and as many more as fit into `seconds`, but no more than 100.
double shortest_ms(Device& device, Stream& stream, const std::function<void()>& call, int rounds,
                   double seconds = 0);

// c = a bᵀ of random numbers, all real [n,n]: products of zeros run faster than real ones.
class LargeProduct {
  public:
    using Product = std::function<void(Tensor c, Tensor a, Tensor b, Stream& stream)>;

    LargeProduct(Device& device, Ops& ops, Stream& stream, DType real, int64_t n);

    // FLOP/s of the operation matmul, or of a product from elsewhere.
    double rate(int rounds, double seconds = 0);
    double rate(const Product& product, int rounds, double seconds = 0);
    Tensor result() const { return matrix(0); }  // of the product that ran last

  private:
    Tensor matrix(int64_t index) const;

    Device& device_;
    Ops& ops_;
    Stream& stream_;
    const DType real_;
    const int64_t n_;
    Buffer memory_;
};

struct CeilingSizes {
    int64_t product = 0;     // n
    int64_t copy_bytes = 0;  // of each of the two buffers of a copy
};
// On a CPU the two buffers are four times the last cache together.
CeilingSizes ceiling_sizes(const Device& device);

// Bytes of the CPU's last level of cache, as Linux tells them.
int64_t last_cache_bytes();

// Bytes read and written per second by the device's copy or the operation cast, whichever is faster.
void measure_copy(Device& device, Ops& ops, Stream& stream, int64_t bytes, Ceilings& ceilings);

// Both, each for a few tenths of a second; raises what `ceilings` holds: the device's speed may drift.
void measure_ceilings(Device& device, Ops& ops, Stream& stream, DType real, const CeilingSizes& sizes,
                      Ceilings& ceilings);

struct Floor {
    double ms = 0;
    bool compute_bound = false;
};
// The shortest time that so much work takes: the larger of FLOPs and bytes over their ceilings.
Floor floor_of(double flops, double bytes, const Ceilings& ceilings);

}  // namespace speedrun
