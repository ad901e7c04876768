#include "kernels/ops/metered_ops.h"

#include <fmt/format.h>

namespace speedrun {

std::string OpCost::name() const {
    std::string text = op;
    const auto add = [&](const op::ProductShape& shape) {
        const auto [first, second, third] = shape.sizes;
        text += fmt::format(" {}x{}x{}", first, second, third);
    };
    if (product.sizes[0] > 0) add(product);
    for (const op::ProductShape& batch : batches) add(batch);
    if (!product.layout.empty()) text += fmt::format(" {}", product.layout);
    constexpr const char* kEpilogues[] = {"", " relu_squared", " relu_squared fp8", " relu_squared_backward",
                                          " addend"};
    return text + kEpilogues[static_cast<size_t>(product.epilogue)] + (rotary ? " qk_norm_rotary" : "");
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

template <class Arguments>
void MeteredOps::pass_on(const char* name, const Arguments& a, Stream& stream) {
    if (!on_) return ops_.enqueue(a, stream);
    Call call;
    op::Traffic traffic;
    a.traffic(traffic);
    call.cost.op = name;
    call.cost.bytes = traffic.read() + traffic.written();
    call.cost.bytes_written = traffic.written();
    if constexpr (requires { a.product(); }) call.cost.product = a.product();
    if constexpr (requires { a.batches(); }) call.cost.batches = a.batches();
    if constexpr (requires { a.shape(); }) call.cost.attention = a.shape();
    if constexpr (requires { a.rotary.present(); }) call.cost.rotary = a.rotary.present();
    if constexpr (requires { a.loss(); }) call.cost.loss = a.loss();
    if constexpr (requires { count_terms(a.terms); }) call.cost.terms = count_terms(a.terms);
    const int64_t flops = ops_.flops();
    call.begin = record(stream);
    ops_.enqueue(a, stream);
    call.end = record(stream);
    call.cost.flops = ops_.flops() - flops;
    calls_.push_back(call);
}

#define SPEEDRUN_PASS_ON(name, Arguments)                              \
    void MeteredOps::enqueue(const op::Arguments& a, Stream& stream) { \
        pass_on(#name, a, stream);                                     \
    }
SPEEDRUN_EACH_OP(SPEEDRUN_PASS_ON)
#undef SPEEDRUN_PASS_ON

std::vector<std::string> all_operations() {
#define SPEEDRUN_NAME(name, Arguments) #name,
    return {SPEEDRUN_EACH_OP(SPEEDRUN_NAME)};
#undef SPEEDRUN_NAME
}

}  // namespace speedrun
