// Whole runs with AdamW moments in bf16: under every strategy, stopped and continued, also on other ranks.
#include "tests/runs/rank_run_fixture.h"

namespace speedrun::testing {
namespace bf16_moments_run_test {

class Bf16MomentsRunTest : public RankRunFixture {
  protected:
    Config bf16(const Settings& more = {}) const {
        Settings all = {"schedule.steps=10",
                        "checkpoint.every=4",
                        "checkpoint.keep=100",
                        "batch.microbatch_tokens=128",
                        "optimizers.groups.1.moments_dtype=bf16",
                        "optimizers.groups.1.cautious=true",
                        "optimizers.groups.1.weight_decay=0.1",
                        "optimizers.groups.1.every=2",
                        "threads=1"};
        all.insert(all.end(), more.begin(), more.end());
        return config(all);
    }
};

// Ranks sum gradients in another order, which may change the rounding of a moment by 1/256 of its value. Over ten steps, the
// effect on the loss is a hundred times smaller.
TEST_F(Bf16MomentsRunTest, AnyRanksTrainAlike) {
    run_on(1, bf16(), "one");
    run_on(1, bf16({"optimizers.groups.1.moments_dtype=f32"}), "f32");
    const std::vector<double> expected = curve("one");
    EXPECT_NE(curve("f32"), expected);
    expect_near(curve("f32"), expected, 0.02, "moments of f32");
    for (const char* strategy : {"ddp", "zero1", "zero2", "zero3"}) {
        run_on(2, bf16({std::string("parallel.strategy=") + strategy}), strategy);
        expect_near(curve(strategy), expected, 1e-3, strategy);
    }
}

TEST_F(Bf16MomentsRunTest, ContinueBitwiseOnTheirRanksAndCloselyOnOthers) {
    for (const int ranks : {1, 2}) {
        if (kSanitized && ranks == 1) continue;
        const std::string whole = "whole" + std::to_string(ranks), later = "later" + std::to_string(ranks);
        const Config c = bf16({"parallel.strategy=zero1"});
        run_on(ranks, c, whole);
        run_on(ranks, c, later, checkpoint_of(whole, 4));
        EXPECT_EQ(curve_behind(later, 4), curve_behind(whole, 4)) << ranks;
    }
    if (kSanitized) return;
    run_on(3, bf16({"parallel.strategy=zero3", "batch.microbatch_tokens=128", "batch.tokens_per_step=768"}),
           "three");
    run_on(1, bf16({"batch.tokens_per_step=768"}), "alone", checkpoint_of("three", 4));
    expect_near(curve_behind("alone", 4), curve_behind("three", 4), 1e-3, "three ranks, then one");
}

TEST_F(Bf16MomentsRunTest, CheckpointsHoldThemInTwoBytes) {
    if (kSanitized) GTEST_SKIP() << "numbers of whole runs, which are for the release build";
    run_on(1, bf16(), "run");
    CheckpointReader reader(checkpoint_of("run", 4));
    int64_t moments = 0;
    for (const CheckpointTensor& tensor : reader.info().tensors) {
        const bool is_moment = tensor.name.starts_with("adamw_");
        EXPECT_EQ(tensor.dtype, is_moment ? DType::bf16 : DType::f32) << tensor.name;
        moments += is_moment ? tensor.numel() : 0;
    }
    EXPECT_GT(moments, 0);
    run_on(1, bf16({"optimizers.groups.1.moments_dtype=f32"}), "f32");
    const auto bytes = [](const CheckpointReader& of) { return of.info().files.front().bytes; };
    const CheckpointReader f32(checkpoint_of("f32", 4));
    EXPECT_NEAR(static_cast<double>(bytes(f32) - bytes(reader)), static_cast<double>(2 * moments), 256)
        << "headers differ by some bytes";
    EXPECT_THROW(run_on(1, bf16(), "mixed", checkpoint_of("f32", 4)), Error) << "another config";
}

}  // namespace bf16_moments_run_test
}  // namespace speedrun::testing
