// The bench's own arithmetic, its guards, and the report's rule that nothing passes unproven.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/bench/ceilings.h"
#include "tests/bench/check_results.h"
#include "tests/bench/run_case.h"

namespace speedrun::bench {
namespace {

TEST(TimingTest, MedianMinimumAndPercentile) {
    const Timing odd = summarize({3, 1, 2});
    EXPECT_EQ(odd.median_ms, 2);
    EXPECT_EQ(odd.min_ms, 1);
    EXPECT_EQ(odd.p90_ms, 3);
    const Timing even = summarize({10, 9, 8, 7, 6, 5, 4, 3, 2, 1});
    EXPECT_EQ(even.median_ms, 5.5);
    EXPECT_EQ(even.p90_ms, 9);
    EXPECT_EQ(even.repetitions, 10);
    EXPECT_THROW(summarize({}), Error);
}

TEST(FloorTest, IsTheLargerOfTheTwoTimes) {
    Ceilings ceilings;
    ceilings.flops_per_s = 1e12;
    ceilings.bytes_per_s = 1e9;
    EXPECT_DOUBLE_EQ(floor_of(2e9, 1000000, ceilings).ms, 2.0);
    EXPECT_TRUE(floor_of(2e9, 1000000, ceilings).compute_bound);
    EXPECT_DOUBLE_EQ(floor_of(0, 3000000, ceilings).ms, 3.0);
    EXPECT_DOUBLE_EQ(expected_ms({"rate", 2, 0, 0}, 2e9, {}), 1.0);
    EXPECT_DOUBLE_EQ(expected_ms({"share", 0, 0, 0.5}, 0, {3.0, false}), 6.0);
}

TEST(CoverageTest, AnOperationWithoutCaseIsNamed) {
    std::set<std::string> covered;
    for (const Case& c : all_cases(small_shapes())) covered.insert(c.op);
    EXPECT_EQ(operations_without_case(covered), std::vector<std::string>{});
    covered.erase("gram");
    EXPECT_EQ(operations_without_case(covered), std::vector<std::string>{"gram"});
}

TEST(ShapesTest, TheRecipeSeesAbout450KeysOfAQuery) {
    const ModelShape shape = full_shapes().recipe;
    const double keys = documents_of(shape).visible_keys / static_cast<double>(shape.tokens);
    EXPECT_GT(keys, 430);
    EXPECT_LT(keys, 470);
}

class RunCaseTest : public ::testing::Test {
  protected:
    Measurement run(const Case& c) {
        backend_.cache_bytes = 1 << 16;
        Timer timer(*backend_.device, *stream_, {});
        return run_case(c, backend_, *stream_, timer, DType::f32, {.seconds = 0.001});
    }
    Case add_case(bool whole, float deviation) {
        return {"test", "add", "64", 0, {}, [=](CaseMemory& m) -> Enqueue {
                    const Tensor y = m.output({2, 32}), x = m.input({2, 32}, deviation);
                    return [=](Ops& ops, Stream& stream) {
                        const int64_t rows = whole ? 2 : 1;
                        ops.add(y.row_slice(0, rows), x.row_slice(0, rows), x.row_slice(0, rows), stream);
                    };
                }};
    }
    Backend backend_ = make_cpu_backend(1);
    std::unique_ptr<Stream> stream_ = backend_.device->create_stream("compute");
};

TEST_F(RunCaseTest, CountsBytesAndRotatesOverSetsLargerThanTheCache) {
    const Measurement m = run(add_case(true, 1.0f));
    EXPECT_EQ(m.failure, "");
    EXPECT_EQ(m.bytes, 2 * 64 * 4);
    EXPECT_EQ(m.sets, 16);  // as many as are allowed: 512 bytes each do not fill 128 KiB
    EXPECT_GE(m.timing.repetitions, 3);
}

// Two counts that know nothing of each other: of the tensors that a case asks for, and of the arguments of
// its call. They differ where only the case knows how many rows of a table are distinct.
TEST_F(RunCaseTest, TheLeastBytesOfACallAreThoseOfItsCase) {
    backend_.cache_bytes = 0;
    for (const Case& c : all_cases(small_shapes())) {
        const PreparedCase prepared(c, backend_, *stream_, DType::f32);
        const OpCost& cost = prepared.cost();
        if (c.op.starts_with("embedding")) {
            EXPECT_GE(cost.bytes, prepared.bytes()) << c.name;
            EXPECT_LE(cost.bytes, 3 * prepared.bytes()) << c.name;
        } else {
            EXPECT_EQ(cost.bytes, prepared.bytes()) << c.name;
        }
        // A case counts what documents leave of attention, and half of a symmetric product.
        const auto flops = static_cast<double>(cost.flops);
        if (c.op == "matmul") {
            EXPECT_EQ(flops, c.flops) << c.name;
        }
        EXPECT_GE(flops, 0.5 * c.flops) << c.name;
        EXPECT_EQ(flops > 0, c.flops > 0) << c.name;
    }
}

TEST_F(RunCaseTest, FindsWhatWasNotWritten) {
    EXPECT_NE(run(add_case(false, 1.0f)).failure.find("32 of 64 elements"), std::string::npos);
}

TEST_F(RunCaseTest, FindsNonFiniteOutputs) {
    EXPECT_NE(run(add_case(true, INFINITY)).failure.find("not finite"), std::string::npos);
}

TEST_F(RunCaseTest, FindsACaseThatRunsAnotherOperation) {
    Case c = add_case(true, 1.0f);
    c.op = "gram";
    EXPECT_NE(run(c).failure.find("gram"), std::string::npos);
}

TEST_F(RunCaseTest, AWrongProductIsNoCeiling) {
    backend_.ceilings = {128, 1 << 16};
    backend_.library_matmul = false;
    backend_.probes = {
        {"idle", [](Tensor, Tensor, Tensor, Stream&) {}},
        {"absent", [](Tensor, Tensor, Tensor, Stream&) { throw_internal("no such library"); }}};
    std::string warning;
    const BackendCeilings wrong = measure_backend(backend_, *stream_, DType::f32, 1, warning);
    EXPECT_NE(warning.find("idle: element 0 is 0"), std::string::npos) << warning;
    EXPECT_NE(warning.find("absent: no such library"), std::string::npos) << warning;
    EXPECT_FALSE(wrong.library_product);
    EXPECT_EQ(wrong.product_by, "operation matmul, 128 cubed f32");

    backend_.probes = {{"right", [&](Tensor c, Tensor a, Tensor b, Stream& stream) {
                            backend_.ops->matmul(c, a, b, {}, {.transpose_b = true}, stream);
                        }}};
    warning.clear();
    EXPECT_TRUE(measure_backend(backend_, *stream_, DType::f32, 1, warning).library_product);
    EXPECT_EQ(warning, "");
}

// ---- the report

constexpr const char* kLog =
    "[ RUN      ] A.one\n[       OK ] A.one (1 ms)\n[ RUN      ] A.two\nboom\n[  FAILED  ] A.two, where "
    "GetParam() = 1 (2 ms)\n[ RUN      ] A.three\nillegal address\n";

StepEnd gtest_end(int exit_code, const std::string& json, const std::string& log) {
    StepEnd end;
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

TEST(MergeTest, CudnnsTimeStandsBesideOurs) {
    const auto op = [](const char* attention, double ms) {
        return Json({{"kind", "op"},
                     {"name", "attention.gpt2.forward"},
                     {"dtype", "bf16"},
                     {"products", "library"},
                     {"attention", attention},
                     {"status", "passed"},
                     {"median_ms", ms}})
            .dump();
    };
    const Json report = merge_records({op("hand", 2.0), op("cudnn", 1.0), op("hand", 1.5)}, {});
    ASSERT_EQ(report["ops"].size(), 2u);
    EXPECT_EQ(report["ops"][0]["median_ms"], 1.5);
    EXPECT_EQ(report["ops"][1]["median_ms"], 1.0);
    EXPECT_NE(print_report(report).find("attention.gpt2.forward (cuDNN)"), std::string::npos);
}

TEST(StepRecordTest, CountsWhatGtestWrote) {
    const Json record = step_record(
        gtest_end(1,
                  gtest_json(R"({"name":"one","result":"COMPLETED"},{"name":"two","result":"SKIPPED"},)"
                             R"({"name":"three","result":"COMPLETED","failures":[{"failure":"f.cc:1"}]})"),
                  ""));
    EXPECT_EQ(record["status"], "failed");
    EXPECT_EQ(record["tests"], Json::parse(R"({"passed":1,"failed":1,"skipped":1})"));
    EXPECT_EQ(record["failures"][0]["name"], "A.three");
    EXPECT_EQ(record["failures"][0]["message"], "f.cc:1");
}

TEST(StepRecordTest, ACrashNamesTheTestThatItHappenedIn) {
    const Json record = step_record(gtest_end(139, "", kLog));
    EXPECT_EQ(record["status"], "failed");
    EXPECT_EQ(record["failures"][0]["name"], "A.two");
    const std::string message = record["message"];
    EXPECT_NE(message.find("A.three"), std::string::npos) << message;
    EXPECT_NE(message.find("exit code 139"), std::string::npos) << message;
    EXPECT_NE(message.find("illegal address"), std::string::npos) << message;
}

TEST(StepRecordTest, NothingPassesUnproven) {
    const std::string passed = gtest_json(R"({"name":"one","result":"COMPLETED"})");
    EXPECT_EQ(step_record(gtest_end(0, passed, ""))["status"], "passed");
    EXPECT_EQ(step_record(gtest_end(0, gtest_json(R"({"name":"one","result":"SKIPPED"})"), ""))["status"],
              "skipped");
    EXPECT_EQ(step_record(gtest_end(77, "", "skipped: no GPU\n"))["status"], "skipped");
    EXPECT_EQ(step_record(gtest_end(77, "", "skipped: no GPU\n"))["message"], "skipped: no GPU");
    EXPECT_EQ(step_record(gtest_end(0, gtest_json(""), ""))["status"], "failed");
    EXPECT_EQ(step_record(gtest_end(0, "", ""))["status"], "failed");
    EXPECT_EQ(step_record(gtest_end(1, passed, ""))["status"], "failed");
    EXPECT_EQ(step_record(gtest_end(124, passed, ""))["status"], "failed");
    // A failure of an earlier round of --gtest_repeat, of which the last round's JSON knows nothing.
    EXPECT_EQ(step_record(gtest_end(0, passed, "[ RUN      ] A.one\n[  FAILED  ] A.one (1 ms)\n"))["status"],
              "failed");
}

TEST(MergeTest, WhatDidNotRunIsNotPassed) {
    const std::string step = R"({"kind":"step","stage":"tests","step":"all","status":"passed"})";
    const Json complete = merge_records({step}, {"tests"});
    EXPECT_EQ(complete["result"], "passed");
    EXPECT_EQ(complete["stages"]["ops"], "not run");
    const Json incomplete = merge_records({step}, {"tests", "ops"});
    EXPECT_EQ(incomplete["result"], "incomplete");
    EXPECT_EQ(merge_records({}, {"tests"})["result"], "incomplete");
    EXPECT_NE(print_report(incomplete).find("ops       not run"), std::string::npos);
}

TEST(MergeTest, TheLaterRecordOfAStepCountsAndDamagedLinesAreTold) {
    const Json report = merge_records({R"({"kind":"step","stage":"tests","step":"all","status":"failed"})",
                                       R"({"kind":"step","stage":"tests","step":"all","status":"passed"})",
                                       R"({"kind":"step","stage":"te)"},
                                      {"tests"});
    EXPECT_EQ(report["result"], "passed");
    EXPECT_EQ(report["steps"].size(), 1u);
    EXPECT_EQ(report["damaged_lines"], 1);
}

TEST(MergeTest, AFailedOperationFailsTheReport) {
    const Json report =
        merge_records({R"({"kind":"step","stage":"ops","step":"all","status":"passed"})",
                       R"({"kind":"op","name":"x","dtype":"bf16","status":"failed","failure":"boom"})"},
                      {"ops"});
    EXPECT_EQ(report["result"], "failed");
    EXPECT_NE(print_report(report).find("boom"), std::string::npos);
}

}  // namespace
}  // namespace speedrun::bench
