// Passes every operation on to another Ops and notes what it was asked for: which operation, the shape of a
// product, its FLOPs, and the least bytes that it has to move, each operand read once and each result written
// once. With a device also when it ran, from events around it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ops/op_list.h"
#include "kernels/ops/ops.h"

namespace speedrun {

// What one call of an operation is, and what it costs at least.
struct OpCost {
    const char* op = "";               // its name in kernels/ops/ops.h
    std::array<int64_t, 3> product{};  // M, N, K of a matmul; n, R, C of gram and polar_express; else zeros
    bool transpose_a = false, transpose_b = false;
    int64_t flops = 0;  // of products and attention, as Ops::flops() counts them
    int64_t bytes = 0;

    bool is_product() const { return product[0] > 0; }
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

#define SPEEDRUN_DECLARE(name, roles, parameters, arguments) void name parameters override;
    SPEEDRUN_EACH_OP(SPEEDRUN_DECLARE)
#undef SPEEDRUN_DECLARE

    int64_t flops() const override {
        return ops_.flops();
    }
    std::vector<std::string> notes() const override {
        return ops_.notes();
    }

  private:
    const Event* record(Stream& stream);

    Ops& ops_;
    Device* const device_;
    bool on_ = false;
    std::vector<Call> calls_;
    std::vector<std::unique_ptr<Event>> events_;
    size_t events_used_ = 0;
};

// The names of all operations, in the order of kernels/ops/ops.h.
std::vector<std::string> all_operations();

}  // namespace speedrun
