#include "train/distributed/staged_world.h"

#include <utility>

#include "train/distributed/wrapped_world.h"

namespace speedrun {

namespace {

class StagedCommunicator final : public Communicator {
  public:
    StagedCommunicator(std::unique_ptr<Communicator> inner, Device& device)
        : Communicator(inner->name(), inner->group()),
          inner_(std::move(inner)),
          device_(device),
          idle_(device.create_event()) {}

    CollectiveCounts counts() const override { return inner_->counts(); }

  private:
    // Where a collective's input and output lie in the staging memory, in bytes: as in tensors that overlap
    // as far as the interface lets them.
    struct Layout {
        int64_t input = 0, input_bytes = 0, output = 0, output_bytes = 0, total = 0;
    };

    Layout layout(const CollectiveCall& call) const {
        const int64_t part = call.count * size_of(call.dtype), whole = part * size(), own = part * index();
        const bool is_root = index() == call.root;
        switch (call.kind) {
            case Collective::all_reduce:
                return {0, part, 0, part, part};
            case Collective::reduce_scatter:
                return {0, whole, own, part, whole};
            case Collective::all_gather:
                return {own, part, 0, whole, whole};
            case Collective::all_to_all:
                return {0, whole, whole, whole, 2 * whole};
            case Collective::broadcast:
                return {0, is_root ? part : 0, 0, is_root ? 0 : part, part};
            case Collective::barrier:
                break;
        }
        return {};
    }

    void enqueue(const CollectiveCall& call, Stream& stream) override {
        const Layout at = layout(call);
        // Smaller ones stay: on a GPU, freeing waits for all streams, also for one that waits for a peer.
        if (staging_.empty() || staging_.back().bytes() < at.total) staging_.emplace_back(device_, at.total);
        stream.wait(*idle_);  // of another stream, should the communicator have served one
        char* const host = staging_.back().as<char>();
        CollectiveCall staged = call;
        staged.input = host + at.input;
        staged.output = host + at.output;
        if (at.input_bytes > 0) device_.copy(host + at.input, call.input, at.input_bytes, stream);
        inner_->count_and_enqueue(staged, stream);
        if (at.output_bytes > 0) device_.copy(call.output, host + at.output, at.output_bytes, stream);
        stream.record(*idle_);
    }

    const std::unique_ptr<Communicator> inner_;
    Device& device_;
    const std::unique_ptr<Event> idle_;  // the staging memory is free
    std::vector<HostBuffer> staging_;    // the last one serves
};

class StagedWorld final : public WrappedWorld {
  public:
    StagedWorld(World& inner, Device& device) : WrappedWorld(inner), device_(device) {}

    std::unique_ptr<Communicator> connect(const std::string& name, const Group& group) override {
        return std::make_unique<StagedCommunicator>(inner_.connect(name, group), device_);
    }

  private:
    Device& device_;
};

}  // namespace

std::unique_ptr<World> make_staged_world(World& world, Device& device) {
    return std::make_unique<StagedWorld>(world, device);
}

}  // namespace speedrun
