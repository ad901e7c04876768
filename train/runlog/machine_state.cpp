#include "train/runlog/machine_state.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "data/json_text.h"
#include "kernels/cuda/device/gpu_clocks.h"
#include "kernels/device/control_group.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

using MachineJson = nlohmann::ordered_json;

constexpr double kMaxOfOthers = 0.05;    // share of the cores' time
constexpr double kTicksPerCore = 0.02;   // seconds; the kernel counts ticks of 10 ms
constexpr double kMaxThrottled = 0.01;   // share of the periods
constexpr double kMaxClockMove_ms = 50;  // ms; time daemons slew, which moves both clocks
constexpr double kMaxClockRate = 0.001;  // the kernel's own correction is at most 0.0005

double seconds_of(clockid_t clock) {
    timespec now{};
    if (clock_gettime(clock, &now) != 0) return 0;
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double cpu_seconds(int processes) {
    rusage usage{};
    if (getrusage(processes, &usage) != 0) return 0;
    const auto seconds = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
    };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// "cpu3 user nice system idle iowait irq softirq steal ..." in ticks; user includes guests.
void read_stat(const std::set<int>& cores, const std::string& root, MachineCounters& counters) {
    std::ifstream file(root + "/proc/stat");
    const double tick_s = 1.0 / static_cast<double>(sysconf(_SC_CLK_TCK));
    for (std::string line; std::getline(file, line);) {
        if (!line.starts_with("cpu") || line.size() < 4 || line[3] == ' ') continue;
        std::istringstream fields(line.substr(3));
        int core = -1;
        double user = 0, nice = 0, system = 0, idle = 0, iowait = 0, irq = 0, softirq = 0, steal = 0;
        if (!(fields >> core >> user >> nice >> system >> idle >> iowait >> irq >> softirq >> steal))
            continue;
        if (!cores.empty() && !cores.contains(core)) continue;
        counters.busy_s += (user + nice + system + irq + softirq) * tick_s;
        counters.stolen_s += steal * tick_s;
        ++counters.cores;
    }
}

void read_mhz(const std::set<int>& cores, const std::string& root, MachineCounters& counters) {
    std::ifstream file(root + "/proc/cpuinfo");
    int core = -1;
    double sum = 0, count = 0;
    for (std::string line; std::getline(file, line);) {
        const size_t colon = line.find(':');
        if (colon == std::string::npos) continue;
        const double value = std::strtod(line.c_str() + colon + 1, nullptr);
        if (line.starts_with("processor")) core = static_cast<int>(value);
        if (!line.starts_with("cpu MHz") || (!cores.empty() && !cores.contains(core))) continue;
        sum += value;
        ++count;
    }
    counters.mhz = count > 0 ? sum / count : 0;
}

// cpu.stat is in the folder of the file with the limit.
void read_throttling(const std::string& root, MachineCounters& counters) {
    const ControlGroup group = read_control_group(root);
    if (!group.cores) return;
    std::ifstream file(std::filesystem::path(root + group.cores->source).parent_path() / "cpu.stat");
    std::string key;
    for (int64_t value = 0; file >> key >> value;) {
        if (key == "nr_periods") counters.periods = value;
        if (key == "nr_throttled") counters.throttled = value;
    }
}

double larger_size(double a, double b) {
    return std::abs(a) >= std::abs(b) ? a : b;
}

}  // namespace

std::string MachineState::problem() const {
    const double core_s = static_cast<double>(cores) * seconds;
    const auto too_much = [&](double share) {
        return share > kMaxOfOthers && share * core_s > kTicksPerCore * static_cast<double>(cores);
    };
    if (too_much(others)) return fmt::format("other programs took {:.0f}% of the cores", others * 100);
    if (too_much(stolen)) return fmt::format("the hypervisor took {:.0f}% of the cores", stolen * 100);
    if (static_cast<double>(throttled) > kMaxThrottled * static_cast<double>(periods))
        return fmt::format("the control group throttled it in {} of {} periods", throttled, periods);
    if (std::abs(clock_moved_ms) > kMaxClockMove_ms)
        return fmt::format("the wall clock moved by {:.0f} ms", clock_moved_ms);
    if (std::abs(clock_rate) > kMaxClockRate)
        return fmt::format("the clock ran {:+.2f}% against the processor's", clock_rate * 100);
    std::set<std::string> slowdowns;
    for (const ClockReason& reason : kClockReasons)
        if (reason.marks && gpu_throttle && gpu_throttle->contains(reason.name))
            slowdowns.insert(reason.name);
    if (!slowdowns.empty()) return fmt::format("a GPU reduced its clocks: {}", fmt::join(slowdowns, ", "));
    return "";
}

std::set<int> cores_in_list(const std::string& list) {
    std::set<int> cores;
    std::istringstream parts(list);
    for (std::string part; std::getline(parts, part, ',');) {
        char* end = nullptr;
        const long first = std::strtol(part.c_str(), &end, 10);
        if (end == part.c_str()) return {};
        const bool is_range = *end == '-';
        const char* const second = end + 1;
        const long last = is_range ? std::strtol(second, &end, 10) : first;
        if (is_range && end == second) return {};
        constexpr long kMaxCores = 1 << 16;
        if (*end != '\0' || first < 0 || last < first || last > kMaxCores) return {};
        for (long core = first; core <= last; ++core) cores.insert(static_cast<int>(core));
    }
    return cores;
}

std::string allowed_cores(const std::string& root) {
    std::ifstream file(root + "/proc/self/status");
    const std::string key = "Cpus_allowed_list:";
    for (std::string line; std::getline(file, line);) {
        if (!line.starts_with(key)) continue;
        const size_t begin = line.find_first_not_of(" \t", key.size());
        return begin == std::string::npos ? "" : line.substr(begin);
    }
    return "";
}

MachineCounters read_machine_counters(const std::set<int>& cores, const std::string& root) {
    MachineCounters counters;
    read_mhz(cores, root, counters);
    std::ifstream governor(root + "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    std::getline(governor, counters.governor);
    read_throttling(root, counters);
    read_stat(cores, root, counters);
    counters.own_s = cpu_seconds(RUSAGE_SELF) + cpu_seconds(RUSAGE_CHILDREN);
    counters.monotonic_s = seconds_of(CLOCK_MONOTONIC);
    counters.raw_s = seconds_of(CLOCK_MONOTONIC_RAW);
    counters.realtime_s = seconds_of(CLOCK_REALTIME);
    return counters;
}

MachineState state_between(const MachineCounters& begin, const MachineCounters& end, double own_s) {
    MachineState state;
    state.seconds = end.monotonic_s - begin.monotonic_s;
    state.cores = end.cores;
    const double core_s = state.seconds * static_cast<double>(end.cores);
    if (core_s > 0) {
        state.others = std::clamp((end.busy_s - begin.busy_s - own_s) / core_s, 0.0, 1.0);
        state.stolen = std::clamp((end.stolen_s - begin.stolen_s) / core_s, 0.0, 1.0);
    }
    state.periods = std::max<int64_t>(0, end.periods - begin.periods);
    state.throttled = std::max<int64_t>(0, end.throttled - begin.throttled);
    state.mhz_begin = begin.mhz;
    state.mhz_end = end.mhz;
    state.governor = end.governor;
    state.clock_moved_ms = (end.realtime_s - begin.realtime_s - state.seconds) * 1e3;
    const double raw = end.raw_s - begin.raw_s;
    // For shorter runs, the delay between reading the two clocks matters.
    constexpr double kLongEnough_s = 0.5;
    state.clock_rate = raw > kLongEnough_s ? state.seconds / raw - 1 : 0;
    return state;
}

MachineState worst_of(const MachineState& a, const MachineState& b) {
    MachineState worst = a;
    worst.seconds = std::max(a.seconds, b.seconds);
    worst.others = std::max(a.others, b.others);
    worst.stolen = std::max(a.stolen, b.stolen);
    if (a.throttled * std::max<int64_t>(1, b.periods) < b.throttled * std::max<int64_t>(1, a.periods)) {
        worst.periods = b.periods;
        worst.throttled = b.throttled;
    }
    worst.clock_moved_ms = larger_size(a.clock_moved_ms, b.clock_moved_ms);
    worst.clock_rate = larger_size(a.clock_rate, b.clock_rate);
    if (b.gpu_throttle) {
        if (!worst.gpu_throttle) worst.gpu_throttle.emplace();
        worst.gpu_throttle->insert(b.gpu_throttle->begin(), b.gpu_throttle->end());
    }
    return worst;
}

std::string machine_state_to_json(const MachineState& s) {
    MachineJson json({{"seconds", s.seconds},
                      {"cores", s.cores},
                      {"others", s.others},
                      {"stolen", s.stolen},
                      {"periods", s.periods},
                      {"throttled", s.throttled},
                      {"mhz_begin", s.mhz_begin},
                      {"mhz_end", s.mhz_end},
                      {"governor", s.governor},
                      {"clock_moved_ms", s.clock_moved_ms},
                      {"clock_rate", s.clock_rate}});
    if (s.gpu_throttle) json["gpu_throttle"] = *s.gpu_throttle;
    return json.dump(2) + "\n";
}

MachineState machine_state_from_json(const std::string& text, const std::string& origin) {
    try {
        const auto json = parse_json<MachineJson>(text);
        const auto number = [&](const char* key) { return json.at(key).get<double>(); };
        MachineState s;
        s.seconds = number("seconds");
        s.cores = whole_number(json.at("cores"));
        s.others = number("others");
        s.stolen = number("stolen");
        s.periods = whole_number(json.at("periods"));
        s.throttled = whole_number(json.at("throttled"));
        s.mhz_begin = number("mhz_begin");
        s.mhz_end = number("mhz_end");
        s.governor = json.at("governor").get<std::string>();
        s.clock_moved_ms = number("clock_moved_ms");
        s.clock_rate = number("clock_rate");
        if (json.contains("gpu_throttle"))
            s.gpu_throttle = json.at("gpu_throttle").get<std::set<std::string>>();
        return s;
    } catch (const std::exception& error) {
        throw_data("{}: {}", origin, error.what());
    }
}

}  // namespace speedrun
