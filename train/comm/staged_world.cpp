#include "train/comm/staged_world.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "train/comm/wrapped_world.h"

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
    // Offsets of a collective's input and output in the staging memory, in bytes. They overlap as the tensors do, within the
    // limits of the interface.
    struct Layout {
        int64_t input = 0, input_bytes = 0, output = 0, output_bytes = 0, total = 0;
    };

    // Elements up to the end of the last slice.
    static int64_t extent(const std::vector<Slice>& slices) {
        int64_t end = 0;
        for (const Slice& slice : slices) end = std::max(end, slice.begin + slice.count);
        return end;
    }

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
            case Collective::all_to_all: {
                const int64_t in = extent(call.exchange->sends) * size_of(call.dtype),
                              out = extent(call.exchange->receives) * size_of(call.dtype);
                const int64_t behind = (in + 63) / 64 * 64;
                return {0, in, behind, out, behind + out};
            }
            case Collective::broadcast:
                return {0, is_root ? part : 0, 0, is_root ? 0 : part, part};
            case Collective::barrier:
                break;
        }
        return {};
    }

    void enqueue(const CollectiveCall& call, Stream& stream) override {
        const Layout at = layout(call);
        // Smaller buffers are kept: on a GPU, freeing waits for all streams, including one that waits for a peer. Slices may
        // grow from step to step; sizes are powers of two, so that the memory is at most twice the longest need.
        const bool any_size = call.kind == Collective::all_to_all;
        const auto total = static_cast<uint64_t>(at.total);
        const auto needed = static_cast<int64_t>(any_size ? std::bit_ceil(total) : total);
        if (staging_.empty() || staging_.back().bytes() < at.total) staging_.emplace_back(device_, needed);
        stream.wait(*idle_);  // needed if the communicator last used another stream
        char* const host = staging_.back().as<char>();
        CollectiveCall staged = call;
        staged.input = host + at.input;
        staged.output = host + at.output;
        if (at.input_bytes > 0) device_.copy(host + at.input, call.input, at.input_bytes, stream);
        inner_->count_and_enqueue(staged, stream);
        if (call.kind == Collective::all_to_all) {
            take_received(call, host + at.output, stream);
        } else if (at.output_bytes > 0) {
            device_.copy(call.output, host + at.output, at.output_bytes, stream);
        }
        stream.record(*idle_);
    }

    // Copies only the received slices: the collective must not write between them.
    void take_received(const CollectiveCall& call, const char* staged, Stream& stream) {
        const int64_t element = size_of(call.dtype);
        for (const Slice& slice : call.exchange->receives) {
            const int64_t begin = slice.begin * element;
            if (slice.count > 0)
                device_.copy(static_cast<char*>(call.output) + begin, staged + begin, slice.count * element,
                             stream);
        }
    }

    const std::unique_ptr<Communicator> inner_;
    Device& device_;
    const std::unique_ptr<Event> idle_;  // signalled when the staging memory is free
    std::vector<HostBuffer> staging_;    // the last one is in use
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
