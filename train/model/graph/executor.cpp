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
      lane_{runtime.exchange(), *reached_, *returned_} {
    hold_values();
    for (const Step& step : program.forward) forward_.push_back(bound(step));
    for (const Step& step : program.backward) backward_.push_back(bound(step));
    loss_ = bound(program.loss);
}

void Executor::hold_values() {
    held_.resize(graph_.values().size());
    for (size_t id = 0; id < graph_.values().size(); ++id) {
        const Value& value = graph_.values()[id];
        if (value.holder == Holder::program || value.is_view) continue;
        const DType dtype = dtype_of(value.element, runtime_.real());
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

Tensor Executor::tensor_at(const Place& place) const {
    if (place.storage < 0) return {};
    const auto index = static_cast<size_t>(place.storage);
    if (program_.storages[index].held != kNoValue) return held(program_.storages[index].held);
    if (place.like == kNoValue)
        return memory_.tensor(dtype_of(place.element, runtime_.real()), {place.rows, place.cols},
                              offsets_[index]);
    const Value& value = graph_[place.like];
    const Tensor whole =
        tensor_of(graph_[value.root], dtype_of(value.element, runtime_.real()), memory_, offsets_[index]);
    return value.is_view ? whole.column_slice(value.first_column, value.extents[1].size) : whole;
}

Executor::BoundStep Executor::bound(const Step& step) const {
    const auto tensors = [&](const std::vector<Place>& places) {
        std::vector<Tensor> all;
        for (const Place& place : places) all.push_back(tensor_at(place));
        return all;
    };
    BoundStep to{.step = &step,
                 .target = tensor_at(step.target),
                 .term = tensor_at(step.term),
                 .other = tensor_at(step.other)};
    for (const ParameterId id : step.released) to.released.push_back(&table_[id]);
    for (const NodeCall& call : step.calls) {
        Binding binding{.node = call.node,
                        .reads = tensors(call.reads),
                        .writes = tensors(call.writes),
                        .scratch = tensors(call.scratch),
                        .orders = tensors(call.orders),
                        .written_gradients = tensors(call.written_gradients),
                        .read_gradients = {},
                        .uses = {}};
        for (const GradientPlace& gradient : call.read_gradients)
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

void Executor::run(const BoundStep& bound, Pass pass, const PassArguments& arguments) {
    const Step& step = *bound.step;
    std::vector<Call> calls;
    for (const Binding& binding : bound.calls)
        calls.emplace_back(binding, Call::Setting{ops_, stream_, arguments, peers_, lane_, documents_,
                                                  scales_, pass == Pass::backward ? tracker_ : nullptr});
    switch (step.kind) {
        case Step::Kind::enter:
            if (tracker_) tracker_->enter(step.unit, pass);
            break;
        case Step::Kind::forward: {
            const int64_t flops_before = ops_.flops();
            step.fusion ? step.fusion->forward(calls) : calls.front().node().forward(calls.front());
            if (step.repeats) repeated_flops_ += ops_.flops() - flops_before;
            break;
        }
        case Step::Kind::backward:
            step.fusion ? step.fusion->backward(calls) : calls.front().node().backward(calls.front());
            break;
        case Step::Kind::sort:
            ops_.sort_ids(
                {.order = bound.target, .index = bound.term, .limit = step.limit, .others = step.others},
                stream_);
            break;
        case Step::Kind::add:
            ops_.add({.y = bound.target, .x = bound.term, .z = bound.other}, stream_);
            break;
    }
    for (const Parameter* p : bound.released) tracker_->param_free(*p);
}

void Executor::run(std::span<const BoundStep> steps, Pass pass, const PassArguments& arguments) {
    for (const BoundStep& step : steps) {
        if (watch_) watch_(step.step);
        run(step, pass, arguments);
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
