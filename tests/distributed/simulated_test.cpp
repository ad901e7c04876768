// The simulated network: takes the time that its model says, hides behind other streams, and changes no bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>

#include "kernels/cpu/cpu_device.h"
#include "tests/distributed/rank_threads.h"
#include "train/distributed/host_task.h"
#include "train/distributed/simulated_world.h"

namespace speedrun::testing {
namespace {

using namespace std::chrono_literals;

// Milliseconds of 3 pieces of compute of 40 ms, each followed by a collective of 40 ms on another stream.
// Work that sleeps, so that the machine's cores do not matter.
double overlapped_ms(World& world, Communicator& communicator) {
    CpuDevice device(1);
    const auto compute = device.create_stream("compute"), reduce = device.create_stream("reduce");
    const auto begin = device.create_event(EventKind::timed), end = device.create_event(EventKind::timed),
               ready = device.create_event();
    std::vector<float> values(1000, 1.0f);
    world.barrier();
    compute->record(*begin);
    for (int layer = 0; layer < 3; ++layer) {
        enqueue_on_host(*compute, "backward", [] { std::this_thread::sleep_for(40ms); });
        compute->record(*ready);
        reduce->wait(*ready);
        communicator.all_reduce(Tensor(values.data(), DType::f32, {1000}), *reduce);
    }
    reduce->record(*end);
    reduce->synchronize();
    compute->synchronize();
    EXPECT_EQ(values[0], 8.0f);  // doubled three times
    return end->elapsed_ms_since(*begin);
}

// Serial 240 ms, ideal overlap 160 ms; no run can be faster, and the fastest of a few comes within 10% even
// where something else keeps the machine busy now and then.
TEST(SimulatedWorldTest, HidesBehindAnotherStream) {
    run_ranks(2, [](World& threads) {
        const auto world = make_simulated_world(threads, {{40e-3, 0}, 0, 1});
        const auto communicator =
            world->connect("gradients", Mesh({1, 2, 1, 1}).group(world->rank(), {Axis::shard}));
        double fastest = 1e9;
        for (int attempt = 0; attempt < 10 && fastest >= 176.0; ++attempt)
            fastest = world->max(std::min(fastest, overlapped_ms(*world, *communicator)));
        EXPECT_GE(fastest, 160.0);
        EXPECT_LT(fastest, 176.0);
    });
}

// One step of 3 layers: 25 ms of compute per layer forward and again backward, 10 ms for each reduction and
// each gather, on the streams of the engine and ordered like its buckets.
struct StepTimes {
    double reduced_ms = 1e9;  // forward, backward and the last reduction
    double next_ms = 1e9;     // and until the next forward may begin
};

StepTimes scheduled_step(World& world, Communicator& reducing, Communicator& gathering, bool when_ready) {
    constexpr int kLayers = 3;
    CpuDevice device(1);
    const auto compute = device.create_stream("compute"), reduce = device.create_stream("reduce"),
               gather = device.create_stream("gather");
    const auto begin = device.create_event(EventKind::timed), reduced = device.create_event(EventKind::timed),
               next = device.create_event(EventKind::timed);
    std::vector<float> gradients(200, 1.0f), values(200, 1.0f);
    const auto part = [&](std::vector<float>& of) {
        return Tensor(of.data() + 100 * reducing.index(), DType::f32, {100});
    };
    const auto whole = [](std::vector<float>& of) { return Tensor(of.data(), DType::f32, {200}); };
    std::array<std::unique_ptr<Event>, kLayers> raw, stepped;
    for (auto* events : {&raw, &stepped})
        for (auto& event : *events) event = device.create_event();
    const auto communicate = [&](int layer) {
        reduce->wait(*raw[static_cast<size_t>(layer)]);
        reducing.reduce_scatter(part(gradients), whole(gradients), *reduce);
        reduce->record(*stepped[static_cast<size_t>(layer)]);  // a step that takes no time
        gather->wait(*stepped[static_cast<size_t>(layer)]);
        gathering.all_gather(whole(values), part(values), *gather);
    };
    const auto work = [&] { enqueue_on_host(*compute, "layer", [] { std::this_thread::sleep_for(25ms); }); };
    world.barrier();
    compute->record(*begin);
    for (int layer = 0; layer < kLayers; ++layer) work();
    for (int layer = kLayers - 1; layer >= 0; --layer) {
        work();
        compute->record(*raw[static_cast<size_t>(layer)]);
        if (when_ready) communicate(layer);
    }
    if (!when_ready) {  // all of them behind the end of backward
        reduce->wait(*raw[0]);
        for (int layer = kLayers - 1; layer >= 0; --layer) communicate(layer);
    }
    reduce->record(*reduced);
    gather->record(*next);
    for (Stream* stream : {compute.get(), reduce.get(), gather.get()}) stream->synchronize();
    return {reduced->elapsed_ms_since(*begin), next->elapsed_ms_since(*begin)};
}

// Ideal: 6 x 25 ms of compute, and behind it the last layer's reduction alone, 160 ms; then its gather, 170.
// Serial: 180 with all reductions, 210 with all gathers. When reductions wait for the end of backward, their
// 30 ms are all exposed, and the last gather: 190.
TEST(SimulatedWorldTest, ThreeLayersComeWithinTenPercentOfTheIdealOverlap) {
    run_ranks(2, [](World& threads) {
        const auto world = make_simulated_world(threads, {{10e-3, 0}, 0, 1});
        const Group pair = Mesh({1, 2, 1, 1}).group(world->rank(), {Axis::shard});
        const auto reducing = world->connect("gradients", pair), gathering = world->connect("values", pair);
        StepTimes best;
        for (int attempt = 0; attempt < 10 && (best.reduced_ms >= 176 || best.next_ms >= 187); ++attempt) {
            const StepTimes times = scheduled_step(*world, *reducing, *gathering, true);
            best.reduced_ms = world->max(std::min(best.reduced_ms, times.reduced_ms));
            best.next_ms = world->max(std::min(best.next_ms, times.next_ms));
        }
        EXPECT_GE(best.reduced_ms, 160.0);
        EXPECT_LT(best.reduced_ms, 176.0) << "within 10% of the ideal, and below the serial 180";
        EXPECT_GE(best.next_ms, 170.0);
        EXPECT_LT(best.next_ms, 187.0);
        const StepTimes late = scheduled_step(*world, *reducing, *gathering, false);
        EXPECT_GE(late.reduced_ms, 180.0);
        EXPECT_GE(late.next_ms, 190.0);
        // What the communicators say of their time is what the network took.
        const CollectiveCounts counts = reducing->counts();
        const auto& scatter = counts[static_cast<size_t>(Collective::reduce_scatter)];
        EXPECT_GE(static_cast<double>(scatter.busy_ns), 10e6 * static_cast<double>(scatter.calls));
    });
}

// The time that the network is asked for is noted instead of waited for, so that a busy machine changes
// nothing.
TEST(SimulatedWorldTest, BandwidthCountsWireBytes) {
    run_ranks(2, [](World& threads) {
        std::vector<double> waited_ms;
        const auto world = make_simulated_world(
            threads, {{2e-3, 100e6}, 0, 1},
            [&](std::chrono::duration<double> time) { waited_ms.push_back(time.count() * 1e3); });
        const auto communicator =
            world->connect("gradients", Mesh({1, 2, 1, 1}).group(world->rank(), {Axis::shard}));
        CpuDevice device(1);
        const auto stream = device.create_stream("reduce");
        constexpr int64_t kPart = 1000, kWhole = 2 * kPart;
        std::vector<float> whole(kWhole, 1.0f), part(kPart, 1.0f), other(kWhole);
        const Tensor whole_f32(whole.data(), DType::f32, {kWhole}),
            part_f32(part.data(), DType::f32, {kPart});
        const Tensor other_f32(other.data(), DType::f32, {kWhole});
        const Tensor whole_bf16(whole.data(), DType::bf16, {kWhole});
        communicator->all_reduce(whole_f32, *stream);
        communicator->all_reduce(whole_bf16, *stream);
        communicator->reduce_scatter(part_f32, whole_f32, *stream);
        communicator->all_gather(whole_f32, part_f32, *stream);
        const Exchange halves{{{0, 0, kPart}, {1, kPart, kPart}}, {{0, 0, kPart}, {1, kPart, kPart}}};
        communicator->all_to_all(other_f32, whole_f32, halves, *stream);
        communicator->broadcast(whole_f32, 0, *stream);
        communicator->barrier(*stream);
        stream->synchronize();
        // 8000 bytes of f32 at 100 MB/s behind 2 ms of latency: all_reduce sends them once from each of 2
        // ranks, 0.08 ms, the others half of them.
        const std::vector<double> expected_ms{2.08, 2.04, 2.04, 2.04, 2.04, 2.04, 2.0};
        ASSERT_EQ(waited_ms.size(), expected_ms.size());
        for (size_t i = 0; i < expected_ms.size(); ++i)
            EXPECT_NEAR(waited_ms[i], expected_ms[i], 1e-9) << "call " << i;  // rounding of doubles alone
        const CollectiveCounts counts = communicator->counts();
        const auto sent = [&](Collective kind) { return counts[static_cast<size_t>(kind)].bytes_sent; };
        EXPECT_EQ(sent(Collective::all_reduce), 8000 + 4000);
        EXPECT_EQ(sent(Collective::reduce_scatter), 4000);
        EXPECT_EQ(sent(Collective::all_gather), 4000);
        EXPECT_EQ(sent(Collective::all_to_all), 4000);
    });
}

}  // namespace
}  // namespace speedrun::testing
