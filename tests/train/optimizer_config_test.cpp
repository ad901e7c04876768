// Values accepted and refused in optimizer groups.
// Covers: train/fields/field_texts.cpp
#include "tests/errors.h"
#include "train/config/config_json.h"

namespace speedrun::optimizer_config_test {

using Settings = std::vector<std::string>;

// One group with these keys, relative to "optimizers.groups.0.".
Config config_of(const Settings& keys, const Settings& more = {}) {
    Settings all = {R"(optimizers.groups=[{"params": ["*"]}])"};
    for (const std::string& key : keys) all.push_back("optimizers.groups.0." + key);
    all.insert(all.end(), more.begin(), more.end());
    return parse_config("{}", "test", all);
}

OptimizerGroupConfig group_of(const Settings& keys) {
    return config_of(keys).optimizers.groups.front();
}

void expect_refused(const Settings& keys, const std::string& text, const Settings& more = {}) {
    expect_error(ExitCode::usage, {text}, [&] { config_of(keys, more); });
}

TEST(OptimizerConfigTest, WeightDecayIsByTheLearningRateUnlessSaid) {
    EXPECT_EQ(group_of({}).weight_decay_by, DecayBy::lr);
    EXPECT_EQ(group_of({"weight_decay_by=lr_squared"}).weight_decay_by, DecayBy::lr_squared);
    expect_refused({"weight_decay_by=lr2"}, "expected lr | lr_squared, got \"lr2\"");
    expect_refused({"type=lion"}, "expected adamw | muon, got \"lion\"");
}

TEST(OptimizerConfigTest, CautiousDecayAlsoDecaysUnmovedWeightsOfAdamw) {
    EXPECT_FALSE(group_of({}).adamw.cautious);
    EXPECT_TRUE(group_of({"cautious=true"}).adamw.cautious);
    EXPECT_TRUE(group_of({"type=muon", "cautious=true"}).muon.cautious);
    EXPECT_TRUE(group_of({"cautious=true"}).adamw.decays_unmoved);
    EXPECT_FALSE(group_of({"cautious=true", "decays_unmoved=false"}).adamw.decays_unmoved);
    expect_refused({"decays_unmoved=false"}, "decays_unmoved is false, but cautious is false");
    expect_refused({"type=muon", "cautious=true", "decays_unmoved=false"},
                   "decays_unmoved is false, but type is muon");
}

TEST(OptimizerConfigTest, LinesAreOfNormuonAlone) {
    EXPECT_EQ(group_of({}).muon.normuon_lines, NormuonLines::more);
    EXPECT_EQ(group_of({"type=muon", "normuon=true", "normuon_lines=columns"}).muon.normuon_lines,
              NormuonLines::columns);
    expect_refused(
        {"normuon_lines=columns"},
        "optimizers.groups[0].normuon_lines is columns, but type is adamw: set it to auto, or type=muon");
    expect_refused({"type=muon", "normuon_lines=rows"},
                   "normuon_lines is rows, but normuon is false: leave it at auto, or set normuon=true");
    expect_refused({"normuon_lines=cols"}, "expected auto | rows | columns, got \"cols\"");
}

// --set type=WORD keeps the other keys. Keys of the first versions are accepted with any type.
TEST(OptimizerConfigTest, KeysOfOtherTypesAreRefusedUnlessTheyAlwaysWereAccepted) {
    const OptimizerGroupConfig group =
        group_of({"momentum=0.5", "normuon=true", "nesterov=false", "beta2=0.5"});
    EXPECT_EQ(group.muon.momentum.in(0).from, 0.5);
    EXPECT_EQ(group.adamw.beta2, 0.5);
    EXPECT_EQ(group.muon.beta2, 0.5);
    expect_refused(
        {"heads_per_matrix=2"},
        "optimizers.groups[0].heads_per_matrix is 2, but type is adamw: set it to 0, or type=muon");
    group_of({"type=muon", "moments_dtype=f32", "heads_per_matrix=2"});
}

TEST(OptimizerConfigTest, MomentsInBf16AreOfAdamwAndHaveToDecay) {
    EXPECT_EQ(group_of({}).adamw.moments_dtype, DType::f32);
    EXPECT_EQ(group_of({"moments_dtype=bf16", "beta1=0.65", "beta2=0.95"}).adamw.moments_dtype, DType::bf16);
    EXPECT_EQ(group_of({"moments_dtype=bf16", "beta2=0.99"}).adamw.moments_dtype, DType::bf16);
    EXPECT_EQ(group_of({"beta2=0.999"}).adamw.moments_dtype, DType::f32);
    expect_refused(
        {"type=muon", "moments_dtype=bf16"},
        "optimizers.groups[0].moments_dtype is bf16, but type is muon: set it to f32, or type=adamw");
    expect_refused({"moments_dtype=bf16", "beta2=0.999"},
                   "optimizers.groups[0].beta2 is 0.999, but moments_dtype is bf16");
    expect_refused({"moments_dtype=bf16", "beta1=0.997"},
                   "lower it to 0.99609375 or less, or set moments_dtype=f32");
    expect_refused({"moments_dtype=f16"}, "expected f32 | bf16, got \"f16\"");
}

TEST(OptimizerConfigTest, WeightsInBf16AreOfAdamwAndMuonAndOfRunsInBf16) {
    EXPECT_EQ(group_of({}).weights_dtype(), DType::f32);
    EXPECT_EQ(group_of({"weights_dtype=bf16"}).weights_dtype(), DType::bf16);
    EXPECT_EQ(group_of({"weights_dtype=bf16", "moments_dtype=bf16"}).weights_dtype(), DType::bf16);
    EXPECT_EQ(group_of({"type=muon", "normuon=true", "weights_dtype=bf16"}).weights_dtype(), DType::bf16);
    expect_refused({"weights_dtype=f16"}, "expected f32 | bf16, got \"f16\"");
    expect_refused({"weights_dtype=bf16"},
                   "optimizers.groups[0].weights_dtype is bf16, but the run computes in f32",
                   {"precision=f32"});
    const OptimizersConfig optimizers = config_of({"weights_dtype=bf16"}, {"precision=bf16"}).optimizers;
    optimizers.check_precision(DType::bf16);
    EXPECT_THROW(optimizers.check_precision(DType::f32), Error) << "the precision that auto resolves to";
    config_of({}, {"precision=f32"}).optimizers.check_precision(DType::f32);
}

TEST(OptimizerConfigTest, MomentumCoolsDownWithinTheRun) {
    const auto with = [](const std::string& cooldown) {
        return Settings{"type=muon", "momentum_cooldown_steps=" + cooldown};
    };
    EXPECT_EQ(group_of({}).muon.momentum_cooldown_steps, 0);
    EXPECT_EQ(config_of(with("10"), {"schedule.steps=10"}).optimizers.groups[0].muon.momentum_cooldown_steps,
              10);
    expect_refused(
        with("11"),
        "optimizers.groups[0].momentum_cooldown_steps 11 exceeds the 10 steps that the group takes in 10 "
        "steps of the run (every 1): lower it",
        {"schedule.steps=10"});
    expect_refused(with("4"), "exceeds the 3 steps that the group takes in 10 steps of the run (every 3)",
                   {"schedule.steps=10", "optimizers.groups.0.every=3"});
    expect_refused({"momentum_cooldown_steps=5"},
                   "momentum_cooldown_steps is 5, but type is adamw: set it to 0, or type=muon");
    expect_refused(with("-1"), "momentum_cooldown_steps: -1 is outside");
}

TEST(OptimizerConfigTest, EpsilonsAreAboveZeroWhereZerosAreDividedBy) {
    EXPECT_EQ(group_of({}).adamw.epsilon, 1e-8);
    EXPECT_EQ(group_of({}).muon.polar_epsilon, 1e-6);
    EXPECT_EQ(group_of({"type=muon", "normuon=true", "epsilon=1e-10"}).muon.epsilon, 1e-10);
    for (const char* type : {"type=adamw", "type=muon"}) {
        for (const char* epsilon : {"epsilon=0", "epsilon=1e-300", "epsilon=1e-45", "epsilon=-1e-8"})
            expect_refused({type, epsilon}, "is outside [1e-30, 1]");
    }
    expect_refused({"type=muon", "normuon=true", "epsilon=0"}, "epsilon: 0 is outside [1e-30, 1]");
    expect_refused({"type=muon", "polar_epsilon=0"}, "polar_epsilon: 0 is outside");
}

// A decay of 1 makes AdamW divide 0 by 0 and never updates a momentum. Values this close to 1 round to 1 in f32.
TEST(OptimizerConfigTest, DecaysAreBelowOne) {
    EXPECT_EQ(group_of({"beta1=0", "beta2=0.9999"}).adamw.beta2, 0.9999);
    EXPECT_EQ(group_of({"type=muon", "momentum=0.99"}).muon.momentum.in(0).from, 0.99);
    for (const std::string key : {"beta1", "beta2", "momentum", "momentum_start"}) {
        for (const std::string value : {"1", "0.99999999", "1.5", "-0.1"})
            expect_refused({key + "=" + value}, key + ": " + value + " is outside [0, 0.999999]");
    }
    expect_refused({"momentum=[[0.9,1]]"}, "momentum[0][1]: 1 is outside");
}

}  // namespace speedrun::optimizer_config_test
