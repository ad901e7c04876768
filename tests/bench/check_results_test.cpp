// The report's rule that no step passes unproven, and the merging of several calls.
#include "tests/bench/check_results.h"

#include <gtest/gtest.h>

namespace speedrun::bench {
namespace {

constexpr const char* kLog =
    "[ RUN      ] A.one\n[       OK ] A.one (1 ms)\n[ RUN      ] A.two\nboom\n[  FAILED  ] A.two, where "
    "GetParam() = 1 (2 ms)\n[ RUN      ] A.three\nillegal address\n";

CheckStepEnd gtest_end(int exit_code, const std::string& json, const std::string& log) {
    CheckStepEnd end;
    end.stage = "tests";
    end.name = "all";
    end.exit_code = exit_code;
    end.is_gtest = true;
    end.gtest_json = json;
    end.log = log;
    return end;
}

std::string gtest_json(const std::string& tests) {
    return R"({"testsuites":[{"name":"A","testsuite":[)" + tests + "]}]}";
}

// Lines of op_bench: peaks, then one operation.
std::string bench_lines(const char* attention, double ms, double tflops) {
    const Json peaks = {{"kind", "ceilings"}, {"tflops", tflops}};
    const Json op = {{"kind", "op"},          {"name", "attention.gpt2.forward"}, {"dtype", "bf16"},
                     {"products", "library"}, {"attention", attention},           {"status", "passed"},
                     {"median_ms", ms}};
    return peaks.dump() + "\n" + op.dump() + "\n";
}

CheckStepEnd bench_end(const char* name, const std::string& lines) {
    CheckStepEnd end;
    end.stage = "ops";
    end.name = name;
    end.is_bench = true;
    end.bench_lines = lines;
    return end;
}

TEST(MergeTest, RerunReplacesItsOwnRecords) {
    const auto line = [](const char* name, const char* attention, double ms, double tflops) {
        return check_step_record(bench_end(name, bench_lines(attention, ms, tflops))).dump();
    };
    const Json report = merge_records({line("attention", "hand", 2.0, 700), line("cudnn", "cudnn", 1.0, 701),
                                       line("attention", "hand", 1.5, 702)},
                                      {});
    ASSERT_EQ(report["ops"].size(), 2u);
    EXPECT_EQ(report["ops"][0]["median_ms"], 1.5);
    EXPECT_EQ(report["ops"][1]["median_ms"], 1.0);
    ASSERT_EQ(report["ceilings"].size(), 2u);
    EXPECT_EQ(report["ceilings"][0]["tflops"], 702);
    EXPECT_NE(print_report(report).find("attention.gpt2.forward (cuDNN)"), std::string::npos);
}

TEST(CheckStepTest, CountsGtestResults) {
    const Json record = check_step_record(
        gtest_end(1,
                  gtest_json(R"({"name":"one","result":"COMPLETED"},{"name":"two","result":"SKIPPED"},)"
                             R"({"name":"three","result":"COMPLETED","failures":[{"failure":"f.cc:1"}]})"),
                  ""));
    EXPECT_EQ(record["status"], "failed");
    EXPECT_EQ(record["tests"], Json::parse(R"({"passed":1,"failed":1,"skipped":1})"));
    EXPECT_EQ(record["failures"][0]["name"], "A.three");
    EXPECT_EQ(record["failures"][0]["message"], "f.cc:1");
}

TEST(CheckStepTest, CrashNamesRunningTest) {
    const Json record = check_step_record(gtest_end(139, "", kLog));
    EXPECT_EQ(record["status"], "failed");
    EXPECT_EQ(record["failures"][0]["name"], "A.two");
    const std::string message = record["message"];
    EXPECT_NE(message.find("A.three"), std::string::npos) << message;
    EXPECT_NE(message.find("exit code 139"), std::string::npos) << message;
    EXPECT_NE(message.find("illegal address"), std::string::npos) << message;
}

// Output of gpu_check_shards.sh: results of several processes in sequence or, if one of them crashed, only
// their logs.
TEST(CheckStepTest, CountsSeveralProcesses) {
    const std::string one = gtest_json(R"({"name":"one","result":"COMPLETED"})"),
                      two = gtest_json(
                          R"({"name":"two","result":"COMPLETED"},{"name":"three","result":"SKIPPED"})");
    const Json record = check_step_record(gtest_end(0, one + "\n" + two + "\n", ""));
    EXPECT_EQ(record["status"], "passed");
    EXPECT_EQ(record["tests"], Json::parse(R"({"passed":2,"failed":0,"skipped":1})"));
    EXPECT_EQ(check_step_record(gtest_end(0, one + two.substr(0, 20), ""))["status"], "failed");
    const Json crashed = check_step_record(gtest_end(
        139, "", "[ RUN      ] A.one\nillegal address\n[ RUN      ] A.two\n[       OK ] A.two (1 ms)\n"));
    EXPECT_EQ(crashed["tests"], Json::parse(R"({"passed":1,"failed":1,"skipped":0})"));
    EXPECT_EQ(crashed["failures"][0]["name"], "A.one");
    EXPECT_NE(crashed["failures"][0]["message"].get<std::string>().find("illegal address"),
              std::string::npos);
}

TEST(CheckStepTest, UnprovenStepDoesNotPass) {
    const std::string passed = gtest_json(R"({"name":"one","result":"COMPLETED"})");
    EXPECT_EQ(check_step_record(gtest_end(0, passed, ""))["status"], "passed");
    EXPECT_EQ(
        check_step_record(gtest_end(0, gtest_json(R"({"name":"one","result":"SKIPPED"})"), ""))["status"],
        "skipped");
    EXPECT_EQ(check_step_record(gtest_end(77, "", "skipped: no GPU\n"))["status"], "skipped");
    EXPECT_EQ(check_step_record(gtest_end(77, "", "skipped: no GPU\n"))["message"], "skipped: no GPU");
    EXPECT_EQ(check_step_record(gtest_end(0, gtest_json(""), ""))["status"], "failed");
    EXPECT_EQ(check_step_record(gtest_end(0, "", ""))["status"], "failed");
    EXPECT_EQ(check_step_record(gtest_end(1, passed, ""))["status"], "failed");
    EXPECT_EQ(check_step_record(gtest_end(124, passed, ""))["status"], "failed");
    EXPECT_EQ(check_step_record(bench_end("all", ""))["status"], "failed");
    EXPECT_EQ(check_step_record(bench_end("all", "{\"kind\":\"ceilings\"}\n"))["status"], "skipped");
    EXPECT_EQ(check_step_record(bench_end("all", bench_lines("hand", 1, 1) + "{\"kind\":\"o"))["status"],
              "failed");
    // A failure in an earlier round of --gtest_repeat, which the last round's JSON does not contain.
    EXPECT_EQ(
        check_step_record(gtest_end(0, passed, "[ RUN      ] A.one\n[  FAILED  ] A.one (1 ms)\n"))["status"],
        "failed");
}

TEST(MergeTest, MissingStepIsNotPassed) {
    const std::string step = R"({"kind":"step","stage":"tests","step":"all","status":"passed"})";
    const Json complete = merge_records({step}, {"tests"});
    EXPECT_EQ(complete["result"], "passed");
    EXPECT_EQ(complete["stages"]["ops"], "not run");
    const Json incomplete = merge_records({step}, {"tests", "ops"});
    EXPECT_EQ(incomplete["result"], "incomplete");
    EXPECT_EQ(merge_records({}, {"tests"})["result"], "incomplete");
    EXPECT_NE(print_report(incomplete).find("ops       not run"), std::string::npos);
}

TEST(MergeTest, LaterRecordWins) {
    const Json report = merge_records({R"({"kind":"step","stage":"tests","step":"all","status":"failed"})",
                                       R"({"kind":"step","stage":"tests","step":"all","status":"passed"})",
                                       R"({"kind":"step","stage":"te)"},
                                      {"tests"});
    EXPECT_EQ(report["result"], "passed");
    EXPECT_EQ(report["steps"].size(), 1u);
    EXPECT_EQ(report["damaged_lines"], 1);
}

TEST(MergeTest, FailedOperationFailsReport) {
    const Json step = check_step_record(
        bench_end("all", R"({"kind":"op","name":"x","dtype":"bf16","status":"failed","failure":"boom"})"));
    const Json report = merge_records({step.dump()}, {"ops"});
    EXPECT_EQ(report["result"], "failed");
    EXPECT_NE(print_report(report).find("boom"), std::string::npos);
}

TEST(MergeTest, CountsDamagedLines) {
    const std::string good = R"({"kind":"step","stage":"tests","step":"all","status":"passed"})";
    const Json report =
        merge_records({R"({"kind":"step","stage":"tests","step":"all","status":5})",
                       R"({"kind":"step","stage":"ops","step":"x","status":"passed","seconds":"y"})",
                       R"({"kind":7})", "[1,2", "\xff\x01garbage", "null", good},
                      {"tests"});
    EXPECT_EQ(report["damaged_lines"], 6);
    EXPECT_EQ(report["result"], "passed");
    EXPECT_EQ(print_states(report), "tests all passed\n");
}

TEST(MergeTest, AgainDropsFailedAndSkippedSteps) {
    const auto step = [](const char* stage, const char* name, const char* status) {
        return Json({{"kind", "step"}, {"stage", stage}, {"step", name}, {"status", status}}).dump();
    };
    const Json report =
        merge_records({step("tests", "all", "failed"), step("tests", "shuffled", "passed"),
                       step("peer", "gpt2", "skipped"), R"({"kind":"again","stage":"tests"})"},
                      {});
    EXPECT_EQ(print_states(report), "tests shuffled passed\npeer gpt2 skipped\n");
}

TEST(OriginTest, RejectsOtherProgramsOrGpu) {
    const Json first = {{"git_sha", "aaa"}, {"programs", "1"}, {"card", "H200"}};
    EXPECT_EQ(other_origin(first, first), "");
    const std::string built = other_origin(first, {{"git_sha", "bbb"}, {"programs", "2"}, {"card", "H200"}});
    for (const char* part : {"aaa", "bbb", "'1'", "'2'"})
        EXPECT_NE(built.find(part), std::string::npos) << built;
    EXPECT_NE(other_origin(first, {{"programs", "1"}, {"card", "H100"}}).find("H100"), std::string::npos);
    EXPECT_EQ(other_origin(first, {{"programs", "1"}, {"card", ""}}), "");  // nvidia-smi has failed
    EXPECT_NE(other_origin(Json::object(), first), "");
}

TEST(CheckStepTest, ReplacesControlCharacters) {
    CheckStepEnd end = gtest_end(1, "", "");
    end.is_gtest = false;
    end.log = "\x1b[2Jline\a\n";
    const std::string message = check_step_record(end)["message"];
    EXPECT_NE(message.find("?[2Jline?"), std::string::npos) << message;
}

}  // namespace
}  // namespace speedrun::bench
