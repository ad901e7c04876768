#include "train/model/graph/executor.h"

#include "kernels/device/error.h"

namespace speedrun {

namespace {

Tensor tensor_of(const Value& value, DType dtype, const Buffer& memory, int64_t offset) {
    if (value.extents.size() == 1) return memory.tensor(dtype, {value.extents[0].size}, offset);
    return memory.tensor(dtype, {value.extents[0].size, value.extents[1].size}, offset);
}

}  // namespace

Executor::Executor(const NodeGraph& graph, const Program& program, const ParameterTable& table,
                   const ParameterStore& parameters, Runtime& runtime, const Buffer& memory)
    : graph_(graph),
      program_(program),
      table_(table),
      parameters_(parameters),
      runtime_(runtime),
      ops_(runtime.ops()),
      stream_(runtime.compute()),
      memory_(memory),
      offsets_(share_memory(program).offset),
      reached_(runtime.device().create_event()),
      returned_(runtime.device().create_event()),
      exchange_stream_{runtime.exchange(), *reached_, *returned_} {
    hold_values();
    for (const Instruction& instruction : program.forward) forward_.push_back(bound(instruction));
    for (const Instruction& instruction : program.backward) backward_.push_back(bound(instruction));
    loss_ = bound(program.loss);
}

void Executor::hold_values() {
    held_.resize(graph_.values().size());
    for (size_t id = 0; id < graph_.values().size(); ++id) {
        const Value& value = graph_.values()[id];
        if (value.holder == Holder::program || value.is_view) continue;
        const DType dtype = dtype_of(value.element, runtime_.compute_dtype());
        const MemoryCategory category =
            value.holder == Holder::batch ? MemoryCategory::data : MemoryCategory::activations;
        buffers_.emplace_back(runtime_.device(), value.name, category, value.numel() * size_of(dtype));
        held_[id] = tensor_of(value, dtype, buffers_.back(), 0);
        if (value.holder == Holder::constant) copy_constant(value, held_[id]);
    }
}

void Executor::copy_constant(const Value& value, const Tensor& to) {
    const std::vector<Bf16> rounded(value.content.begin(), value.content.end());
    const void* from = value.content.data();
    if (to.dtype == DType::bf16) from = rounded.data();
    if (to.dtype == DType::i32) from = value.integers.data();
    runtime_.device().copy(to.data, from, to.bytes(), stream_);
    stream_.synchronize();  // the source may be freed
}

Tensor Executor::tensor_at(const Location& location) const {
    if (location.storage < 0) return {};
    const auto index = static_cast<size_t>(location.storage);
    if (program_.storages[index].held != kNoValue) return held(program_.storages[index].held);
    if (location.like == kNoValue)
        return memory_.tensor(dtype_of(location.element, runtime_.compute_dtype()),
                              {location.rows, location.cols}, offsets_[index]);
    const Value& value = graph_[location.like];
    const Tensor whole = tensor_of(graph_[value.root], dtype_of(value.element, runtime_.compute_dtype()),
                                   memory_, offsets_[index]);
    return value.is_view ? whole.column_slice(value.first_column, value.extents[1].size) : whole;
}

Executor::BoundInstruction Executor::bound(const Instruction& instruction) const {
    const auto tensors = [&](const std::vector<Location>& locations) {
        std::vector<Tensor> all;
        for (const Location& location : locations) all.push_back(tensor_at(location));
        return all;
    };
    BoundInstruction to{.instruction = &instruction,
                        .target = tensor_at(instruction.target),
                        .term = tensor_at(instruction.term),
                        .other = tensor_at(instruction.other)};
    for (const ParameterId id : instruction.freed) to.freed.push_back(&table_[id]);
    for (const NodeCall& call : instruction.calls) {
        Binding binding{.node = call.node,
                        .reads = tensors(call.reads),
                        .writes = tensors(call.writes),
                        .scratch = tensors(call.scratch),
                        .orders = tensors(call.orders),
                        .written_gradients = tensors(call.written_gradients),
                        .read_gradients = {},
                        .uses = {},
                        .shares = call.shares};
        for (const GradientLocation& gradient : call.read_gradients)
            binding.read_gradients.push_back(
                {tensor_at(gradient.tensor), gradient.adds, tensor_at(gradient.other)});
        for (const NodeCall::Use& use : call.uses) {
            const Parameter& p = table_[use.parameter];
            binding.uses.push_back({{&p, parameters_.compute(p)}, use.completes, use.read_later});
        }
        to.calls.push_back(std::move(binding));
    }
    return to;
}

void Executor::run(const BoundInstruction& bound, Pass pass, const PassArguments& arguments) {
    const Instruction& instruction = *bound.instruction;
    std::vector<Call> calls;
    for (const Binding& binding : bound.calls)
        calls.emplace_back(
            binding, Call::Setting{ops_, stream_, arguments, peers_, exchange_stream_, documents_, scales_,
                                   pass == Pass::backward ? tracker_ : nullptr});
    switch (instruction.kind) {
        case Instruction::Kind::enter:
            if (tracker_) tracker_->enter(instruction.unit, pass);
            break;
        case Instruction::Kind::forward: {
            const int64_t flops_before = ops_.flops();
            instruction.fusion ? instruction.fusion->forward(calls)
                               : calls.front().node().forward(calls.front());
            if (instruction.repeats) repeated_flops_ += ops_.flops() - flops_before;
            break;
        }
        case Instruction::Kind::backward:
            instruction.fusion ? instruction.fusion->backward(calls)
                               : calls.front().node().backward(calls.front());
            break;
        case Instruction::Kind::shared:
            calls.front().node().backward_of_shared(calls);
            break;
        case Instruction::Kind::sort:
            ops_.sort_ids({.order = bound.target,
                           .index = bound.term,
                           .limit = instruction.limit,
                           .others = instruction.others},
                          stream_);
            break;
        case Instruction::Kind::add:
            ops_.add({.y = bound.target, .x = bound.term, .z = bound.other}, stream_);
            break;
    }
    for (const Parameter* p : bound.freed) tracker_->param_free(*p);
}

void Executor::run(std::span<const BoundInstruction> instructions, Pass pass,
                   const PassArguments& arguments) {
    for (const BoundInstruction& instruction : instructions) {
        if (watch_) watch_(instruction.instruction);
        run(instruction, pass, arguments);
    }
    if (watch_) watch_(nullptr);
}

void Executor::forward(bool training) {
    run(forward_, Pass::forward, {.training = training});
}

void Executor::backward(const PassArguments& arguments) {
    if (!tracker_) throw_internal("backward without a tracker of its gradients");
    run(backward_, Pass::backward, arguments);
    tracker_->end_backward();
}

}  // namespace speedrun
