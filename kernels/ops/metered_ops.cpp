#include "kernels/ops/metered_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <type_traits>

namespace speedrun {

namespace {

// What the arguments that are no tensors say of those that are.
struct Switches {
    bool accumulate[2] = {false, false};
    int num_bools = 0;
    bool normalize = false, rotate = false;
};

template <class Argument>
void note_switch(Switches& s, const Argument& argument) {
    if constexpr (std::is_same_v<Argument, bool>) {
        s.accumulate[s.num_bools++] = argument;
    } else if constexpr (std::is_same_v<Argument, MatmulOptions>) {
        s.accumulate[0] = argument.accumulate;
    } else if constexpr (std::is_same_v<Argument, RotaryOptions>) {
        s.normalize = argument.normalize;
        s.rotate = argument.rotate;
    }
}

struct Tensors {
    std::array<Tensor, 12> all;
    int count = 0;
    int64_t other_bytes = 0;  // of those with a place of their own
};

template <class Argument>
void note_tensors(Tensors& t, const Argument& argument) {
    if constexpr (std::is_same_v<Argument, Tensor>) {
        t.all[t.count++] = argument;
    } else if constexpr (std::is_same_v<Argument, MixWith>) {
        t.other_bytes += argument.z.bytes() + argument.coefficients.bytes();
    } else if constexpr (std::is_same_v<Argument, ValueMix>) {
        if (!argument.mixed.present()) return;
        t.other_bytes += argument.mixed.bytes() + argument.v.bytes();
        note_tensors(t, argument.mix);
    }
}

// Bytes of tensor i, which plays this role (kernels/ops/op_list.h).
int64_t traffic(char role, const Tensors& t, int i, const Switches& s) {
    const Tensor& tensor = t.all[i];
    const int64_t bytes = tensor.bytes();
    // A row for each index, but no more than there are.
    const auto rows = [&] {
        return std::min(bytes, t.all[1].numel() * tensor.cols() * size_of(tensor.dtype));
    };
    switch (role) {
        case 'r':
        case 'w':
            return bytes;
        case 'u':
            return 2 * bytes;
        case '.':
            return 0;
        case 'a':
            return s.accumulate[0] ? 2 * bytes : bytes;
        case 'z':
            return s.accumulate[1] ? 2 * bytes : bytes;
        case 'g':
            return rows();
        case 's':
            return s.accumulate[0] ? 2 * t.all[2].rows() * tensor.cols() * size_of(tensor.dtype) : bytes;
        case 'p':
            return tensor.data && tensor.data == t.all[i + 1].data ? 0 : bytes;
        case 'q':
            return s.normalize || s.rotate ? 2 * bytes : 0;
        case 'n':
            return s.normalize ? bytes : 0;
        case 'o':
            return s.rotate ? bytes : 0;
        default:
            throw_internal("kernels/ops/op_list.h: no role '{}'", role);
    }
}

template <class... Arguments>
OpCost cost_of(const char* op, const char* roles, const Arguments&... arguments) {
    OpCost cost;
    cost.op = op;
    Switches switches;
    Tensors tensors;
    (note_switch(switches, arguments), ...);
    (note_tensors(tensors, arguments), ...);
    cost.bytes = tensors.other_bytes;
    for (int i = 0; i < tensors.count; ++i) cost.bytes += traffic(roles[i], tensors, i, switches);
    const auto note_transposes = [&](const auto& argument) {
        if constexpr (std::is_same_v<std::decay_t<decltype(argument)>, MatmulOptions>) {
            const Tensor &c = tensors.all[0], &a = tensors.all[1];
            cost.product = {c.shape[0], c.shape[1], argument.transpose_a ? a.shape[0] : a.shape[1]};
            cost.transpose_a = argument.transpose_a;
            cost.transpose_b = argument.transpose_b;
        }
    };
    (note_transposes(arguments), ...);
    const std::string_view name = op;
    if (name == "gram" || name == "polar_express") {
        const Tensor& x = tensors.all[name == "gram" ? 1 : 0];
        cost.product = {x.shape[0], x.shape[1], x.shape[2]};
    }
    return cost;
}

}  // namespace

std::string OpCost::name() const {
    if (!is_product()) return op;
    std::string text = fmt::format("{} {}x{}x{}", op, product[0], product[1], product[2]);
    if (std::string_view(op) == "matmul")
        text += fmt::format(" {}{}", transpose_a ? 't' : 'n', transpose_b ? 't' : 'n');
    return text;
}

void MeteredOps::start() {
    calls_.clear();
    events_used_ = 0;
    on_ = true;
}

const Event* MeteredOps::record(Stream& stream) {
    if (!device_) return nullptr;
    if (events_used_ == events_.size()) events_.push_back(device_->create_event(EventKind::timed));
    Event& event = *events_[events_used_++];
    stream.record(event);
    return &event;
}

// The stream is the last parameter of all of them, and called s.
#define SPEEDRUN_METER(name, roles, parameters, arguments)                                      \
    void MeteredOps::name parameters {                                                          \
        if (!on_) return ops_.name arguments;                                                   \
        Call call{[&](const auto&... all) { return cost_of(#name, roles, all...); } arguments}; \
        const int64_t flops = ops_.flops();                                                     \
        call.begin = record(s);                                                                 \
        ops_.name arguments;                                                                    \
        call.end = record(s);                                                                   \
        call.cost.flops = ops_.flops() - flops;                                                 \
        calls_.push_back(call);                                                                 \
    }
SPEEDRUN_EACH_OP(SPEEDRUN_METER)
#undef SPEEDRUN_METER

std::vector<std::string> all_operations() {
#define SPEEDRUN_NAME(name, roles, parameters, arguments) #name,
    return {SPEEDRUN_EACH_OP(SPEEDRUN_NAME)};
#undef SPEEDRUN_NAME
}

}  // namespace speedrun
