// What a node sees while it enqueues itself: its tensors, by port.
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

// Who has what other ranks share with this one; null: nobody is asked.
struct Peers {
    Communicator* context = nullptr;  // rows
    Communicator* tensor = nullptr;   // matrices
    ExposureMeter* meter = nullptr;   // times the waits of compute; null: no waits are timed

    [[gnu::always_inline]] void await(Stream& compute, const Event& event) const {
        if (!meter) return compute.wait(event);
        meter->time(ExposureMeter::Kind::wait, compute, [&] { compute.wait(event); });
    }
};

// The stream on which values travel between ranks, and how it and the compute stream meet.
struct ExchangeLane {
    Stream& stream;
    Event& reached;  // by the compute stream: what is sent is there
    Event& returned;
};

// The gradient of a value that a node reads. Absent (tensor) where nobody wants it.
struct ValueGradient {
    Tensor tensor;
    bool adds = false;  // to what is there already, where the node gives `added`
    Tensor other = {};  // what other readers gave, where it gives `plus`; absent: nothing
};

// The tensors of a node in one pass of a program.
struct Binding {
    struct Use {
        const Parameter* parameter;
        Tensor value;
        bool completes = false;   // nothing contributes to the gradient after this node
        bool read_later = false;  // backward reads the value in this node or after it
    };
    const Node* node = nullptr;
    std::vector<Tensor> reads, writes, scratch, orders;
    std::vector<Tensor> written_gradients;  // absent: nothing reads that value
    std::vector<ValueGradient> read_gradients;
    std::vector<Use> uses;
};

// What a pass of the whole model is given.
struct PassArguments {
    Tensor loss_sum = {};  // f32 [1]
    bool accumulate_loss = false;
    float gradient_scale = 0;
    bool training = false;  // else losses or samples alone are wanted
};

class Call {
  public:
    // What every call of a pass has.
    struct Setting {
        Ops& ops;
        Stream& stream;
        const PassArguments& pass;
        const Peers& peers;
        const ExchangeLane& lane;
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
          lane_(setting.lane),
          binding_(binding),
          tracker_(setting.tracker) {}

    Ops& ops;
    Stream& stream;
    const PassArguments& pass;
    const Peers peers;
    const std::vector<int32_t>& documents;  // Batch::chunk_first_keys of the microbatch, while it is enqueued
    const ScaleStore* const scales;         // null: none are kept

    const Node& node() const { return *binding_.node; }
    Tensor operator()(Node::In port) const { return at(binding_.reads, port.index); }
    Tensor operator()(Node::Out port) const { return at(binding_.writes, port.index); }
    Tensor operator()(Node::Tmp port) const { return at(binding_.scratch, port.index); }
    Tensor operator()(Node::Par port) const {
        return port.index < 0 ? Tensor{} : binding_.uses[static_cast<size_t>(port.index)].value;
    }
    Tensor order_of(Node::In port) const { return at(binding_.orders, port.index); }
    Tensor gradient(Node::Out port) const { return at(binding_.written_gradients, port.index); }
    ValueGradient gradient(Node::In port) const {
        return port.index < 0 ? ValueGradient{} : binding_.read_gradients[static_cast<size_t>(port.index)];
    }

    // ---- what travels between ranks, on a stream of its own

    // Calls enqueue(stream), which enqueues collectives there and what belongs between them, behind all that the compute
    // stream has to do by now. What comes after await_exchange() on the compute stream waits for them; what comes before
    // runs beside them. Nothing else may be begun between the two.
    template <class Enqueue>
    void begin_exchange(const Enqueue& enqueue) const {
        stream.record(lane_.reached);
        lane_.stream.wait(lane_.reached);
        enqueue(lane_.stream);
        lane_.stream.record(lane_.returned);
    }
    void await_exchange() const { peers.await(stream, lane_.returned); }
    template <class Enqueue>
    void exchange(const Enqueue& enqueue) const {
        begin_exchange(enqueue);
        await_exchange();
    }

    // A parameter of this call, to contribute to its gradient; null where the port is absent.
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
    const ExchangeLane& lane_;
    const Binding& binding_;
    PassTracker* const tracker_;
};

// Calls enqueue(gradients), which enqueues a node's whole contribution to the gradients of these parameters.
// Those that are complete by it are announced before this returns.
template <class Enqueue>
void contribute_all(std::span<const Call::Target> targets, const Enqueue& enqueue) {
    std::vector<ParameterGradient> gradients;
    for (const Call::Target& target : targets) {
        gradients.emplace_back();
        if (target.use) gradients.back() = target.tracker->begin_gradient(*target.use->parameter);
    }
    enqueue(std::span<const ParameterGradient>(gradients));
    for (const Call::Target& target : targets)
        if (target.use && target.use->completes)
            target.tracker->grad_ready(*target.use->parameter, target.use->read_later);
}

// For a number of parameters that the node knows: calls enqueue(ParameterGradient...).
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
