// Tensors of one set of a case. Inputs are normally distributed, never zeros. Outputs start as NaN, so that
// unwritten elements are detected. Tensors are also counted: each input read once and each output written
// once are the minimum bytes of the operation.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <vector>

#include "kernels/ops/ops.h"

namespace speedrun::bench {

class CaseMemory {
  public:
    using Dims = std::initializer_list<int64_t>;

    // real: compute type of the case. ops: for setup work, not timed.
    CaseMemory(Device& device, Ops& ops, Stream& stream, DType compute_dtype);

    DType compute_dtype() const { return compute_dtype_; }
    Tensor input(DType dtype, Dims dims, float deviation = 1.0f);
    Tensor input(Dims dims, float deviation = 1.0f) { return input(compute_dtype_, dims, deviation); }
    Tensor inout(DType dtype, Dims dims, float deviation = 1.0f);  // counted twice
    Tensor output(DType dtype, Dims dims);
    Tensor output(Dims dims) { return output(compute_dtype_, dims); }
    Tensor indices(const std::vector<int32_t>& values);
    Tensor constant(Dims dims, float value);   // f32, an input
    Tensor workspace(DType dtype, Dims dims);  // not counted, not checked
    // Not counted: for tensors that are only partly accessed. The case counts the accessed part itself.
    Tensor uncounted_input(DType dtype, Dims dims);
    void count_read(int64_t bytes) { counted_.read += bytes; }
    void count_written(int64_t bytes) { counted_.written += bytes; }
    // Declares an uncounted tensor to be written by the call.
    void check(Tensor tensor) { results_.push_back(tensor); }
    // Declares results of setup work to be inputs.
    Tensor as_input(Tensor tensor);
    // Runs `work` once, immediately, before the timing.
    void setup(const std::function<void(Ops&, Stream&)>& work);
    // Replaces an input by relu(input)², before the timing.
    void square(Tensor x);

    // Minimum bytes of one call.
    struct Counted {
        int64_t read = 0, written = 0;
        int64_t bytes() const { return read + written; }
    };
    const Counted& counted() const { return counted_; }
    int64_t footprint() const { return footprint_; }                   // bytes of memory held
    const std::vector<Tensor>& results() const { return results_; }    // all tensors that a call writes
    const std::vector<Tensor>& poisoned() const { return poisoned_; }  // tensors that start as NaN

  private:
    Tensor allocate(DType dtype, Dims dims);
    void upload(const Tensor& tensor, const void* pattern, int64_t pattern_bytes);
    void upload_random(const Tensor& tensor, float deviation);

    Device& device_;
    Ops& ops_;
    Stream& stream_;
    const DType compute_dtype_;
    Counted counted_;
    int64_t footprint_ = 0;
    std::vector<Buffer> buffers_;
    std::vector<Tensor> results_, poisoned_;
};

}  // namespace speedrun::bench
