// State of the machine during a run: whether other programs, limits or a moved clock can have affected its times. Linux.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

namespace speedrun {

struct MachineState {
    double seconds = 0;         // duration of the run by CLOCK_MONOTONIC
    int64_t cores = 0;          // cores available to the run's ranks on this host
    double others = 0;          // share of the cores' time used by other programs
    double stolen = 0;          // share used by the hypervisor
    int64_t periods = 0;        // periods of the control group's CPU limit; 0: no limit
    int64_t throttled = 0;      // periods in which the group was throttled
    double mhz_begin = 0;       // mean over the cores; 0: not readable
    double mhz_end = 0;         // mean at the end
    std::string governor = {};  // frequency governor of the first core; empty: not readable
    double clock_moved_ms = 0;  // CLOCK_REALTIME against CLOCK_MONOTONIC
    double clock_rate = 0;      // seconds of CLOCK_MONOTONIC / seconds of CLOCK_MONOTONIC_RAW - 1
    // Names in kClockReasons for which the ranks' GPUs reduced their clocks; nullopt: no GPU, or NVML cannot be read.
    std::optional<std::set<std::string>> gpu_throttle = {};

    // Returns the reason why the times of such a run are marked; empty: none.
    std::string problem() const;
};

// Counters at one moment. A run's values are the difference of two readings.
struct MachineCounters {
    double monotonic_s = 0, raw_s = 0, realtime_s = 0;
    double busy_s = 0, stolen_s = 0;  // CPU time of these cores
    double own_s = 0;                 // CPU time of this process and its terminated children
    int64_t periods = 0, throttled = 0;
    int64_t cores = 0;
    double mhz = 0;
    std::string governor;
};

// Returns the cores of a list such as "0-3,8"; none if the text is not a list.
std::set<int> cores_in_list(const std::string& list);
// Returns the value of Cpus_allowed_list in /proc/self/status. root: prefix of all paths, for tests.
std::string allowed_cores(const std::string& root = "");

// cores: numbers of the cores to read; empty: all.
MachineCounters read_machine_counters(const std::set<int>& cores, const std::string& root = "");

// own_s: CPU time of all ranks on this host between the readings.
MachineState state_between(const MachineCounters& begin, const MachineCounters& end, double own_s);
// Merges the states of two hosts: the larger value of each figure that can mark a run, and the union of the reasons.
MachineState worst_of(const MachineState& a, const MachineState& b);

// machine.json of a run in an attempt. machine_state_from_json() throws a data error that names `origin`.
std::string machine_state_to_json(const MachineState& state);
MachineState machine_state_from_json(const std::string& text, const std::string& origin);

}  // namespace speedrun
