#include "train/engine/node_work.h"

#include <algorithm>

#include "train/engine/batch_sources.h"
#include "train/engine/memory_plan.h"

namespace speedrun {

namespace {

std::string name_of(const Instruction& step, const NodeGraph& graph) {
    if (step.kind == Instruction::Kind::sort) return "order of ids";
    if (step.kind == Instruction::Kind::add) return "sum of gradients";
    std::string name;
    for (const NodeCall& call : step.calls) name += (name.empty() ? "" : " + ") + call.node->describe(graph);
    return name;
}

// Attributes the operations recorded by a meter to the model's program instructions.
class Tally {
  public:
    Tally(const MeteredOps& meter, const NodeGraph& graph) : meter_(meter), graph_(graph) {}

    // null: the following operations belong to no step
    void begins(const Instruction* step) {
        for (; counted_ < meter_.calls().size(); ++counted_) {
            if (!pass_) continue;
            NodeWork::Pass& into = rows_[row_].*pass_;
            into.flops += meter_.calls()[counted_].cost.flops;
            into.bytes += meter_.calls()[counted_].cost.bytes;
        }
        pass_ = nullptr;
        if (!step || step->kind == Instruction::Kind::enter) return;
        row_ = row_of(name_of(*step, graph_));
        pass_ = step->kind == Instruction::Kind::forward && !step->repeats ? &NodeWork::forward
                                                                           : &NodeWork::backward;
        ++(rows_[row_].*pass_).steps;
    }
    const std::vector<NodeWork>& rows() const { return rows_; }

  private:
    size_t row_of(const std::string& name) {
        const auto found =
            std::find_if(rows_.begin(), rows_.end(), [&](const NodeWork& row) { return row.name == name; });
        if (found != rows_.end()) return static_cast<size_t>(found - rows_.begin());
        rows_.push_back({.name = name});
        return rows_.size() - 1;
    }

    const MeteredOps& meter_;
    const NodeGraph& graph_;
    std::vector<NodeWork> rows_;
    size_t counted_ = 0, row_ = 0;
    NodeWork::Pass NodeWork::*pass_ = nullptr;
};

}  // namespace

std::vector<NodeWork> node_work(const Config& config, const Ranks& ranks) {
    Runtime runtime(dry_runtime_options(config));
    MeteredOps& meter = runtime.meter();
    StepRunner runner(config, runtime, ranks.without_world());
    SyntheticBatches batches(config, ranks);
    runner.warm_up();
    runner.use_graphs(false);
    Tally tally(meter, runner.state().model().graph());
    runner.state().model().watch([&](const Instruction* step) { tally.begins(step); });
    meter.start();
    runner.enqueue(0, batches);
    runner.collect();
    meter.stop();
    return tally.rows();
}

}  // namespace speedrun
