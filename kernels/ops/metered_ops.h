// Forwards every operation to another Ops and records each call: operation, matmul shape, FLOPs and minimum bytes. With
// a device, also the time between events around the call.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ops/ops.h"

namespace speedrun {

// One call of an operation and its least cost.
struct OpCost {
    const char* op = "";                    // method of Ops
    op::ProductShape product;               // zeros if it is no matmul
    std::vector<op::ProductShape> batches;  // shapes processed together; empty: none
    int64_t flops = 0;                      // as counted by Ops::flops()
    int64_t bytes = 0;                      // read and written
    int64_t bytes_written = 0;              // included in bytes
    AttentionShape attention{};
    bool rotary = false;  // attention's backward with RotaryOfInputs
    LossShape loss{};
    int terms = 0;  // sources of a weighted sum; 0: no sum

    bool is_product() const { return product.sizes[0] > 0 || !batches.empty(); }
    // Key for sums over calls: "matmul 8192x768x256 nt", "polar_express 4x768x768 1x768x3072", "add". The letters say whether
    // a and b are transposed (n, t). An epilogue follows them.
    std::string name() const;
};

class MeteredOps final : public Ops {
  public:
    struct Call {
        OpCost cost;
        const Event *begin = nullptr, *end = nullptr;  // null without a device
    };

    // Both must outlive this object. device: also times each call (a pair of events costs microseconds).
    explicit MeteredOps(Ops& ops, Device* device = nullptr) : ops_(ops), device_(device) {}

    // Clears the records and starts recording. Recorded calls must be complete, because their events are reused. Before
    // start(), operations are only forwarded.
    void start();
    void stop() { on_ = false; }
    const std::vector<Call>& calls() const { return calls_; }

    int64_t flops() const override { return ops_.flops(); }
    bool fuses_rotary(HeadWidths widths, DType compute_dtype) const override {
        return ops_.fuses_rotary(widths, compute_dtype);
    }
    std::vector<std::string> notes() const override { return ops_.notes(); }

  private:
    SPEEDRUN_EACH_OP(SPEEDRUN_OVERRIDE_OP)
    template <class Arguments>
    void pass_on(const char* name, const Arguments& a, Stream& stream);
    const Event* record(Stream& stream);

    Ops& ops_;
    Device* const device_;
    bool on_ = false;
    std::vector<Call> calls_;
    std::vector<std::unique_ptr<Event>> events_;
    size_t events_used_ = 0;
};

// Returns the names of all operations, in the order of SPEEDRUN_EACH_OP.
std::vector<std::string> all_operations();

}  // namespace speedrun
