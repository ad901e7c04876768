// Passes every operation on to another Ops and notes what it was asked for: which operation, the shape of a
// product, its FLOPs, and the least bytes that it has to move, each operand read once and each result written
// once. With a device also when it ran, from events around it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ops/ops.h"

namespace speedrun {

// What one call of an operation is, and what it costs at least.
struct OpCost {
    const char* op = "";        // the method of Ops
    op::ProductShape product;   // zeros where it is none
    int64_t flops = 0;          // of products and attention, as Ops::flops() counts them
    int64_t bytes = 0;          // read and written
    int64_t bytes_written = 0;  // of those

    bool is_product() const { return product.sizes[0] > 0; }
    // "matmul 8192x768x256 nt", "gram 4x768x768", "add": what calls are added up under. The letters: a, b
    // normal or transposed.
    std::string name() const;
};

class MeteredOps final : public Ops {
  public:
    struct Call {
        OpCost cost;
        const Event *begin = nullptr, *end = nullptr;  // null without a device
    };

    // Both must outlive this. device: times each call too (a pair of events costs microseconds).
    explicit MeteredOps(Ops& ops, Device* device = nullptr) : ops_(ops), device_(device) {}

    // Notes calls from here on, forgetting those before; their events are used again, so all of them have to
    // be done. Until start(), operations are only passed on.
    void start();
    void stop() { on_ = false; }
    const std::vector<Call>& calls() const { return calls_; }

    int64_t flops() const override { return ops_.flops(); }
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

// The names of all operations, in the order of SPEEDRUN_EACH_OP.
std::vector<std::string> all_operations();

}  // namespace speedrun
