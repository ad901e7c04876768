// State of the machine while a run was made: whether other programs, limits or a moved clock can have changed its times. Linux.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

namespace speedrun {

struct MachineState {
    double seconds = 0;         // length of the run by CLOCK_MONOTONIC
    int64_t cores = 0;          // number that the run's ranks on this host may use
    double others = 0;          // share of their time that other programs took
    double stolen = 0;          // share that the hypervisor took
    int64_t periods = 0;        // periods of the control group's limit of CPU time; 0: no limit
    int64_t throttled = 0;      // periods in which the group had to wait
    double mhz_begin = 0;       // mean over the cores; 0: not readable
    double mhz_end = 0;         // mean at the end
    std::string governor = {};  // frequency governor of the first core; empty: not readable
    double clock_moved_ms = 0;  // CLOCK_REALTIME against CLOCK_MONOTONIC
    double clock_rate = 0;      // seconds of CLOCK_MONOTONIC / seconds of CLOCK_MONOTONIC_RAW - 1
    // Names in kClockReasons for which the ranks' GPUs reduced their clocks; none: no GPU, or NVML cannot be read.
    std::optional<std::set<std::string>> gpu_throttle = {};

    // The reason why times of such a run are marked; empty: none.
    std::string problem() const;
};

// Readings at one moment. A run's figures are the difference of two.
struct MachineCounters {
    double monotonic_s = 0, raw_s = 0, realtime_s = 0;
    double busy_s = 0, stolen_s = 0;  // time of these cores
    double own_s = 0;                 // CPU time of this process and its children that have ended
    int64_t periods = 0, throttled = 0;
    int64_t cores = 0;
    double mhz = 0;
    std::string governor;
};

// Cores in a list such as "0-3,8". Returns none for a text that is no list.
std::set<int> cores_in_list(const std::string& list);
// Value of Cpus_allowed_list in /proc/self/status. root: prefix of all paths, for tests.
std::string allowed_cores(const std::string& root = "");

// cores: numbers of the cores to read; empty: all.
MachineCounters read_machine_counters(const std::set<int>& cores, const std::string& root = "");

// own_s: CPU time of all ranks on this host in between.
MachineState state_between(const MachineCounters& begin, const MachineCounters& end, double own_s);
// The larger value of each figure that can mark a run, and the reasons of either: of a run on several hosts.
MachineState worst_of(const MachineState& a, const MachineState& b);

// machine.json of a run in an attempt. The second throws a data error that names `origin`.
std::string machine_state_to_json(const MachineState& state);
MachineState machine_state_from_json(const std::string& text, const std::string& origin);

}  // namespace speedrun
