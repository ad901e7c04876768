// Which group takes which parameter, and what a step of all of them reports.
#include "train/optim/optimizer_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/train/model_harness.h"
#include "tests/train/small_model.h"

namespace speedrun::testing {
namespace {

ModelConfig tiny(const std::string& preset = "modern") {
    return model_of(preset, {.layers = 2, .width = 16, .heads = 2, .vocabulary = 40});
}

OptimizerGroupConfig group(const std::string& type, const std::vector<std::string>& params) {
    OptimizerGroupConfig g;
    g.type = type;
    g.params = params;
    return g;
}

// ---- assignment

std::string assignment_error(const ModelConfig& model, const std::vector<OptimizerGroupConfig>& groups) {
    OptimizersConfig config;
    config.groups = groups;
    try {
        assign_groups(ParameterTable(model, 8), config);
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::usage);
        return error.what();
    }
    return "no error";
}

TEST(AssignGroupsTest, TheFirstGroupThatMatchesTakesAParameter) {
    const ParameterTable table(tiny(), 8);
    OptimizersConfig config;
    config.groups = {group("adamw", {"*.out.*", "embed.weight"}), group("muon", {"blocks.?.*.weight"}),
                     group("adamw", {"*"})};
    const std::vector<int> group_of = assign_groups(table, config);
    for (const Parameter& p : table.all()) {
        const int expected = p.name.ends_with("attn.out.weight") || p.name == "embed.weight" ? 0
                             : p.name == "head.weight"                                       ? 2
                                                                                             : 1;
        EXPECT_EQ(group_of[p.id], expected) << p.name;
    }
}

TEST(AssignGroupsTest, ParametersThatNoGroupTakesAreAllNamed) {
    const std::string message = assignment_error(tiny(), {group("muon", {"blocks.*"})});
    EXPECT_NE(message.find("no group takes embed.weight, head.weight"), std::string::npos) << message;
    EXPECT_EQ(message.find("blocks."), std::string::npos) << message;
    // Patterns cover whole names.
    EXPECT_NE(assignment_error(tiny(), {group("adamw", {"blocks"})}).find("blocks.0.attn.qkv.weight"),
              std::string::npos);
}

TEST(AssignGroupsTest, GroupThatTakesNothingIsAnError) {
    const std::string message =
        assignment_error(tiny(), {group("adamw", {"*"}), group("muon", {"blocks.*"})});
    EXPECT_NE(message.find("optimizers.groups[1]"), std::string::npos) << message;
}

TEST(AssignGroupsTest, MuonTakesNoVectors) {
    const std::string message =
        assignment_error(tiny("gpt2"), {group("muon", {"blocks.*"}), group("adamw", {"*"})});
    EXPECT_NE(message.find("optimizers.groups[0]"), std::string::npos) << message;
    EXPECT_NE(message.find("blocks.0.attn_norm.gain"), std::string::npos) << message;
}

// ---- a step of all of them

class OptimizerSetTest : public ::testing::Test {
  protected:
    OptimizerSetTest()
        : config_(two_groups()),
          model_(tiny()),
          harness_(model_, 16, 8, "f32", bucket_rules(ranks_, ParameterTable(model_, 8), config_)) {
        harness_.randomize(0.3, 1);
    }
    static OptimizersConfig two_groups() {
        OptimizersConfig config;
        config.groups = {group("muon", {"blocks.*.weight"}), group("adamw", {"*"})};
        return config;
    }
    // Backward and the step; the gradients stay readable.
    void step(OptimizerSet& set, int64_t step) {
        harness_.gradients.listen([&](const Parameter& p) { set.sync().ready(p), set.sync().reduce(p); });
        set.begin_microbatch({.step = step});
        harness_.backward(random_batch(model_, 2, 8, true, 1), 1);
        harness_.gradients.listen({});
        set.step(false, *backward_done_, *reduce_done_);
        harness_.runtime.synchronize();
    }
    std::unique_ptr<OptimizerSet> make() {
        auto set =
            std::make_unique<OptimizerSet>(config_, harness_.table(), ranks_, harness_.model.parameters(),
                                           harness_.gradients, harness_.runtime);
        set->reset();
        harness_.runtime.synchronize();
        return set;
    }
    double statistic(OptimizerSet& set, int64_t index) { return harness_.read(set.statistic(index))[0]; }
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
};

TEST_F(OptimizerSetTest, NormIsOverAllParametersAndEveryParameterMoves) {
    const auto made = make();
    OptimizerSet& set = *made;
    const std::vector<Values> before = masters();
    step(set, 0);
    double squares = 0;
    for (const Parameter& p : harness_.table().all()) {
        const double norm = norm_of(harness_.gradient(p));
        squares += norm * norm;
        EXPECT_NEAR(statistic(set, OptimizerSet::kNormTerms + set.layout().bucket_of(p).id), norm * norm,
                    1e-5 * norm * norm)
            << p.name;
        EXPECT_NE(master(p), before[p.id]) << p.name;
    }
    EXPECT_NEAR(statistic(set, OptimizerSet::kGradNorm), std::sqrt(squares), 1e-5 * std::sqrt(squares));
    EXPECT_EQ(statistic(set, OptimizerSet::kCoefficient), 1);
}

// Norm as torch.nn.utils.clip_grad_norm_ defines it: the p-norm of all gradients as one vector.
TEST_F(OptimizerSetTest, EveryNormIsThatOfAllGradientsAsOneVector) {
    const std::vector<Values> before = masters();
    for (const char* norm : {"1", "2", "3", "inf"}) {
        for (const double share : {0.0, 0.3, 2.0}) {  // of the norm, that the limit is; 0: no limit
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
            config_.clip_norm = norm;
            config_.clip = 0;
            step(*make(), 0);  // for the gradients
            Values terms;
            for (const Parameter& p : harness_.table().all()) terms.push_back(term(harness_.gradient(p)));
            double expected = 0;
            for (double t : terms) expected = std::isinf(power) ? std::max(expected, t) : expected + t;
            if (!std::isinf(power)) expected = std::pow(expected, 1 / power);

            for (const Parameter& p : harness_.table().all()) harness_.set(p, before[p.id]);
            config_.clip = share * expected;
            const auto made = make();
            OptimizerSet& set = *made;
            step(set, 0);
            // f32 sums of up to 1024 terms, and a root.
            EXPECT_NEAR(statistic(set, OptimizerSet::kGradNorm), expected, 1e-6 * expected);
            EXPECT_NEAR(statistic(set, OptimizerSet::kCoefficient), share == 0.3 ? 0.3 : 1, 1e-6);
            for (const Parameter& p : harness_.table().all()) {
                const int64_t index = OptimizerSet::kNormTerms + set.layout().bucket_of(p).id;
                EXPECT_NEAR(statistic(set, index), terms[p.id], 1e-5 * terms[p.id]) << p.name;
            }
        }
    }
}

// The norm that is reported is the one before clipping.
TEST_F(OptimizerSetTest, ClippingScalesDownToTheLimit) {
    config_.clip = 0.25;
    const auto made = make();
    OptimizerSet& set = *made;
    step(set, 0);
    const double norm = statistic(set, OptimizerSet::kGradNorm);
    ASSERT_GT(norm, 0.25);
    EXPECT_NEAR(statistic(set, OptimizerSet::kCoefficient), 0.25 / norm, 1e-6 * 0.25 / norm);
}

// One bad gradient anywhere, and no parameter changes: the last good ones can be saved.
class EveryNormTest : public OptimizerSetTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Norms, EveryNormTest, ::testing::Values("1", "2", "3", "inf"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(EveryNormTest, NonFiniteGradientStopsAllParameters) {
    config_.clip_norm = GetParam();
    const auto made = make();
    OptimizerSet& set = *made;
    const Parameter& embed = harness_.table().find("embed.weight");
    Values values = master(embed);
    values[3] = std::nan("");
    harness_.set(embed, values);
    HostBatch batch = random_batch(model_, 2, 8, true, 1);
    batch.tokens[0] = 0;  // reads the bad row
    const std::vector<Values> before = masters();
    harness_.gradients.listen([&](const Parameter& p) { set.sync().ready(p), set.sync().reduce(p); });
    set.begin_microbatch({});
    harness_.upload(batch);
    harness_.model.forward();
    harness_.model.loss_and_backward(set.statistic(OptimizerSet::kLossSum), false, 1, harness_.gradients);
    set.step(false, *backward_done_, *reduce_done_);
    harness_.runtime.synchronize();
    EXPECT_FALSE(std::isfinite(statistic(set, OptimizerSet::kGradNorm)));
    const std::vector<Values> after = masters();
    for (const Parameter& p : harness_.table().all()) {
        if (p.id == embed.id) continue;  // NaN differs from itself
        EXPECT_EQ(after[p.id], before[p.id]) << p.name;
    }
}

// A step before the last microbatch would leave gradients out.
TEST_F(OptimizerSetTest, StepWithMicrobatchesToComeIsAnError) {
    const auto made = make();
    made->begin_microbatch({.step = 3, .first = true, .last = false});
    try {
        made->step(false, *backward_done_, *reduce_done_);
        FAIL() << "the step was taken";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("step 3"), std::string::npos) << error.what();
    }
}

// A group of `every: 2` steps on the sum of two steps' gradients, the first of which is not in the norm.
TEST_F(OptimizerSetTest, GroupsThatStepEverySecondStep) {
    config_.groups.back().every = 2;
    const auto made = make();
    OptimizerSet& set = *made;
    const std::vector<Values> start = masters();
    const std::vector<int> groups = assign_groups(harness_.table(), config_);
    const int slow = static_cast<int>(config_.groups.size()) - 1;
    step(set, 0);
    const std::vector<Values> once = masters();
    for (const Parameter& p : harness_.table().all()) {
        EXPECT_EQ(once[p.id] == start[p.id], groups[p.id] == slow) << p.name;
        const double square = statistic(set, OptimizerSet::kNormTerms + set.layout().bucket_of(p).id);
        EXPECT_EQ(square == 0, groups[p.id] == slow) << p.name;
    }
    std::vector<Values> first;
    for (const Parameter& p : harness_.table().all()) first.push_back(harness_.gradient(p));
    for (const Parameter& p : harness_.table().all())
        harness_.set(p, start[p.id]);  // the same gradient again
    step(set, 1);
    for (const Parameter& p : harness_.table().all()) {
        EXPECT_NE(masters()[p.id], start[p.id]) << p.name;
        const Values second = harness_.gradient(p);
        for (size_t i = 0; i < second.size(); ++i)
            ASSERT_FLOAT_EQ(static_cast<float>(second[i]),
                            static_cast<float>((groups[p.id] == slow ? 2 : 1) * first[p.id][i]))
                << p.name;
    }
}

// From the same state again: reset() forgets moments and momentum.
TEST_F(OptimizerSetTest, ResetStartsAfresh) {
    const auto made = make();
    OptimizerSet& set = *made;
    const std::vector<Values> start = masters();
    step(set, 0);
    const std::vector<Values> once = masters();
    step(set, 1);
    for (const Parameter& p : harness_.table().all()) harness_.set(p, start[p.id]);
    set.reset();
    harness_.runtime.synchronize();
    step(set, 0);
    EXPECT_EQ(masters(), once);
}

}  // namespace
}  // namespace speedrun::testing
