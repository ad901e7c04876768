// Executor: binds a program to memory and parameters and enqueues it on the compute stream.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/runtime/runtime.h"
#include "train/model/graph/call.h"
#include "train/model/graph/program.h"
#include "train/sharding/parameter_store.h"

namespace speedrun {

// Called before each step of a program is enqueued, and with null at the end of a pass.
using InstructionWatch = std::function<void(const Instruction*)>;

class Executor {
  public:
    // All arguments must outlive the executor. `program` is derive_program() of `graph`; `table` has the graph's
    // parameters. memory: at least share_memory(program).bytes. Its content is undefined before and after a pass, so
    // executors that never run concurrently may share it.
    Executor(const NodeGraph& graph, const Program& program, const ParameterTable& table,
             const ParameterStore& parameters, Runtime& runtime, const Buffer& memory);

    // Receives the events of all later passes; null: only forward passes, without events.
    void track(PassTracker* tracker) { tracker_ = tracker; }
    void watch(InstructionWatch watch) { watch_ = std::move(watch); }
    // Sets the communicators for nodes that exchange values with ranks sharing rows or matrices. They must outlive the
    // enqueued work. A null communicator exchanges nothing.
    void connect(const Peers& peers) { peers_ = peers; }
    // Sets the store with scales and amaxes of the table's tensors; null: nodes use current scaling.
    void scale_by(const ScaleStore* scales) { scales_ = scales; }
    // Sets Batch::chunk_first_keys of the microbatches enqueued from now on.
    void begin_batch(std::vector<int32_t> documents) { documents_ = std::move(documents); }
    // Enqueues all nodes except the last.
    void forward(bool training);
    // After forward(): enqueues the last node.
    void loss(const PassArguments& arguments) { run({&loss_, 1}, Pass::forward, arguments); }
    // After forward(): enqueues the last node and all gradients. Requires a tracker, which receives each gradient's
    // completion.
    void backward(const PassArguments& arguments);
    // Returns the call of the last node that loss() would enqueue.
    Call loss_call(const PassArguments& arguments) const {
        return {loss_.calls.front(),
                {ops_, stream_, arguments, peers_, exchange_stream_, documents_, scales_, nullptr}};
    }

    // Returns a value with a holder other than program; valid as long as the executor.
    Tensor held(ValueId value) const { return held_[static_cast<size_t>(value)]; }
    // FLOPs so far of forward nodes that backward recomputed.
    int64_t repeated_flops() const { return repeated_flops_; }

  private:
    // Program instruction bound to tensors.
    struct BoundInstruction {
        const Instruction* instruction = nullptr;
        std::vector<Binding> calls = {};
        Tensor target = {}, term = {}, other = {};
        std::vector<const Parameter*> freed = {};
    };

    void hold_values();
    void copy_constant(const Value& value, const Tensor& to);
    Tensor tensor_at(const Location& location) const;
    BoundInstruction bound(const Instruction& instruction) const;
    void run(std::span<const BoundInstruction> instructions, Pass pass, const PassArguments& arguments);
    void run(const BoundInstruction& instruction, Pass pass, const PassArguments& arguments);

    const NodeGraph& graph_;
    const Program& program_;
    const ParameterTable& table_;
    const ParameterStore& parameters_;
    Runtime& runtime_;
    Ops& ops_;
    Stream& stream_;
    std::vector<Buffer> buffers_;         // memory of held values
    std::vector<Tensor> held_;            // index: value
    const Buffer& memory_;                // shared by all other values
    const std::vector<int64_t> offsets_;  // into memory_, bytes; index: storage
    std::vector<BoundInstruction> forward_, backward_;
    BoundInstruction loss_;
    PassTracker* tracker_ = nullptr;
    InstructionWatch watch_;
    Peers peers_;
    std::vector<int32_t> documents_;
    const ScaleStore* scales_ = nullptr;
    const std::unique_ptr<Event> reached_, returned_;
    const ExchangeStream exchange_stream_;
    int64_t repeated_flops_ = 0;
};

}  // namespace speedrun
