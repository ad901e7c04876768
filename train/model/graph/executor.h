// A program at work: bound to memory and parameters, and enqueued on the compute stream.
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

// Told of every step of a program before it is enqueued, and, with null, that a pass has ended.
using StepWatch = std::function<void(const Step*)>;

class Executor {
  public:
    // What it is given must outlive it; `program` and `graph` as derive_program() has them. Parameters of the
    // graph are those of `table`. memory: at least share_memory(program).bytes, of which nothing is expected and
    // nothing remains: executors that never run at the same time may have the same.
    Executor(const NodeGraph& graph, const Program& program, const ParameterTable& table,
             const ParameterStore& parameters, Runtime& runtime, const Buffer& memory);

    // Receives the events of all later passes; null: forward passes alone are possible, without events.
    void track(PassTracker* tracker) { tracker_ = tracker; }
    void watch(StepWatch watch) { watch_ = std::move(watch); }
    // Who is talked to, on the exchange stream, by nodes that need what other ranks have of the same rows or matrices; they
    // must outlive what is enqueued. Null: nobody, and what they would send is not there.
    void connect(const Peers& peers) { peers_ = peers; }
    // Which has the scales of the table that its nodes read and note; null: nobody, and nodes go by what they meet.
    void scale_by(const ScaleStore* scales) { scales_ = scales; }
    // Batch::chunk_first_keys of the microbatch that is enqueued from here on.
    void begin_batch(std::vector<int32_t> documents) { documents_ = std::move(documents); }
    // All nodes but the last.
    void forward(bool training);
    // After it: the last.
    void loss(const PassArguments& arguments) { run({&loss_, 1}, Pass::forward, arguments); }
    // After forward: the last node and all gradients. Requires a tracker, which receives each gradient's completion.
    void backward(const PassArguments& arguments);
    // A call of the last node as loss() makes it.
    Call loss_call(const PassArguments& arguments) const {
        return {loss_.bindings.front(),
                {ops_, stream_, arguments, peers_, lane_, documents_, scales_, nullptr}};
    }

    // A value that lives as long as this (Holder).
    Tensor held(ValueId value) const { return held_[static_cast<size_t>(value)]; }
    // Floating-point operations, so far, of forward nodes that backward ran again.
    int64_t repeated_flops() const { return repeated_flops_; }

  private:
    // A step with its tensors.
    struct BoundStep {
        const Step* step = nullptr;
        Step::Kind kind;
        int unit = 0;
        bool repeats = false;
        std::vector<Binding> bindings = {};
        const Fusion* fusion = nullptr;
        Tensor target = {}, term = {}, other = {};
        int64_t limit = 0;
        bool others = false;
        std::vector<const Parameter*> released = {};
    };

    void hold_values();
    void copy_constant(const Value& value, const Tensor& to);
    Tensor tensor_at(const Place& place) const;
    BoundStep bound(const Step& step) const;
    void run(std::span<const BoundStep> steps, Pass pass, const PassArguments& arguments);
    void run(const BoundStep& step, Pass pass, const PassArguments& arguments);

    const NodeGraph& graph_;
    const Program& program_;
    const ParameterTable& table_;
    const ParameterStore& parameters_;
    Runtime& runtime_;
    Ops& ops_;
    Stream& stream_;
    std::vector<Buffer> buffers_;         // of values that live as long as this
    std::vector<Tensor> held_;            // their tensors, by value
    const Buffer& memory_;                // that all others share
    const std::vector<int64_t> offsets_;  // in it, by storage
    std::vector<BoundStep> forward_, backward_;
    BoundStep loss_;
    PassTracker* tracker_ = nullptr;
    StepWatch watch_;
    Peers peers_;
    std::vector<int32_t> documents_;
    const ScaleStore* scales_ = nullptr;
    const std::unique_ptr<Event> reached_, returned_;
    const ExchangeLane lane_;
    int64_t repeated_flops_ = 0;
};

}  // namespace speedrun
