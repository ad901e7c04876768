// The engine overlaps all reductions, and the gathers of zero3, with all work that its schedule permits. No clock is
// read, so the machine's speed and load do not matter. Compute is blocked at each enqueued reduction until that has
// run: a reduction that waits for later backward work then never runs. A reduction enqueued only after such work is
// detected by its place in compute's order. In the reverse test, reductions are blocked until backward has advanced,
// which must not need them.
// Covers: train/sharding/parameter_gatherer.cpp
#include <gtest/gtest.h>

#include <chrono>
#include <future>

#include "kernels/device/error.h"
#include "tests/distributed/engine.h"
#include "tests/distributed/rank_threads.h"
#include "train/comm/host_task.h"
#include "train/comm/simulated_world.h"
#include "train/comm/wrapped_world.h"
#include "train/trace/timeline.h"

namespace speedrun::testing {
namespace overlap_test {

constexpr const char *kReduction = "stand still for a reduction", *kGather = "stand still for a gather";

enum class Who : uint8_t { compute, reductions };  // the blocked side

// Records the work and the blocks of one rank's compute stream, in order.
class Standstills final : public TraceSink {
  public:
    explicit Standstills(Who who) : who_(who) {}

    void watch(StepRunner& runner, Runtime& runtime) {
        runner_ = &runner;
        compute_ = &runtime.compute();
        runner.trace(&timeline_);
        runtime.device().set_trace(this);
    }
    // Returns null for all but reductions of gradients and gathers of sharded parameters.
    const char* label_of(const CollectiveCall& call) const {
        if (!runner_) return nullptr;
        const ParameterStore& parameters = runner_->state().model().parameters();
        for (const Bucket& bucket : parameters.layout().all()) {
            if (call.kind == Collective::reduce_scatter || call.kind == Collective::all_reduce) {
                if (call.input == runner_->state().gradients.whole(bucket).data) return kReduction;
            } else if (call.kind == Collective::all_gather && parameters.stored_sharded()) {
                if (call.output == parameters.compute_whole(bucket).data) return kGather;
            }
        }
        return nullptr;
    }
    // Called before and after a labelled collective is enqueued.
    void begin(const char* label, Stream& stream) {
        if (&stream == compute_) throw_internal("{} on the stream of compute", label);
        if (who_ == Who::compute) {
            ran_ = std::make_shared<Signal>();
            await(*compute_, label, *ran_);
        } else if (label == kReduction) {
            // Backward may be one stage ahead of the reductions if buckets share memory, else by all stages.
            if (runner_->state().gradients.memory().reused()) compute_goes_on();
            if (++reductions_ % runner_->state().model().parameters().layout().size() == 0)
                return;  // the last
            if (!went_on_) went_on_ = std::make_shared<Signal>();
            await(stream, "stand still for backward", *went_on_);
        }
    }
    void end(Stream& stream) { send(stream, std::move(ran_)); }
    // All work that reductions are blocked on has been enqueued.
    void compute_goes_on() { send(*compute_, std::move(went_on_)); }
    void span(const std::string& stream, const char* label, int64_t, int64_t, int tag) override {
        if (stream == "compute") work_.push_back({label, tag});  // only one thread writes
    }

    int reductions() const { return reductions_; }
    int count(const char* label) const {
        int count = 0;
        for (const Work& work : work_) count += work.label == label;
        return count;
    }
    // Late: compute worked between its last mark (the gradient is ready) and the reduction.
    int late_reductions() const {
        int late = 0;
        for (size_t i = 0; i < work_.size(); ++i)
            late += work_[i].label == kReduction && (i == 0 || work_[i - 1].tag == work_[i].tag);
        return late;
    }
    // Late: after the gather, compute was marked as a reader before it worked.
    int late_gathers() const {
        int late = 0;
        for (size_t i = 0; i < work_.size(); ++i) {
            if (work_[i].label != kGather) continue;
            size_t next = i + 1;
            while (next < work_.size() && work_[next].label == kGather && work_[next].tag == work_[i].tag)
                ++next;
            late += next == work_.size() || work_[next].tag != work_[i].tag;
        }
        return late;
    }

  private:
    struct Signal {
        std::promise<void> promise;
        const std::shared_future<void> future = promise.get_future().share();
    };
    static void send(Stream& stream, std::shared_ptr<Signal> signal) {
        if (signal) enqueue_on_host(stream, "go on", [signal] { signal->promise.set_value(); });
    }
    static void await(Stream& stream, const char* label, const Signal& signal) {
        enqueue_on_host(stream, label, [label, future = signal.future] {
            if (future.wait_for(std::chrono::seconds(30)) != std::future_status::ready)
                throw_internal("{}: waits for later work", label);
            future.get();
        });
    }
    struct Work {
        const char* label;
        int tag;
    };
    StepRunner* runner_ = nullptr;
    Stream* compute_ = nullptr;
    const Who who_;
    Timeline timeline_;                      // source of the tags
    std::shared_ptr<Signal> ran_, went_on_;  // null: no waiter
    int reductions_ = 0;
    std::vector<Work> work_;
};

class WatchedCommunicator final : public Communicator {
  public:
    WatchedCommunicator(std::unique_ptr<Communicator> inner, Standstills& standstills)
        : Communicator(inner->name(), inner->group()), inner_(std::move(inner)), standstills_(standstills) {}

    CollectiveCounts counts() const override { return inner_->counts(); }

  private:
    void enqueue(const CollectiveCall& call, Stream& stream) override {
        const char* const label = standstills_.label_of(call);
        if (label) standstills_.begin(label, stream);
        if (!label && name().starts_with("reduce")) standstills_.compute_goes_on();  // statistics of the step
        inner_->count_and_enqueue(call, stream);
        if (label) standstills_.end(stream);
    }

    const std::unique_ptr<Communicator> inner_;
    Standstills& standstills_;
};

class WatchedWorld final : public WrappedWorld {
  public:
    WatchedWorld(World& inner, Standstills& standstills) : WrappedWorld(inner), standstills_(standstills) {}
    std::unique_ptr<Communicator> connect(const std::string& name, const Group& group) override {
        return std::make_unique<WatchedCommunicator>(inner_.connect(name, group), standstills_);
    }

  private:
    Standstills& standstills_;
};

// Trains all ranks with random network delays and passes each rank's record to `check`.
void train_watched(const Mode& mode, Who who, const std::function<void(const Standstills&)>& check) {
    std::vector<std::unique_ptr<Standstills>> watches;
    for (int rank = 0; rank < mode.num_ranks(); ++rank) watches.push_back(std::make_unique<Standstills>(who));
    run_ranks(mode.num_ranks(), [&](World& threads) {
        Standstills& standstills = *watches[static_cast<size_t>(threads.rank())];
        const auto slow = make_simulated_world(threads, {.model = {}, .jitter_s = 2e-4, .seed = 7});
        WatchedWorld world(*slow, standstills);
        train(mode, &world,
              [&](StepRunner& runner, Runtime& runtime) { standstills.watch(runner, runtime); });
    });
    for (const auto& standstills : watches) check(*standstills);
}

int reductions_of(const Mode& mode) {
    const Layout layout(mode);
    int64_t count = 0;
    for (const Bucket& bucket : layout.buckets.all())
        count += bucket.num_shards > 1 && *layout.ranks.sharing().accumulate == Accumulate::reduce_scatter
                     ? mode.accumulation()
                     : 1;
    return static_cast<int>(count * kSteps);
}

std::vector<Mode> modes() {
    return modes_of(kStrategies, {"1x2", "1x2 muon", "1x2 /2 muon", "1x2 in_backward"});
}

TEST(OverlapTest, EveryReductionCanRunBesideAllOfBackwardThatFollows) {
    for (const Mode& mode : modes()) {
        SCOPED_TRACE(::testing::PrintToString(mode));
        train_watched(mode, Who::compute, [&](const Standstills& compute) {
            EXPECT_EQ(compute.count(kReduction), reductions_of(mode));
            EXPECT_EQ(compute.late_reductions(), 0) << "overlap is lost";
        });
    }
}

TEST(OverlapTest, BackwardNeedsNoReduction) {
    for (const Mode& mode : modes()) {
        SCOPED_TRACE(::testing::PrintToString(mode));
        train_watched(mode, Who::reductions, [&](const Standstills& standstills) {
            EXPECT_EQ(standstills.reductions(), reductions_of(mode));
        });
    }
}

// Control for the first test: without overlap, every reduction is late.
TEST(OverlapTest, ReductionsAfterBackwardAreAllLate) {
    for (const Mode& mode : modes_of(kStrategies, {"1x2 after_backward", "1x2 muon after_backward"})) {
        SCOPED_TRACE(::testing::PrintToString(mode));
        train_watched(mode, Who::compute, [&](const Standstills& compute) {
            EXPECT_EQ(compute.late_reductions(), reductions_of(mode));
        });
    }
}

// Only the first unit's gather has no work to overlap with: a gather waits for the update of its values.
TEST(OverlapTest, GathersOfStoredPartsRunBesideTheStageBefore) {
    for (const Mode& mode : modes()) {
        if (!mode.has("zero3")) continue;
        SCOPED_TRACE(::testing::PrintToString(mode));
        const Layout layout(mode);
        int first = 0, gathers = 0;
        for (const Bucket& bucket : layout.buckets.all()) {
            for (const Lifetime& read :
                 reads_of(bucket, Stages(layout.table.num_units()), *layout.buckets.rules().stored_sharded)) {
                first += read.first == 0;
                ++gathers;
            }
        }
        const int microbatches = static_cast<int>(kSteps * mode.accumulation());
        train_watched(mode, Who::compute, [&](const Standstills& compute) {
            EXPECT_EQ(compute.count(kGather), microbatches * gathers);
            EXPECT_EQ(compute.late_gathers(), microbatches * first);
        });
    }
}

}  // namespace overlap_test
}  // namespace speedrun::testing
