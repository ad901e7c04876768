// Files of a run contain the metrics declared in train/runlog/metrics.h: exact bytes, and the summary of steps.
#include "train/runlog/metrics.h"

#include <gtest/gtest.h>

#include <limits>

#include "train/runlog/metrics_json.h"

namespace speedrun::metrics_test {

using Json = nlohmann::ordered_json;

StepMetrics a_step() {
    return {.step = 41,
            .loss = 3.25,
            .grad_norm = 0.1,
            .lr = 0.02,
            .step_ms = 12.5,
            .train_ms = 525.75,
            .tokens = 344064,
            .tokens_per_s = 655360,
            .optimizer_ms = 1.5,
            .data_ms = 0.25,
            .comm_exposed_ms = 0.75,
            .comm_ms = 2.125,
            .bytes = {{"reduce_scatter", 4096}, {"all_gather", 8192}},
            .checkpoint_stall_ms = 0.0625};
}

RunSummary a_summary() {
    RunSummary s;
    s.status = "done";
    s.steps = 42;
    s.tokens = 344064;
    s.epoch_tokens_seen = 1000000;
    s.epoch_tokens_dropped = 500;
    s.parameters = 1234567;
    s.ranks = 2;
    s.mesh = "replicate 1 x shard 2 x context 1 x tensor 1";
    s.strategy = "zero1";
    s.startup_ms = 100.5;
    s.train_ms = 525.75;
    s.wall_s = 0.75;
    s.train_loss = 3.25;
    s.val_loss = 3.5;
    s.target_loss = 3.6;
    s.target_reached = true;
    s.step_ms = {.p50 = 12.5, .p99 = 13, .max = 14.5, .max_at_step = 7};
    s.ungraphed_steps = 2;
    s.tokens_per_s = 654425;
    s.flops_per_s = 2e12;
    s.ceiling_flops_per_s = 5e12;
    s.data_ms = 10.5;
    s.optimizer_ms = 63;
    s.comm_exposed_ms = 31.5;
    s.comm_ms = 89.25;
    s.bytes = {{"all_gather", 344064}};
    s.checkpoint_stall_ms = 2.625;
    s.memory_bytes = 1048576;
    s.peak_rss_bytes = 2097152;
    return s;
}

// Other programs parse these files: their exact bytes, including the order of keys, are fixed.
TEST(MetricsTest, FilesHaveTheseBytes) {
    EXPECT_EQ(
        metrics_line(a_step()),
        R"({"event":"step","step":41,"loss":3.25,"grad_norm":0.1,"lr":0.02,"step_ms":12.5,)"
        R"("train_ms":525.75,"tokens":344064,"tokens_per_s":655360.0,"optimizer_ms":1.5,"data_ms":0.25,)"
        R"("comm_exposed_ms":0.75,"comm_ms":2.125,"bytes":{"all_gather":8192,"reduce_scatter":4096},)"
        R"("checkpoint_stall_ms":0.0625})");
    StepMetrics diverged;
    diverged.loss = std::numeric_limits<double>::quiet_NaN();
    EXPECT_EQ(metrics_line(diverged),
              R"({"event":"step","step":0,"loss":null,"grad_norm":0.0,"lr":0.0,"step_ms":0.0,"train_ms":0.0,)"
              R"("tokens":0,"tokens_per_s":0.0,"optimizer_ms":0.0,"data_ms":0.0,"comm_exposed_ms":0.0,)"
              R"("comm_ms":0.0,"bytes":{},"checkpoint_stall_ms":0.0})");
    EXPECT_EQ(metrics_line(Validation{.step = 42, .loss = 3.5, .train_ms = 525.75}),
              R"({"event":"val","step":42,"loss":3.5,"train_ms":525.75})");
    EXPECT_EQ(summary_text(a_summary()), R"({
  "status": "done",
  "message": "",
  "steps": 42,
  "tokens": 344064,
  "epoch_tokens_seen": 1000000,
  "epoch_tokens_dropped": 500,
  "parameters": 1234567,
  "ranks": 2,
  "mesh": "replicate 1 x shard 2 x context 1 x tensor 1",
  "strategy": "zero1",
  "startup_ms": 100.5,
  "train_ms": 525.75,
  "wall_s": 0.75,
  "train_loss": 3.25,
  "val_loss": 3.5,
  "target_loss": 3.6,
  "target_reached": true,
  "time_to_target_ms": null,
  "step_ms": {
    "p50": 12.5,
    "p99": 13.0,
    "max": 14.5,
    "max_at_step": 7
  },
  "ungraphed_steps": 2,
  "tokens_per_s": 654425.0,
  "flops_per_s": 2000000000000.0,
  "ceiling_flops_per_s": 5000000000000.0,
  "data_ms": 10.5,
  "optimizer_ms": 63.0,
  "comm_exposed_ms": 31.5,
  "comm_ms": 89.25,
  "bytes": {
    "all_gather": 344064
  },
  "checkpoint_stall_ms": 2.625,
  "memory_bytes": 1048576,
  "peak_rss_bytes": 2097152
}
)");
}

TEST(MetricsTest, ASummaryRollsStepsUp) {
    RunSummary summary = a_summary();
    StepMetrics step = a_step();
    step.tokens = 400000;
    summary.add(step);
    summary.add(step);
    EXPECT_EQ(summary.tokens, 400000);
    EXPECT_EQ(summary.data_ms, 11.0);
    EXPECT_EQ(summary.optimizer_ms, 66.0);
    EXPECT_EQ(summary.comm_exposed_ms, 33.0);
    EXPECT_EQ(summary.comm_ms, 93.5);
    EXPECT_EQ(summary.bytes, (BytesByKind{{"all_gather", 344064 + 2 * 8192}, {"reduce_scatter", 2 * 4096}}));
    EXPECT_EQ(summary.checkpoint_stall_ms, 2.75);
    // Fields present in both files are measured independently.
    EXPECT_EQ(summary.train_ms, 525.75);
    EXPECT_EQ(summary.tokens_per_s, 654425);
    EXPECT_EQ(summary.step_ms.max, 14.5);
}

TEST(MetricsTest, MembersAreReadBackByTheirDeclaration) {
    const Json summary = Json::parse(summary_text(a_summary())), step = Json::parse(metrics_line(a_step()));
    EXPECT_EQ(value_of(summary, &RunSummary::status), "done");
    EXPECT_EQ(value_of(summary, &RunSummary::startup_ms), 100.5);
    EXPECT_EQ(value_of(summary, &RunSummary::val_loss), 3.5);
    EXPECT_EQ(value_of(step, &StepMetrics::step), 41);
    EXPECT_THROW(value_of(summary, &RunSummary::time_to_target_ms), Json::exception) << "it is null";
    EXPECT_THROW(value_of(Json::object(), &RunSummary::status), Json::exception);
    EXPECT_THROW(value_of(Json{{"step", 1.5}}, &StepMetrics::step), JsonError);
    EXPECT_STREQ(field_of(&RunSummary::comm_ms).title, "communication in all");
}

}  // namespace speedrun::metrics_test
