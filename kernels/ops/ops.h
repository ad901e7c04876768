// What computes the operations: a backend implements all of them. Each is declared once, as the struct of its
// arguments in the header of its family, whose last lines list the family's operations; everything that goes
// over all of them is made from SPEEDRUN_EACH_OP. A call reads
//   ops.add({.y = y, .x = x, .z = z}, stream);
//
// Every operation is enqueued on the stream and returns at once; sizes are checked before that, by throwing.
// Every operation is deterministic: same inputs, same bits, whatever the number of threads.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/device/device.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/combine.h"
#include "kernels/ops/compose_heads.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/fp8.h"
#include "kernels/ops/loss.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/optimizer.h"
#include "kernels/ops/pointwise.h"
#include "kernels/ops/utilities.h"

// X(method, arguments in namespace op).
#define SPEEDRUN_EACH_OP(X)   \
    SPEEDRUN_EMBEDDING_OPS(X) \
    SPEEDRUN_MATMUL_OPS(X)    \
    SPEEDRUN_FP8_OPS(X)       \
    SPEEDRUN_NORM_OPS(X)      \
    SPEEDRUN_POINTWISE_OPS(X) \
    SPEEDRUN_COMBINE_OPS(X)   \
    SPEEDRUN_ATTENTION_OPS(X) \
    SPEEDRUN_COMPOSE_OPS(X)   \
    SPEEDRUN_LOSS_OPS(X)      \
    SPEEDRUN_OPTIMIZER_OPS(X) \
    SPEEDRUN_UTILITY_OPS(X)

// For a class that implements Ops: SPEEDRUN_EACH_OP(SPEEDRUN_OVERRIDE_OP) declares all of them.
#define SPEEDRUN_OVERRIDE_OP(name, Arguments) void name(const op::Arguments& a, Stream& stream) override;

namespace speedrun {

class Ops {
  public:
    virtual ~Ops() = default;

#define SPEEDRUN_DECLARE_OP(name, Arguments) virtual void name(const op::Arguments& a, Stream& stream) = 0;
    SPEEDRUN_EACH_OP(SPEEDRUN_DECLARE_OP)
#undef SPEEDRUN_DECLARE_OP

    // Floating-point operations of all matrix products and attention enqueued so far (multiply and add count
    // 2).
    virtual int64_t flops() const = 0;
    // What a user should know of how operations were carried out, one sentence each; may grow with every new
    // shape.
    virtual std::vector<std::string> notes() const {
        return {};
    }
};

// The operations on this device's kind. The device must outlive them.
std::unique_ptr<Ops> make_cpu_ops(Device& device);

}  // namespace speedrun
