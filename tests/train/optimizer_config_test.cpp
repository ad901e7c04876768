// What the groups of section `optimizers` take and refuse.
#include <gtest/gtest.h>

#include "kernels/device/error.h"
#include "train/config/config_json.h"

namespace speedrun {
namespace {

using Settings = std::vector<std::string>;

// Group 0 of 1, with these keys behind "optimizers.groups.0.".
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
    try {
        config_of(keys, more);
        FAIL() << "accepted; expected: " << text;
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ExitCode::usage);
        EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
}

TEST(OptimizerConfigTest, WeightDecayIsByTheLearningRateUnlessSaid) {
    EXPECT_EQ(group_of({}).weight_decay_by, DecayBy::lr);
    EXPECT_EQ(group_of({"weight_decay_by=lr_squared"}).weight_decay_by, DecayBy::lr_squared);
    expect_refused({"weight_decay_by=lr2"}, "expected lr | lr_squared, got \"lr2\"");
}

TEST(OptimizerConfigTest, CautiousDecayIsOfAdamwAndMuon) {
    EXPECT_FALSE(group_of({}).cautious);
    EXPECT_TRUE(group_of({"cautious=true"}).cautious);
    EXPECT_TRUE(group_of({"type=muon", "cautious=true"}).cautious);
    expect_refused({"type=lion", "cautious=true"}, "optimizers.groups[0].cautious is true, but lion");
}

}  // namespace
}  // namespace speedrun
