// Arguments of a node's forward and backward: its tensors, by port.
#pragma once

#include <array>
#include <span>
#include <utility>
#include <vector>

#include "kernels/ops/ops.h"
#include "train/model/graph/node.h"
#include "train/sharding/pass_tracker.h"
#include "train/sharding/scale_store.h"

namespace speedrun {

class Communicator;

// Communicators of the context and tensor axes; null if the axis has size 1 or no other rank runs.
struct Peers {
    Communicator* context = nullptr;  // ranks that share rows
    Communicator* tensor = nullptr;   // ranks that share matrices
    ExposureMeter* meter = nullptr;   // times the waits of compute; null: not timed

    [[gnu::always_inline]] void await(Stream& compute, const Event& event) const {
        if (!meter) return compute.wait(event);
        meter->time(ExposureMeter::Kind::wait, compute, [&] { compute.wait(event); });
    }
};

// Exchange stream for collectives between nodes, and the events that order it with the compute stream.
struct ExchangeStream {
    Stream& stream;
    Event& reached;  // recorded on compute when the data to send is complete
    Event& returned;
};

// Gradient of a value that a node reads. T: Tensor, or the Location of one in a program. tensor is absent if no gradient is needed.
template <class T>
struct GradientOf {
    T tensor = {};
    bool adds = false;  // GradientRule::added: accumulate into `tensor`
    T other = {};       // GradientRule::plus: earlier sum to add, absent if there is none
};
using ValueGradient = GradientOf<Tensor>;

// One node in one step. T: Tensor or Location; P: the parameter of a use.
template <class T, class P>
struct NodeCallOf {
    struct Use {
        P parameter;
        bool completes = false;   // last contribution to the parameter's gradient
        bool read_later = false;  // backward reads the value in this node or after it
    };
    const Node* node = nullptr;
    std::vector<T> reads, writes, scratch, orders;
    std::vector<T> written_gradients;  // absent: no reader
    std::vector<GradientOf<T>> read_gradients;
    std::vector<Use> uses;
    bool shares = false;  // the gradient of the first written value is read again (Node::backward_of_shared)
};
struct BoundParameter {
    const Parameter* parameter;
    Tensor value;
};
using Binding = NodeCallOf<Tensor, BoundParameter>;

// Arguments of a pass over the whole model.
struct PassArguments {
    Tensor loss_sum = {};  // f32 [1]
    bool accumulate_loss = false;
    float gradient_scale = 0;
    bool training = false;  // false: only losses or samples are needed
};

class Call {
  public:
    // Arguments common to all calls of a pass.
    struct Setting {
        Ops& ops;
        Stream& stream;
        const PassArguments& pass;
        const Peers& peers;
        const ExchangeStream& exchange_stream;
        const std::vector<int32_t>& documents;
        const ScaleStore* scales;
        PassTracker* tracker;  // null in forward
    };
    Call(const Binding& binding, const Setting& setting)
        : ops(setting.ops),
          stream(setting.stream),
          pass(setting.pass),
          peers(setting.peers),
          documents(setting.documents),
          scales(setting.scales),
          exchange_stream_(setting.exchange_stream),
          binding_(binding),
          tracker_(setting.tracker) {}

    Ops& ops;
    Stream& stream;
    const PassArguments& pass;
    const Peers peers;
    const std::vector<int32_t>& documents;  // Batch::chunk_first_keys of the current microbatch
    const ScaleStore* const scales;         // null: delayed scaling is off

    const Node& node() const { return *binding_.node; }
    Tensor operator()(Node::In port) const { return at(binding_.reads, port.index); }
    Tensor operator()(Node::Out port) const { return at(binding_.writes, port.index); }
    Tensor operator()(Node::Tmp port) const { return at(binding_.scratch, port.index); }
    Tensor operator()(Node::Par port) const {
        return port.index < 0 ? Tensor{} : binding_.uses[static_cast<size_t>(port.index)].parameter.value;
    }
    Tensor order_of(Node::In port) const { return at(binding_.orders, port.index); }
    Tensor gradient(Node::Out port) const { return at(binding_.written_gradients, port.index); }
    ValueGradient gradient(Node::In port) const {
        return port.index < 0 ? ValueGradient{} : binding_.read_gradients[static_cast<size_t>(port.index)];
    }

    bool shares() const { return binding_.shares; }

    // ---- collectives between nodes, on the exchange stream

    // Calls enqueue(stream) for collectives, and operations between them, on the exchange stream. They start after all
    // work enqueued on compute so far. Compute work enqueued before await_exchange() overlaps with them; later work
    // waits for them. Only one exchange can be open.
    template <class Enqueue>
    void begin_exchange(const Enqueue& enqueue) const {
        stream.record(exchange_stream_.reached);
        exchange_stream_.stream.wait(exchange_stream_.reached);
        enqueue(exchange_stream_.stream);
        exchange_stream_.stream.record(exchange_stream_.returned);
    }
    void await_exchange() const { peers.await(stream, exchange_stream_.returned); }
    template <class Enqueue>
    void exchange(const Enqueue& enqueue) const {
        begin_exchange(enqueue);
        await_exchange();
    }

    // Parameter of this call, to contribute to its gradient; null if the port is absent.
    struct Target {
        const Binding::Use* use;
        PassTracker* tracker;
    };
    Target of(Node::Par port) const {
        return {port.index < 0 ? nullptr : &binding_.uses[static_cast<size_t>(port.index)], tracker_};
    }

  private:
    static Tensor at(const std::vector<Tensor>& tensors, int index) {
        return index < 0 ? Tensor{} : tensors[static_cast<size_t>(index)];
    }
    const ExchangeStream& exchange_stream_;
    const Binding& binding_;
    PassTracker* const tracker_;
};

inline void Node::backward_of_shared(std::span<const Call> /*calls*/) const {}

// Calls enqueue(gradients), which enqueues a node's whole contribution to the gradients of these parameters. Then
// announces each gradient that this contribution completes.
template <class Enqueue>
void contribute_all(std::span<const Call::Target> targets, const Enqueue& enqueue) {
    std::vector<ParameterGradient> gradients;
    for (const Call::Target& target : targets) {
        gradients.emplace_back();
        if (target.use) gradients.back() = target.tracker->begin_gradient(*target.use->parameter.parameter);
    }
    enqueue(std::span<const ParameterGradient>(gradients));
    for (const Call::Target& target : targets)
        if (target.use && target.use->completes)
            target.tracker->grad_ready(*target.use->parameter.parameter, target.use->read_later);
}

// As above, for a fixed number of parameters: calls enqueue(ParameterGradient...).
template <class Enqueue, class... Targets>
void contribute(const Enqueue& enqueue, const Targets&... targets) {
    const std::array<Call::Target, sizeof...(Targets)> all{targets...};
    contribute_all(all, [&](std::span<const ParameterGradient> gradients) {
        [&]<size_t... I>(std::index_sequence<I...>) {
            enqueue(gradients[I]...);
        }
        (std::index_sequence_for<Targets...>());
    });
}

}  // namespace speedrun
