// The table of decisions: each row follows its figures, and an absent figure decides nothing.
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>

#include "tests/bench/check_clocks.h"
#include "tests/bench/check_runs.h"
#include "tests/temp_dir.h"

namespace speedrun::bench {
namespace {

constexpr const char *kNative = "modern,library,8_microbatches",
                     *kAgain = "modern,library,again,8_microbatches",
                     *kWgmma = "modern,library,wgmma,8_microbatches",
                     *kEarly = "modern,library,wgmma+early,8_microbatches";

// A report in which every row is measured, and every switch pays.
class DecisionsTest : public ::testing::Test {
  protected:
    void SetUp() override {
        report_ = {{"device", {{"card", "H100;"}, {"checked_device", "cuda"}}},
                   {"calls", Json::array()},
                   {"stages", Json::object()},
                   {"steps", Json::array()},
                   {"ceilings", {{{"tflops", 790.0}}}},
                   {"ops", Json::array()}};
        add("tests", "first");
        for (const auto& [name, ms] : std::vector<std::pair<const char*, double>>{
                 {kNative, 500}, {kAgain, 504}, {kWgmma, 480}, {kEarly, 470}})
            add("step", name)["run"] = {{"step_ms", ms}};
        for (const char* name : {"r44", "newest"})
            add("step", name)["run"] = {{"step_ms", 60.0}, {"modelled_ms", 59.0}, {"notes", Json::array()}};
        run(kNative).update(
            Json{{"optimizer_ms", 13.8}, {"modelled_optimizer_ms", 13.0}, {"modelled_ms", 510.0}});
        report_["ops"] = {
            op("pointwise.recipe.cross_entropy_3_targets_fp8", {{"median_ms", 3.5}}),
            op("pointwise.recipe.cross_entropy", {{"median_ms", 3.0}, {"share_of_floor", 0.73}}),
            op("fp8.recipe.head.forward", {{"median_ms", 2.0}, {"tflops", 1200.0}})};
        add("peer", "modern,1_round")["peers"] = {
            {"peers",
             {{{"name", "speedrun-bf16"}, {"step_ms", 60.0}, {"speedrun_is_faster_by", 1.0}},
              {{"name", "compiled-bf16"}, {"step_ms", 66.0}, {"speedrun_is_faster_by", 1.1}}}}};
        for (const char* name : {"nccl,order_1,2", "nccl,order_0,2", "nccl,order_1,8"}) add("ranks", name);
        add("ranks", "nccl,order_0,8", "failed");
        for (const char* name : {"first,memcheck", "first,synccheck"}) add("sanitize", name);
        pinned_ = report_;
    }
    static Json op(const char* name, Json figures) {
        figures.update(Json{{"name", name}, {"status", "passed"}});
        return figures;
    }
    Json& add(const char* stage, const char* name, const char* status = "passed") {
        report_["steps"].push_back({{"stage", stage}, {"step", name}, {"status", status}});
        return report_["steps"].back();
    }
    Json& step(const std::string& name) {
        for (Json& step : report_["steps"])
            if (step["step"] == name) return step;
        throw std::runtime_error("no step " + name);
    }
    Json& run(const std::string& name) { return step(name)["run"]; }
    Json& op(size_t i) { return report_["ops"][i]; }
    std::string cell(const char* question, const char* column) const {
        for (const Json& row : decisions_of(report_, pinned_))
            if (row["question"].get<std::string>().find(question) == 0) return row[column];
        return "no such row";
    }
    std::string decision(const char* question) const { return cell(question, "decision"); }
    std::string measured(const char* question) const { return cell(question, "measured"); }

    Json report_, pinned_;
};

TEST_F(DecisionsTest, EveryRowIsMeasuredAndDecided) {
    for (const Json& row : decisions_of(report_, pinned_)) EXPECT_NE(row["measured"], "not measured") << row;
    EXPECT_EQ(measured("cuda.attention"), "502 to 480 ms (-4.4%), tests passed");
    EXPECT_EQ(decision("cuda.attention"), "wgmma");
    EXPECT_EQ(decision("cuda.dependent_launch"), "true");
    EXPECT_EQ(decision("rows of a group"), "keep 128");
    EXPECT_EQ(decision("FP8 matmuls"), "yes");
    EXPECT_EQ(decision("loss blocks"), "2: keep kLossCacheBytes");
    EXPECT_EQ(decision("optimizer's time"), "keep the model");
    EXPECT_EQ(decision("modelled step"), "keep the model");
    EXPECT_EQ(decision("PyTorch twin"), "speedrun is 10.0% faster");
    EXPECT_EQ(decision("NCCL_LAUNCH_ORDER"), "keep 1: it hangs without");
    EXPECT_EQ(decision("sanitizer"), "none");
    EXPECT_EQ(decision("figures pinned"), "no regression");
}

TEST_F(DecisionsTest, WithoutStepsNothingIsDecided) {
    report_["steps"] = report_["ops"] = Json::array();
    for (const Json& row : decisions_of(report_, pinned_)) {
        EXPECT_EQ(row["measured"], "not measured") << row;
        EXPECT_EQ(row["decision"], "-") << row;
    }
    report_["decisions"] = decisions_of(report_, {});
    EXPECT_EQ(print_decisions(report_), "");
}

TEST_F(DecisionsTest, ASwitchMustGainOnePercent) {
    run(kWgmma)["step_ms"] = 497.5;  // 0.9% below 502
    EXPECT_EQ(decision("cuda.attention"), "hand");
    run(kEarly)["step_ms"] = 494;
    EXPECT_EQ(decision("cuda.dependent_launch"), "false");
    run(kEarly)["step_ms"] = 492;
    EXPECT_EQ(decision("cuda.dependent_launch"), "true");
}

TEST_F(DecisionsTest, ASwitchMustPassItsTests) {
    Json& tests = step("first");
    tests["status"] = "failed";
    tests["exit_code"] = 1;
    tests["failures"] = {{{"name", "GpuRunTest.DependentLaunchIsBitwiseEqual"}}};
    EXPECT_EQ(decision("cuda.attention"), "wgmma");
    EXPECT_EQ(decision("cuda.dependent_launch"), "false");
    tests["failures"] = {{{"name", "Backends/AttentionTest.Forward"}}};
    EXPECT_EQ(decision("cuda.attention"), "hand");
    EXPECT_EQ(decision("cuda.dependent_launch"), "true");
    tests["exit_code"] = 139;  // a crash leaves tests that did not run
    EXPECT_EQ(decision("cuda.dependent_launch"), "false");
    tests["status"] = "not run";
    EXPECT_EQ(decision("cuda.attention"), "hand");
    EXPECT_NE(measured("cuda.attention").find("tests not run"), std::string::npos);
}

TEST_F(DecisionsTest, ASwitchWithoutEffectStaysOff) {
    run(kWgmma)["notes"] = {"attention by wgmma cannot be had (A100 has compute capability 8.0, not 9.0)"};
    EXPECT_EQ(decision("cuda.attention"), "hand");
    run(kEarly)["notes"] = {"cuda.dependent_launch is off: a graph with early kernels failed"};
    EXPECT_EQ(decision("cuda.dependent_launch"), "false");
}

TEST_F(DecisionsTest, TheRunsOfTheStageStepCountToo) {
    report_["steps"] = Json::array();
    add("tests", "all");
    add("step", "modern,library")["run"] = {{"step_ms", 70.0}};
    add("step", "modern,library,wgmma")["run"] = {{"step_ms", 65.0}};
    add("step", "modern,library,early", "failed")["run"] = {{"step_ms", 60.0}};
    EXPECT_EQ(decision("cuda.attention"), "wgmma");
    EXPECT_EQ(measured("cuda.dependent_launch"), "not measured");
}

TEST_F(DecisionsTest, EveryOtherRowFlipsWithItsFigure) {
    op(0)["median_ms"] = 3.7;
    EXPECT_EQ(decision("rows of a group"), "32: less to transpose at the end");
    op(2)["tflops"] = 500;
    EXPECT_EQ(decision("FP8 matmuls").substr(0, 3), "no:");
    op(2)["tflops"] = 1200;
    run("r44")["notes"] = {"cuBLASLt has no kernel for fp8: our own, slower one runs"};
    EXPECT_EQ(decision("FP8 matmuls").substr(0, 3), "no:");
    op(1)["share_of_floor"] = 0.4;
    EXPECT_EQ(decision("loss blocks"), "1: reduce kLossCacheBytes");
    run(kNative)["modelled_optimizer_ms"] = 10.1;
    EXPECT_EQ(decision("optimizer's time"), "explain 3.7 ms by the trace");
    run("newest")["modelled_ms"] = 70;
    EXPECT_EQ(decision("modelled step"), "correct it: newest");
    step("modern,1_round")["peers"]["peers"][1]["speedrun_is_faster_by"] = 0.9;
    EXPECT_EQ(decision("PyTorch twin"), "speedrun is 10.0% slower");
    step("nccl,order_0,8")["status"] = "passed";
    EXPECT_EQ(decision("NCCL_LAUNCH_ORDER"), "keep 1: no hang seen without");
    step("nccl,order_1,8")["status"] = "failed";
    EXPECT_EQ(decision("NCCL_LAUNCH_ORDER"), "chain communicators by events");
    step("first,synccheck")["status"] = "failed";
    EXPECT_EQ(decision("sanitizer"), "switch nothing before it is fixed: first,synccheck");
    op(1)["median_ms"] = 3.3;
    EXPECT_EQ(decision("figures pinned").substr(0, 66),
              "find the cause: operation pointwise.recipe.cross_entropy    +10.0%");
    report_["device"]["card"] = "H100;H100;";
    EXPECT_NE(measured("figures pinned"), "not measured");
    report_["device"]["card"] = "A100;";
    EXPECT_EQ(measured("figures pinned"), "not measured");
}

TEST_F(DecisionsTest, TheTableEndsThePage) {
    report_["decisions"] = decisions_of(report_, pinned_);
    const std::string page = print_report(report_);
    EXPECT_NE(page.find("\nwhat this decides\nquestion "), std::string::npos) << page;
    EXPECT_GT(page.find("what this decides"), page.find("result: "));
    report_["device"]["checked_device"] = "cpu";
    EXPECT_NE(print_decisions(report_).find("decides (a rehearsal"), std::string::npos);
}

TEST(ClocksTest, MediansOfTheStepsOwnSamples) {
    std::tm local{};
    local.tm_year = 126;
    local.tm_mon = 10;
    local.tm_mday = 29;
    local.tm_hour = 7;
    local.tm_isdst = -1;
    const auto began = static_cast<double>(std::mktime(&local));
    const std::string csv =
        "timestamp, clocks.current.sm [MHz], power.draw [W], temperature.gpu\n"
        "2026/11/29 06:59:59.900, 345 MHz, 70.00 W, 30\n"
        "2026/11/29 07:00:00.000, 1700 MHz, 690.50 W, 60\n"
        "2026/11/29 07:00:00.100, 1710 MHz, 695.25 W, 61\n"
        "Unable to determine the device handle\n"
        "2026/11/29 07:00:00.150, [N/A], [N/A], 61\n"
        "2026/11/29 07:00:00.200, 1980 MHz, 300.00 W, 62\n"
        "2026/11/29 07:00:02.000, 345 MHz, 70.00 W, 30\n"
        "2026/11/29 07:0";
    EXPECT_EQ(clocks_of(csv, {.began = began, .seconds = 1}),
              Json::parse(R"({"samples":3,"mhz":1710.0,"watts":690.5,"celsius":61.0})"));
    EXPECT_TRUE(clocks_of(csv, {.began = began + 10, .seconds = 1}).is_null());
    EXPECT_TRUE(clocks_of("", {}).is_null());
}

TEST(RunNotesTest, NotesAndModelledTimesAreFiguresOfARun) {
    const TempDir dir;
    std::ofstream(dir.file("summary.json"))
        << R"({"status":"done","steps":1,"train_ms":1,"startup_ms":1,"step_ms":{"p99":1},"flops_per_s":1,)"
        << R"("ceiling_flops_per_s":1,"memory_bytes":1,"val_loss":1,"time_to_target_ms":null})";
    std::ofstream(dir.file("metrics.jsonl"))
        << R"({"event":"step","step":0,"loss":1,"grad_norm":1,"step_ms":1,"optimizer_ms":1,"tokens":8})";
    std::ofstream(dir.file("run.log")) << "2026-11-29 07:45:32.344 cuBLASLt has no kernel for x\n"
                                       << "2026-11-29 07:45:32.446 124M parameters\n";
    std::ofstream(dir.file("plan.json"))
        << R"({"step":{"ms":9.5},"operations":[{"name":"muon_apply","ms":1.0},{"name":"adamw_step","ms":0.5},{"name":"add","ms":8}]})";
    const std::string folder = dir.file("");
    const Json figures = check_run({.folder = folder, .plan = dir.file("plan.json")}).figures;
    EXPECT_EQ(figures.at("notes"), Json::parse(R"(["cuBLASLt has no kernel for x"])"));
    EXPECT_EQ(figures.at("modelled_ms"), 9.5);
    EXPECT_EQ(figures.at("modelled_optimizer_ms"), 1.5);
    std::ofstream(dir.file("plan.json")) << "{";
    const Checked without = check_run({.folder = folder, .plan = dir.file("plan.json")});
    EXPECT_EQ(without.failure, "");
    EXPECT_FALSE(without.figures.contains("modelled_ms"));
}

}  // namespace
}  // namespace speedrun::bench
