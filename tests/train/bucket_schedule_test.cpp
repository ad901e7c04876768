// Reported values and parameter changes of a step with all optimizers, on one rank.
// Covers: train/sharding/group_update.cpp train/sharding/state_memory.cpp
#include "train/sharding/bucket_schedule.h"
#include "tests/errors.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <thread>

#include "kernels/cpu/cpu_device.h"
#include "tests/train/model_harness.h"
#include "tests/train/small_model.h"
#include "train/model/build_model.h"
#include "train/optim/groups.h"

namespace speedrun::testing::bucket_schedule_test {

class BucketScheduleTest : public ::testing::Test {
  protected:
    BucketScheduleTest()
        : config_(muon_and_adamw()),
          model_(tiny_model()),
          harness_(model_, 16, 8, DType::f32, bucket_rules(ranks_, parameters_of(model_, 8), config_)) {
        harness_.randomize(0.3, 1);
    }
    // Optimizer state of one run and its reported values.
    struct Run {
        Run(const OptimizersConfig& config, const Ranks& ranks, ModelHarness& h)
            : runtime(h.runtime),
              reducer(ranks, h.model.parameters(), h.gradients, h.runtime),
              schedule(config, h.table(), ranks, {h.model.parameters(), h.gradients, reducer, h.runtime}),
              host(h.runtime.device(), schedule.statistics().host_bytes()) {
            schedule.state().reset();
            h.runtime.synchronize();
        }
        ~Run() { runtime.drain(); }
        HostStatistics numbers() const { return HostStatistics(host.as<float>()); }

        Runtime& runtime;
        Reducer reducer;
        BucketSchedule schedule;
        HostBuffer host;
    };
    std::unique_ptr<Run> make() { return std::make_unique<Run>(config_, ranks_, harness_); }

    // Runs backward and the optimizer step. Gradients remain readable.
    void step(Run& run, int64_t step, double lr_factor = 1) {
        harness_.model.track(&run.schedule);
        run.schedule.begin_microbatch({.step = step, .lr_factor = lr_factor});
        harness_.backward(random_batch(model_, 2, 8, true, 1), 1);
        finish(run);
    }
    void finish(Run& run) {
        run.schedule.step(*backward_done_, *reduce_done_);
        run.schedule.read_statistics(run.host.as<float>(), *reduce_done_, *step_done_);
        harness_.runtime.synchronize();
    }
    static double norm_term(const Run& run, const Parameter& p) {
        return run.numbers().norm_term(run.schedule.state().layout().bucket_of(p).id);
    }
    Values master(const Parameter& p) { return harness_.read(harness_.model.parameters().master(p)); }
    std::vector<Values> masters() {
        std::vector<Values> all;
        for (const Parameter& p : harness_.table().all()) all.push_back(master(p));
        return all;
    }

    OptimizersConfig config_;
    ModelConfig model_;
    Ranks ranks_;
    ModelHarness harness_;
    std::unique_ptr<Event> backward_done_ = harness_.runtime.device().create_event();
    std::unique_ptr<Event> reduce_done_ = harness_.runtime.device().create_event();
    std::unique_ptr<Event> step_done_ = harness_.runtime.device().create_event();
};

TEST_F(BucketScheduleTest, NormCoversAllParametersAndAllUpdate) {
    const auto made = make();
    Run& run = *made;
    const std::vector<Values> before = masters();
    step(run, 0);
    double squares = 0;
    for (const Parameter& p : harness_.table().all()) {
        const double norm = norm_of(harness_.gradient(p));
        squares += norm * norm;
        EXPECT_NEAR(norm_term(run, p), norm * norm, 1e-5 * norm * norm) << p.name;
        EXPECT_NE(master(p), before[p.id]) << p.name;
    }
    EXPECT_NEAR(run.numbers().grad_norm(), std::sqrt(squares), 1e-5 * std::sqrt(squares));
    EXPECT_EQ(run.numbers().coefficient(), 1);
}

// Norm as in torch.nn.utils.clip_grad_norm_: the p-norm of all gradients concatenated.
TEST_F(BucketScheduleTest, MatchesNormOfConcatenatedGradients) {
    const std::vector<Values> before = masters();
    for (const char* norm : {"1", "2", "3", "inf"}) {
        for (const double share : {0.0, 0.3, 2.0}) {  // clip limit / norm; 0: no limit
            SCOPED_TRACE(fmt::format("norm {}, limit {} of it", norm, share));
            for (const Parameter& p : harness_.table().all()) harness_.set(p, before[p.id]);
            const double power = std::stod(norm);
            const auto term = [&](const Values& gradient) {
                double sum = 0, largest = 0;
                for (double g : gradient) {
                    sum += std::pow(std::abs(g), power);
                    largest = std::max(largest, std::abs(g));
                }
                return std::isinf(power) ? largest : sum;
            };
            config_.clip_norm = choice_of<VectorNorm>(norm);
            config_.clip = 0;
            step(*make(), 0);  // fills the gradients
            Values terms;
            for (const Parameter& p : harness_.table().all()) terms.push_back(term(harness_.gradient(p)));
            double expected = 0;
            for (double t : terms) expected = std::isinf(power) ? std::max(expected, t) : expected + t;
            if (!std::isinf(power)) expected = std::pow(expected, 1 / power);

            for (const Parameter& p : harness_.table().all()) harness_.set(p, before[p.id]);
            config_.clip = share * expected;
            const auto made = make();
            Run& run = *made;
            step(run, 0);
            // f32 sums of up to 1024 terms and one root.
            EXPECT_NEAR(run.numbers().grad_norm(), expected, 1e-6 * expected);
            EXPECT_NEAR(run.numbers().coefficient(), share == 0.3 ? 0.3 : 1, 1e-6);
            for (const Parameter& p : harness_.table().all()) {
                EXPECT_NEAR(norm_term(run, p), terms[p.id], 1e-5 * terms[p.id]) << p.name;
            }
        }
    }
}

// The reported norm is the norm before clipping.
TEST_F(BucketScheduleTest, ClippingScalesNormToLimit) {
    config_.clip = 0.25;
    const auto made = make();
    Run& run = *made;
    step(run, 0);
    const double norm = run.numbers().grad_norm();
    ASSERT_GT(norm, 0.25);
    EXPECT_NEAR(run.numbers().coefficient(), 0.25 / norm, 1e-6 * 0.25 / norm);
}

// A checkpoint copies the masters before a later step. Updates wait for a slow copy.
TEST_F(BucketScheduleTest, UpdatesWaitForCopies) {
    const auto made = make();
    BucketSchedule& schedule = made->schedule;
    step(*made, 0);
    const std::vector<Values> before = masters();
    std::vector<std::vector<float>> copied(before.size());
    StateCopies copies;
    for (const Bucket& bucket : schedule.state().layout().all()) {
        std::vector<HostCopy>& of_bucket = copies.buckets.emplace_back();
        for (const Parameter* p : bucket.parameters) {
            copied[static_cast<size_t>(p->id)].resize(static_cast<size_t>(p->numel()));
            of_bucket.push_back(
                {harness_.model.parameters().master(*p), copied[static_cast<size_t>(p->id)].data()});
        }
    }
    harness_.model.track(&schedule);
    schedule.begin_microbatch({.step = 1});
    harness_.backward(random_batch(model_, 2, 8, true, 1), 1);
    std::promise<void> disk_is_ready;
    static_cast<CpuStream&>(harness_.runtime.copy())
        .submit("slow copy", [ready = disk_is_ready.get_future().share()] { ready.wait(); });
    schedule.copy_state(copies);
    schedule.step(*backward_done_, *reduce_done_);
    harness_.runtime.compute().synchronize();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // enough for all updates
    disk_is_ready.set_value();
    harness_.runtime.synchronize();
    for (const Parameter& p : harness_.table().all()) {
        const auto id = static_cast<size_t>(p.id);
        EXPECT_NE(master(p), before[id]) << p.name;
        EXPECT_EQ(Values(copied[id].begin(), copied[id].end()), before[id]) << p.name;
    }
}

// Learning rates of 0 between others: a step that used those of another step would change the wrong weights, or none.
TEST_F(BucketScheduleTest, GraphReadsNumbersOfItsStep) {
    for (const bool graphs : {false, true}) {
        static_cast<CpuDevice&>(harness_.runtime.device()).allow_graphs(graphs);
        const auto made = make();
        step(*made, 0);
        made->schedule.capture_step({.step = 1});
        EXPECT_EQ(made->schedule.num_step_graphs(), graphs ? 1u : 0u);
        int64_t number = 1;
        for (const double lr_factor : {1, 0, 1, 0, 0, 1, 1, 0}) {
            const std::vector<Values> before = masters();
            step(*made, number++, lr_factor);
            const std::vector<Values> after = masters();
            for (size_t i = 0; i < before.size(); ++i)
                EXPECT_EQ(after[i] == before[i], lr_factor == 0) << "step " << number << ", parameter " << i;
        }
    }
}

// A single non-finite gradient leaves all parameters unchanged, so the last good ones can be saved.
class ClipNormTest : public BucketScheduleTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Norms, ClipNormTest, ::testing::Values("1", "2", "3", "inf"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(ClipNormTest, NonFiniteGradientSkipsAllUpdates) {
    config_.clip_norm = choice_of<VectorNorm>(GetParam());
    const auto made = make();
    Run& run = *made;
    const Parameter& embed = harness_.table().find("embed.weight");
    Values values = master(embed);
    values[3] = std::nan("");
    harness_.set(embed, values);
    HostBatch batch = random_batch(model_, 2, 8, true, 1);
    batch.tokens[0] = 0;  // reads the bad row
    const std::vector<Values> before = masters();
    harness_.model.track(&run.schedule);
    run.schedule.begin_microbatch({});
    harness_.upload(batch);
    harness_.model.forward(true);
    harness_.model.loss_and_backward(run.schedule.statistics().loss_sum(), false, 1);
    finish(run);
    EXPECT_FALSE(std::isfinite(run.numbers().grad_norm()));
    const std::vector<Values> after = masters();
    for (const Parameter& p : harness_.table().all()) {
        if (p.id == embed.id) continue;  // NaN != NaN
        EXPECT_EQ(after[p.id], before[p.id]) << p.name;
    }
}

// A step before the last microbatch would use incomplete gradients.
TEST_F(BucketScheduleTest, RejectsStepBeforeLastMicrobatch) {
    const auto made = make();
    made->schedule.begin_microbatch({.step = 3, .first = true, .last = false});
    expect_error(ExitCode::failure, {"step 3"}, [&] { made->schedule.step(*backward_done_, *reduce_done_); });
}

// A group with `every: 2` steps on the summed gradients of two steps. The norm of a step excludes gradients that wait.
TEST_F(BucketScheduleTest, GroupStepsEverySecondStep) {
    config_.groups.back().every = 2;
    const auto made = make();
    Run& run = *made;
    const std::vector<Values> start = masters();
    const std::vector<int> groups = assign_groups(harness_.table(), config_);
    const int slow = static_cast<int>(config_.groups.size()) - 1;
    step(run, 0);
    const std::vector<Values> once = masters();
    for (const Parameter& p : harness_.table().all()) {
        EXPECT_EQ(once[p.id] == start[p.id], groups[p.id] == slow) << p.name;
        const double square = norm_term(run, p);
        EXPECT_EQ(square == 0, groups[p.id] == slow) << p.name;
    }
    std::vector<Values> first;
    for (const Parameter& p : harness_.table().all()) first.push_back(harness_.gradient(p));
    for (const Parameter& p : harness_.table().all())
        harness_.set(p, start[p.id]);  // restores the parameter, so that the gradient repeats
    step(run, 1);
    for (const Parameter& p : harness_.table().all()) {
        EXPECT_NE(masters()[p.id], start[p.id]) << p.name;
        const Values second = harness_.gradient(p);
        for (size_t i = 0; i < second.size(); ++i)
            ASSERT_FLOAT_EQ(static_cast<float>(second[i]),
                            static_cast<float>((groups[p.id] == slow ? 2 : 1) * first[p.id][i]))
                << p.name;
    }
    step(run, 2);
    for (const Parameter& p : harness_.table().all())
        EXPECT_EQ(norm_term(run, p) == 0, groups[p.id] == slow) << p.name << ": the norm of step 1";
}

// reset() clears moments and momentum: the step equals one from a fresh optimizer.
TEST_F(BucketScheduleTest, ResetMatchesFreshOptimizer) {
    const auto made = make();
    Run& run = *made;
    const std::vector<Values> start = masters();
    step(run, 0);
    const std::vector<Values> once = masters();
    step(run, 1);
    for (const Parameter& p : harness_.table().all()) harness_.set(p, start[p.id]);
    run.schedule.state().reset();
    harness_.runtime.synchronize();
    step(run, 0);
    EXPECT_EQ(masters(), once);
}

}  // namespace speedrun::testing::bucket_schedule_test
