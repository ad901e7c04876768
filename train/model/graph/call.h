// What a node sees while it enqueues itself: its tensors, by port.
#pragma once

#include <array>
#include <memory>
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

// A Transfer with an event for each piece: there to be sent, and there to be read.
struct TransferEvents {
    Transfer of;
    std::vector<std::unique_ptr<Event>> departures, arrivals;
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
    // Transfers of the program (Program::transfers) that the node has to do with; null: none.
    const TransferEvents *arrives = nullptr, *departs = nullptr;
    const TransferEvents* transfer = nullptr;  // that the node itself is
    bool handed_over = false;                  // … whose departures are recorded by the node before it
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
    // Calls enqueue(piece, stream) for each piece of the node's own Node::transfer, which leaves as soon as it is there; the
    // compute stream goes on, and whoever touches the rows waits.
    template <class Enqueue>
    void transfer(const Enqueue& enqueue) const {
        const TransferEvents& own = *binding_.transfer;
        if (!binding_.handed_over) {
            stream.record(lane_.reached);
            lane_.stream.wait(lane_.reached);
        }
        for (int64_t piece = 0; piece < own.of.from.pieces; ++piece) {
            if (binding_.handed_over) lane_.stream.wait(*own.departures[static_cast<size_t>(piece)]);
            enqueue(piece, lane_.stream);
            lane_.stream.record(*own.arrivals[static_cast<size_t>(piece)]);
        }
    }
    // Do rows of this node travel in pieces? Then others may wait for what it gives by by_rows().
    bool rows_travel() const { return binding_.arrives || binding_.departs; }
    // Calls enqueue(RowSpan) for parts that are all rows of a node with Node::by_rows, each once it is there, and tells whoever
    // sends what the node makes of them. Rows that do not travel are one part.
    template <class Enqueue>
    void by_rows(int64_t rows, const Enqueue& enqueue) const {
        const TransferEvents *const arrives = binding_.arrives, *const departs = binding_.departs;
        if (!rows_travel()) return enqueue(RowSpan{0, rows});
        const RowPieces& pieces = arrives ? arrives->of.to : departs->of.from;
        for (int64_t piece = 0; piece < pieces.pieces; ++piece) {
            if (arrives) peers.await(stream, *arrives->arrivals[static_cast<size_t>(piece)]);
            for (int64_t share = 0; share < pieces.shares; ++share) enqueue(pieces.span({piece, share}));
            if (departs) stream.record(*departs->departures[static_cast<size_t>(piece)]);
        }
    }
    // All rows that this node reads have come from here on.
    void await_rows() const {
        if (binding_.arrives) peers.await(stream, *binding_.arrives->arrivals.back());
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
