// Arithmetic and checks of the bench.
// Covers: kernels/ops/ceilings.cpp
#include <gtest/gtest.h>

#include <cmath>

#include "tests/bench/ceilings.h"
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
    covered.erase("muon_apply");
    EXPECT_EQ(operations_without_case(covered), std::vector<std::string>{"muon_apply"});
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
                        ops.add(
                            {.y = y.row_slice(0, rows), .x = x.row_slice(0, rows), .z = x.row_slice(0, rows)},
                            stream);
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
    EXPECT_EQ(m.sets, 16);  // the maximum: 512 bytes each do not fill 128 KiB
    EXPECT_GE(m.timing.repetitions, 3);
}

// Two independent counts: of the tensors that a case requests, and of the arguments of its call. They differ
// if only the case has the number of distinct rows of a table.
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
            EXPECT_EQ(cost.bytes_written, prepared.bytes_written()) << c.name;
        }
        // A case counts only visible pairs of attention with documents, and half of a symmetric matmul.
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
    c.op = "muon_apply";
    EXPECT_NE(run(c).failure.find("muon_apply"), std::string::npos);
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
                            backend_.ops->matmul({.c = c, .a = a, .b = b, .transpose_b = true}, stream);
                        }}};
    warning.clear();
    EXPECT_TRUE(measure_backend(backend_, *stream_, DType::f32, 1, warning).library_product);
    EXPECT_EQ(warning, "");
}

}  // namespace
}  // namespace speedrun::bench
