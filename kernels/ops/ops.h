// Interface of a backend, which implements all operations. Each operation is declared once, as the struct of its
// arguments in the header of its family. The end of that header lists the family's operations; SPEEDRUN_EACH_OP lists
// all.
// A call has the form
//   ops.add({.y = y, .x = x, .z = z}, stream);
// It checks the arguments, enqueues the operation on the stream and returns.
// Every operation is deterministic: equal inputs yield equal bits, for any number of threads.
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

// SPEEDRUN_EACH_OP(SPEEDRUN_OVERRIDE_OP) declares all operations in a class that implements Ops.
#define SPEEDRUN_OVERRIDE_OP(name, Arguments) void enqueue(const op::Arguments& a, Stream& stream) override;

namespace speedrun {

class Ops {
  public:
    virtual ~Ops() = default;

#define SPEEDRUN_CALL_OP(name, Arguments)               \
    void name(const op::Arguments& a, Stream& stream) { \
        a.check();                                      \
        enqueue(a, stream);                             \
    }
    SPEEDRUN_EACH_OP(SPEEDRUN_CALL_OP)
#undef SPEEDRUN_CALL_OP

    // FLOPs of all matmuls and attention enqueued so far; a multiply-add counts 2.
    virtual int64_t flops() const = 0;
    // True if attention_backward() applies RotaryOfInputs in its kernels. Otherwise a pass does, after them.
    virtual bool fuses_rotary(HeadWidths /*widths*/, DType /*compute_dtype*/) const {
        return false;
    }
    // Sentences on the selection of kernels, for the user. A new shape may add one.
    virtual std::vector<std::string> notes() const {
        return {};
    }

  protected:
    // Enqueues attention and its RotaryOfInputs, for a backend without a kernel for both.
    void enqueue_apart(const op::AttentionBackward& a, Stream& stream) {
        op::AttentionBackward attention = a;
        attention.rotary = {};
        enqueue(attention, stream);
        enqueue(a.rotary_backward(), stream);
    }

  private:
    friend class MeteredOps;  // enqueues checked arguments on another Ops

    // Arguments are checked.
#define SPEEDRUN_DECLARE_OP(name, Arguments) virtual void enqueue(const op::Arguments& a, Stream& stream) = 0;
    SPEEDRUN_EACH_OP(SPEEDRUN_DECLARE_OP)
#undef SPEEDRUN_DECLARE_OP
};

// Creates the operations for this kind of device. The device must outlive them.
std::unique_ptr<Ops> make_cpu_ops(Device& device);

}  // namespace speedrun
