// Whole runs with delayed FP8 scaling: stopped and continued during the steps with current scaling, at the last of these, and
// later.
#include "tests/runs/rank_run_fixture.h"

namespace speedrun::testing::scales_run_test {

class ScalesRunTest : public RankRunFixture {
  protected:
    Config scaled(int exact_steps, const Settings& more = {}) const {
        const std::string kept =
            fmt::format(R"({{"by": "last_step", "value": 1.5, "exact_steps": {}}})", exact_steps);
        return config(two_groups(R"("mlp": {"ratio": 2, "up_fp8": {"x": )" + kept +
                                     R"(, "weight": {"by": "amax"}}, "down_fp8": {"x": )" + kept +
                                     R"(, "weight": )" + kept + "}}",
                                 "{}"),
                      more);
    }
};

TEST_F(ScalesRunTest, ContinuesBitwiseInExactStepsAndBehind) {
    for (const std::string& strategy : strategies()) {
        const Config c = scaled(4, {by(strategy)});
        train(c, 2, strategy);
        expect_continues(c, 2, strategy, kSanitized ? std::vector{4} : std::vector{2, 4, 6});
    }
}

// A run saved by one mesh and continued by another equals an uninterrupted run. Measured for one rank: at most 1e-8 of a loss,
// and 2e-5 with other initial scales. Tensor ranks scale by the maximum of their part of the first matrix, which changes some
// 8-bit roundings: measured 2e-5.
TEST_F(ScalesRunTest, AnyRanksContinueWhatOthersSaved) {
    const auto on = [&](Settings more) {
        more.emplace_back("batch.tokens_per_step=384");
        return scaled(0, more);
    };
    train(on({by("zero1")}), 3, "three");
    for (const int step : kSanitized ? std::vector{6} : std::vector{2, 6}) {
        const std::string from = checkpoint("three", step), number = std::to_string(step);
        const std::vector<double> expected = losses("three", step);
        if (!kSanitized) {
            train(on({}), 1, "one" + number, from);
            expect_near(losses("one" + number), expected, 1e-6, "one rank");
        }
        train(on({by("ddp"), "parallel.tensor=2"}), 2, "tensor" + number, from);
        expect_near(losses("tensor" + number), expected, 1e-4, "tensor ranks");
    }
}

}  // namespace speedrun::testing::scales_run_test
