// Machine state during a run, read from files written by the test, and reasons for marking a run.
// build: release
#include "train/runlog/machine_state.h"

#include "tests/data/test_files.h"

namespace speedrun::machine_state_test {

// Files of a machine with four cores, two of them in the process's affinity mask.
class MachineStateTest : public ::testing::Test {
  protected:
    MachineStateTest() {
        for (const char* folder : {"proc/self", "sys/devices/system/cpu/cpu0/cpufreq", "sys/fs/cgroup/job"})
            std::filesystem::create_directories(dir_.file(folder));
        dir_.write("proc/self/status", "Name:\tspeedrun\nCpus_allowed:\tc\nCpus_allowed_list:\t2-3\n");
        dir_.write("proc/self/cgroup", "0::/job\n");
        dir_.write("proc/self/mountinfo", "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        dir_.write("sys/fs/cgroup/job/cpu.max", "150000 100000\n");
        dir_.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n");
        write_mhz(2000, 2400);
        write_stat(0, 0);
        write_throttling(100, 4);
    }

    // Seconds of busy and stolen time, summed over cores 2 and 3.
    void write_stat(int busy_s, int stolen_s) const {
        const std::string ticks = std::to_string(50 * busy_s), stolen = std::to_string(100 * stolen_s);
        dir_.write("proc/stat",
                   "cpu  9 9 9 9 9 9 9 9 9 9\n"
                   "cpu0 90000 0 0 0 0 0 0 0 0 0\n"
                   "cpu2 " +
                       ticks + " 0 " + ticks + " 77 5 0 0 " + stolen +
                       " 0 0\n"
                       "cpu3 0 0 0 99 5 0 0 0 0 0\nintr 1 2 3\n");
    }
    void write_mhz(int second, int third) const {
        dir_.write(
            "proc/cpuinfo",
            "processor\t: 0\ncpu MHz\t\t: 800\n\nprocessor\t: 2\ncpu MHz\t\t: " + std::to_string(second) +
                ".5\n\nprocessor\t: 3\ncpu MHz\t\t: " + std::to_string(third) + ".5\n");
    }
    void write_throttling(int periods, int throttled) const {
        dir_.write("sys/fs/cgroup/job/cpu.stat", "usage_usec 5\nnr_periods " + std::to_string(periods) +
                                                     "\nnr_throttled " + std::to_string(throttled) +
                                                     "\nthrottled_usec 7\n");
    }
    // Reads these files at a given time.
    MachineCounters counters(double at_s) const {
        const std::string root = std::filesystem::path(dir_.file("proc")).parent_path().string();
        MachineCounters read = read_machine_counters(cores_in_list(allowed_cores(root)), root);
        read.monotonic_s = read.raw_s = at_s;
        read.realtime_s = 1.8e9 + at_s;
        return read;
    }

    const TempDir dir_;
};

TEST_F(MachineStateTest, ReadsCoresClocksAndLimits) {
    const MachineCounters begin = counters(0);
    EXPECT_EQ(begin.cores, 2);
    EXPECT_EQ(begin.governor, "performance");
    EXPECT_DOUBLE_EQ(begin.mhz, 2200.5);
    write_mhz(1000, 1100);
    write_stat(12, 0);
    write_throttling(300, 5);
    const MachineState state = state_between(begin, counters(10), 11.5);
    EXPECT_DOUBLE_EQ(state.seconds, 10);
    EXPECT_NEAR(state.others, 0.025, 1e-9);
    EXPECT_DOUBLE_EQ(state.mhz_begin, 2200.5);
    EXPECT_DOUBLE_EQ(state.mhz_end, 1050.5);
    EXPECT_EQ(state.periods, 200);
    EXPECT_EQ(state.throttled, 1);
    EXPECT_EQ(state.problem(), "");
}

TEST_F(MachineStateTest, NamesTheReasonOfAMark) {
    const MachineCounters begin = counters(0);
    write_stat(12, 0);
    EXPECT_EQ(state_between(begin, counters(10), 10.8).problem(), "other programs took 6% of the cores");
    EXPECT_EQ(state_between(begin, counters(10), 11.1).problem(), "");
    write_stat(12, 2);
    EXPECT_EQ(state_between(begin, counters(10), 12).problem(), "the hypervisor took 10% of the cores");
    write_stat(12, 0);
    write_throttling(200, 7);
    EXPECT_EQ(state_between(begin, counters(10), 12).problem(),
              "the control group throttled it in 3 of 100 periods");
    write_throttling(100, 4);
    MachineCounters moved = counters(10);
    moved.realtime_s -= 3600;
    EXPECT_EQ(state_between(begin, moved, 12).problem(), "the wall clock moved by -3600000 ms");
    MachineCounters slowed = counters(10);
    slowed.raw_s += 0.05;
    EXPECT_EQ(state_between(begin, slowed, 12).problem(), "the clock ran -0.50% against the processor's");
    // One tick per core does not count as another program.
    write_stat(0, 0);
    MachineCounters tick = counters(0.1);
    tick.busy_s += 0.02;
    EXPECT_EQ(state_between(begin, tick, 0).problem(), "");
}

TEST_F(MachineStateTest, AHostWithoutTheseFilesHasNoProblem) {
    const TempDir empty;
    empty.write("x", "");
    const std::string root = std::filesystem::path(empty.file("x")).parent_path().string();
    MachineCounters begin = read_machine_counters({}, root), end = read_machine_counters({}, root);
    EXPECT_EQ(allowed_cores(root), "");
    EXPECT_EQ(begin.cores, 0);
    EXPECT_EQ(state_between(begin, end, 1).problem(), "");
}

TEST_F(MachineStateTest, KeepsItsFiguresAsJson) {
    const MachineCounters begin = counters(0);
    write_stat(12, 1);
    write_throttling(300, 5);
    const MachineState state = state_between(begin, counters(10), 9);
    const std::string text = machine_state_to_json(state);
    EXPECT_EQ(machine_state_to_json(machine_state_from_json(text, "here")), text);
    EXPECT_THROW(machine_state_from_json("{}", "here"), Error);
    EXPECT_THROW(machine_state_from_json("[", "here"), Error);
}

TEST_F(MachineStateTest, SeveralHostsCountAsTheWorst) {
    MachineState a, b;
    a.others = 0.1, a.clock_moved_ms = -70, a.periods = 10, a.throttled = 1;
    b.stolen = 0.2, b.clock_moved_ms = 5, b.periods = 100, b.throttled = 20;
    const MachineState worst = worst_of(a, b);
    EXPECT_EQ(worst.others, 0.1);
    EXPECT_EQ(worst.stolen, 0.2);
    EXPECT_EQ(worst.clock_moved_ms, -70);
    EXPECT_EQ(worst.throttled, 20);
}

TEST(CoresInList, ReadsRangesAndRefusesTheRest) {
    EXPECT_EQ(cores_in_list("0-2,8"), (std::set<int>{0, 1, 2, 8}));
    EXPECT_EQ(cores_in_list("5"), (std::set<int>{5}));
    for (const char* bad : {"", "x", "3-1", "0-", "0-99999999", "1;2"})
        EXPECT_TRUE(cores_in_list(bad).empty()) << bad;
}

}  // namespace speedrun::machine_state_test
