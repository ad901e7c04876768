#include "train/timeline/recorded_step.h"

#include <map>
#include <unordered_map>

#include "kernels/cpu/cpu_device.h"
#include "train/engine/batch_sources.h"
#include "train/engine/step_runner.h"
#include "train/timeline/recorded_world.h"

namespace speedrun {

namespace {

class Recorder final : public EnqueueObserver {
  public:
    void start(RecordedSteps* into) { into_ = into; }

    void work(const Stream& stream, const char* label) override {
        add(RecordedItem::Kind::work, stream, label, -1);
    }
    void recorded(const Stream& stream, const Event& event) override {
        if (!into_) return;
        records_[&event] = static_cast<int>(into_->items.size());
        add(RecordedItem::Kind::record, stream, "record", -1);
    }
    void waits(const Stream& stream, const Event& event) override {
        const auto record = records_.find(&event);
        if (record != records_.end()) add(RecordedItem::Kind::wait, stream, "wait", record->second);
    }
    void collective(const Communicator& communicator, const CollectiveCall& call, Stream& stream) {
        if (!into_) return;
        RecordedCollective collective{.kind = call.kind, .group = group_of(communicator), .payload_bytes = 0};
        const auto bytes_of = [&](const std::vector<Slice>& slices) {
            std::map<int, int64_t> bytes;
            for (const Slice& slice : slices)
                if (slice.member != communicator.index())
                    bytes[communicator.group().ranks[static_cast<size_t>(slice.member)]] +=
                        slice.count * size_of(call.dtype);
            return std::vector<std::pair<int, int64_t>>(bytes.begin(), bytes.end());
        };
        if (call.kind == Collective::all_to_all) {
            collective.sends = bytes_of(call.exchange->sends);
            collective.receives = bytes_of(call.exchange->receives);
        } else {
            const bool whole = call.kind == Collective::all_reduce || call.kind == Collective::broadcast;
            collective.payload_bytes = call.count * size_of(call.dtype) * (whole ? 1 : communicator.size());
        }
        into_->collectives.push_back(std::move(collective));
        add(RecordedItem::Kind::collective, stream, name_of(call.kind),
            static_cast<int>(into_->collectives.size()) - 1);
    }
    // Index of the latest item that records the event.
    size_t item_of(const Event& event) const { return static_cast<size_t>(records_.at(&event)); }

  private:
    void add(RecordedItem::Kind kind, const Stream& stream, const char* label, int index) {
        if (!into_) return;
        const auto [found, fresh] = streams_.try_emplace(&stream, static_cast<int>(into_->streams.size()));
        if (fresh) into_->streams.push_back(stream.name());
        into_->items.push_back({kind, found->second, label, stream.trace_tag(), index});
    }
    int group_of(const Communicator& communicator) {
        const auto [found, fresh] =
            groups_.try_emplace(&communicator, static_cast<int>(into_->groups.size()));
        if (fresh) into_->groups.push_back(communicator.group());
        return found->second;
    }

    RecordedSteps* into_ = nullptr;
    std::unordered_map<const Event*, int> records_;
    std::map<const Stream*, int> streams_;
    std::map<const Communicator*, int> groups_;
};

// Turns the item of an operation's first event into that operation.
void join_operations(const std::vector<MeteredOps::Call>& calls, const Recorder& recorder,
                     RecordedSteps& steps) {
    for (const MeteredOps::Call& call : calls) {
        const size_t begin = recorder.item_of(*call.begin), end = recorder.item_of(*call.end);
        RecordedItem& item = steps.items[begin];
        item.kind = RecordedItem::Kind::operation;
        item.label = call.cost.op;
        item.index = static_cast<int>(steps.operations.size());
        steps.operations.push_back(call.cost);
        for (size_t i = begin + 1; i < end; ++i) {
            const RecordedItem& inside = steps.items[i];
            if (inside.kind != RecordedItem::Kind::work || inside.stream != item.stream)
                throw_internal("{} enqueues more than work on its stream", call.cost.op);
        }
    }
}

}  // namespace

double RecordedCollective::sent_bytes(int ranks) const {
    if (kind != Collective::all_to_all) return wire_bytes(kind, ranks, payload_bytes);
    int64_t bytes = 0;
    for (const auto& [rank, sent] : sends) bytes += sent;
    return static_cast<double>(bytes);
}

RecordedSteps record_steps(const Config& config, RuntimeOptions options, const Ranks& ranks,
                           bool operations) {
    const int size = ranks.mesh().world_size();
    options.dry = true;
    options.communicates = size > 1;
    Recorder recorder;
    const auto world =
        make_recorded_world(size, [&](const Communicator& communicator, const CollectiveCall& call,
                                      Stream& stream) { recorder.collective(communicator, call, stream); });
    Runtime runtime(options);
    auto& device = dynamic_cast<CpuDevice&>(runtime.device());
    MeteredOps* const meter = operations ? &runtime.meter() : nullptr;
    StepRunner runner(config, runtime, size > 1 ? ranks.with_world(*world) : ranks.without_world());
    runner.warm_up();
    SyntheticBatches batches(config, ranks);
    RecordedSteps steps;
    steps.ranks = size;
    steps.period = runner.state().period;
    steps.memory_bytes = device.memory().total();
    steps.timeline = std::make_unique<Timeline>();
    runner.trace(steps.timeline.get());
    runner.start_clock();
    const int64_t first = runner.first_steady_step();
    device.observe(&recorder);
    recorder.start(&steps);
    if (meter) meter->start();
    for (size_t step = 0; step <= steps.end_measured(); ++step) {
        steps.step_begins.push_back(steps.items.size());
        runner.enqueue(first + static_cast<int64_t>(step), batches);
        recorder.start(nullptr);  // calls of collect() are not work of the step
        runner.collect();
        recorder.start(&steps);
    }
    device.observe(nullptr);
    if (meter) {
        meter->stop();
        join_operations(meter->calls(), recorder, steps);
    }
    return steps;
}

}  // namespace speedrun
