// Default numbers of threads, and available memory, under limits.
#include "kernels/device/host_limits.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "tests/errors.h"
#include "tests/sanitized.h"

namespace speedrun::testing::host_limits_test {

HostThreads host(int cores, double limit = 0, int64_t tasks = -1) {
    HostThreads threads{.cores = cores, .limit = {}, .tasks = {}};
    if (limit > 0) threads.limit = CoreLimit{limit, "cpu.max"};
    if (tasks >= 0) threads.tasks = AmountLimit{.limit = 2 * tasks, .left = tasks, .source = "pids.max"};
    return threads;
}

TEST(HostLimitsTest, ThreadsFollowTightestLimit) {
    EXPECT_EQ(threads_within(host(8)), 8);
    EXPECT_EQ(threads_within(host(8, 3)), 3);
    EXPECT_EQ(threads_within(host(8, 2.5)), 3);  // rounded up: half a core is worth using
    EXPECT_EQ(threads_within(host(8, 0.01)), 1);
    EXPECT_EQ(threads_within(host(8, 64)), 8);
    EXPECT_EQ(threads_within(host(8, 0, 1000)), 8);
    EXPECT_EQ(threads_within(host(8, 0, 16)), 4);  // streams, prefetcher and others need some tasks
    EXPECT_EQ(threads_within(host(8, 0, 0)), 1);
    EXPECT_EQ(threads_within(host(8, 2, 15)), 2);
    EXPECT_EQ(threads_within(host(1, 1e300, int64_t{1} << 59)), 1);
}

TEST(HostLimitsTest, RanksShareLimits) {
    EXPECT_EQ(threads_within(host(8, 6), 2), 3);
    EXPECT_EQ(threads_within(host(8, 3), 2), 1);
    EXPECT_EQ(threads_within(host(8, 1), 4), 1);
    EXPECT_EQ(threads_within(host(8, 0, 32), 2), 4);
}

TEST(HostLimitsTest, NotesNameLimit) {
    EXPECT_EQ(threads_note(host(8), 8), "");
    EXPECT_EQ(threads_note(host(8), 2), "");
    EXPECT_EQ(threads_note(host(8, 3), 2), "");
    EXPECT_EQ(threads_note(host(8, 2.5), 3),
              "threads is 3: the control group's limit of 2.5 cores (cpu.max)");
    EXPECT_THAT(threads_note(host(8, 0, 14), 2), HasSubstr("14 are left (pids.max)"));
    EXPECT_EQ(
        threads_note(host(2), 4),
        "threads is 4, which exceeds the 2 cores that this process may use: threads take turns; set threads=2 or "
        "less");
    EXPECT_THAT(threads_note(host(8, 2), 8), HasSubstr("limit of 2 cores"));
}

TEST(HostLimitsTest, OmpNumThreads) {
    const std::string before = getenv("OMP_NUM_THREADS") ? getenv("OMP_NUM_THREADS") : "";
    const auto of = [](const char* text) {
        setenv("OMP_NUM_THREADS", text, 1);
        return omp_num_threads().value_or(0);
    };
    EXPECT_EQ(of("3"), 3);
    EXPECT_EQ(of(" 2"), 2);
    EXPECT_EQ(of("4,2"), 4);  // nested loops: the outermost counts
    EXPECT_EQ(of("1000000"), 1000000);
    for (const char* text : {"2147483648", "99999999999", "99999999999999999999999999"})
        EXPECT_EQ(of(text), 1000000);
    for (const char* text : {"", "0", "-3", "abc", "-99999999999999999999"}) EXPECT_EQ(of(text), 0) << text;
    if (before.empty())
        unsetenv("OMP_NUM_THREADS");
    else
        setenv("OMP_NUM_THREADS", before.c_str(), 1);
}

TEST(HostLimitsTest, UlimitBoundsMemory) {
    if (testing::kSanitized) GTEST_SKIP() << "a sanitizer maps more than the limit";
    ASSERT_GT(host_memory().available, 0);
    rlimit before{};
    ASSERT_EQ(getrlimit(RLIMIT_DATA, &before), 0);
    rlimit lower = before;
    lower.rlim_cur = uint64_t{1} << 32;
    if (lower.rlim_cur > before.rlim_max) GTEST_SKIP() << "ulimit -d is lower";
    ASSERT_EQ(setrlimit(RLIMIT_DATA, &lower), 0);
    const HostMemory memory = host_memory();
    ASSERT_EQ(setrlimit(RLIMIT_DATA, &before), 0);
    EXPECT_LT(memory.available, int64_t{1} << 32);
    if (memory.limit && memory.limit->source == "ulimit -d") {
        EXPECT_EQ(memory.limit->limit, int64_t{1} << 32);
    }
}

TEST(HostLimitsTest, ReportsCoresOfThisProcess) {
    EXPECT_GE(host_threads().cores, 1);
    EXPECT_GE(threads_within(host_threads()), 1);
    EXPECT_THAT(describe_task_limits(), HasSubstr("this process has"));
}

}  // namespace speedrun::testing::host_limits_test
