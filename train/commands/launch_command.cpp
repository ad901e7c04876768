#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "data/folder_lock.h"
#include "data/json_text.h"
#include "kernels/device/error.h"
#include "train/comm/stop_signals.h"
#include "train/commands/commands.h"
#include "train/commands/launch_hosts.h"
#include "train/commands/program_run.h"
#include "train/commands/stalled_run.h"
#include "train/config/config_json.h"
#include "train/runlog/metrics_json.h"

namespace speedrun {

namespace {

constexpr double kLongestWait = 60;

// Returns the value of an option of `train`, as "--name X" or "--name=X", after word `from`.
std::optional<std::string> option_of(const std::vector<std::string>& words, size_t from,
                                     const std::string& option) {
    for (size_t i = from; i < words.size(); ++i) {
        if (words[i].starts_with(option + "=")) return words[i].substr(option.size() + 1);
        if (words[i] == option && i + 1 < words.size()) return words[i + 1];
    }
    return std::nullopt;
}

struct LaunchedRun {
    std::vector<std::string> words;
    std::string folder;
    TrainedConfig trained;
};

LaunchedRun run_of(const std::vector<std::string>& command) {
    size_t at = 1;
    while (at < command.size() &&
           !(command[at] == "train" &&
             std::filesystem::path(command[at - 1]).filename().string().starts_with("speedrun")))
        ++at;
    if (at >= command.size())
        throw_usage(
            "launch: no 'speedrun train' in the command after --, for example: -- mpirun -n 8 speedrun train CONFIG --name RUN");
    const std::optional<std::string> name = option_of(command, at, "--name"),
                                     resume = option_of(command, at, "--resume");
    if (!name) throw_usage("launch: say with --name which run it is: it is continued by its name");
    if (resume && *resume != "auto")
        throw_usage(
            "launch: --resume {}: a run that is launched again continues itself: --resume auto, or none",
            *resume);
    LaunchedRun run{command, option_of(command, at, "--out").value_or("logs") + "/" + *name,
                    trained_config(command, at)};
    if (!resume) run.words.insert(run.words.end(), {"--resume", "auto"});
    return run;
}

// Shell exit codes: the program cannot be run, or is not found.
constexpr int kNotRun = 126, kNotFound = 127;

// False for a result, a failure that would repeat, and a run stopped by a signal.
bool is_crash(int code) {
    for (const ExitCode kind : {ExitCode::usage, ExitCode::data, ExitCode::diverged})
        if (code == static_cast<int>(kind)) return false;
    return code != 0 && code != kNotRun && code != kNotFound && !is_stop_code(code);
}

void say(const std::string& text) {
    std::fprintf(stderr, "launch: %s\n", text.c_str());
}

// Returns the number of steps in the run's metrics. A crash or a full disk may have left truncated or joined lines.
int64_t steps_done(const std::string& folder) {
    const std::string path = folder + "/metrics.jsonl";
    int64_t steps = 0, num_bad = 0;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        try {
            const auto json = parse_json<nlohmann::json>(line);
            if (json.at("event") == "step") steps = std::max(steps, value_of(json, &StepMetrics::step) + 1);
        } catch (const std::exception&) {
            if (!file.eof()) ++num_bad;  // the last line may be incomplete
        }
    }
    if (num_bad > 0)
        say(fmt::format("warning: {}: {} line(s) cannot be read and are skipped", path, num_bad));
    return steps;
}

// Runs the command until it ends, or kills it once its run has stalled.
int run_watched(const std::vector<std::string>& words, const std::string& folder, double limit_s) {
    StalledRun stalled(folder, limit_s);
    bool said = false;
    return run_program(words, false, [&] {
        if (!stalled()) return false;
        if (!said) say(fmt::format("no sign of life for {:g} s (--stalled): the command is killed", limit_s));
        return said = true;
    });
}

// Returns false if a signal arrived.
bool wait_for(double seconds) {
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    while (Clock::now() < end) {
        if (signal_passed_on() != 0) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return signal_passed_on() == 0;
}

// Waits for ranks that outlive the command that started them. Returns the process that still writes the folder after a minute,
// or when a signal arrives; empty: none.
std::string wait_for_release(const std::string& folder) {
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::duration<double>(kLongestWait);
    std::string writer = FolderLock::writer(folder);
    if (!writer.empty()) say("waits for the end of " + writer);
    while (!writer.empty() && Clock::now() < end && wait_for(0.1)) writer = FolderLock::writer(folder);
    return writer;
}

// Placement of the ranks at each start.
class Places {
  public:
    Places(const LaunchOptions& options, const LaunchedRun& run) : probe_(options.probe) {
        if (options.hosts.empty()) return;
        hosts_ = read_launch_hosts(options.hosts);
        config_ = read_config(run.trained.path, run.trained.settings);
    }

    // Returns the command of the next start; empty if no placement is possible.
    std::vector<std::string> next(const std::vector<std::string>& words) {
        if (hosts_.empty()) return words;
        std::vector<std::string> said;
        const LaunchPlaces placement = place(hosts_, probe_, config_, said);
        for (const std::string& text : said) say(text);
        if (signal_passed_on() != 0) return {};
        say(placement.ranks > 0 ? placement.text() : "no host is left that the config could run on");
        changed_ = placement.ranks != ranks_;
        ranks_ = placement.ranks;
        return placement.ranks > 0 ? placement.fill(words) : std::vector<std::string>{};
    }
    // True if the number of ranks differs from the previous start.
    bool changed() const { return changed_; }

  private:
    const std::string probe_;
    std::vector<LaunchHost> hosts_;
    Config config_;
    int ranks_ = 0;
    bool changed_ = false;
};

// Reports the end by a signal. Returns the exit code: the command's if it failed.
int stopped_by(int signal, int code, const std::string& folder) {
    say(fmt::format("{}: the run was stopped after step {}, and the same command continues it",
                    signal_text(signal), steps_done(folder)));
    return code != 0 ? code : 128 + signal;
}

}  // namespace

int run_launch(const LaunchOptions& options) {
    const LaunchedRun run = run_of(options.command);
    Places places(options, run);
    int64_t crashed_after = -1;  // steps; -1: no crash yet
    double wait = options.backoff_s;
    for (int64_t restarts = 0;; ++restarts) {
        const std::vector<std::string> words = places.next(run.words);
        if (places.changed()) crashed_after = -1;
        const bool somewhere = !words.empty();
        const int code = somewhere ? run_watched(words, run.folder, options.stalled_s)
                                   : static_cast<int>(ExitCode::communication);
        if (const int signal = signal_passed_on(); signal != 0)
            return stopped_by(signal, somewhere ? code : 0, run.folder);
        if (code == kNotRun || code == kNotFound)
            say(fmt::format(
                "the command ended with {}: a program that it names is not found or cannot be run", code));
        if (!is_crash(code)) return code;
        const int64_t steps = steps_done(run.folder);
        const std::string died = fmt::format("the run died after step {} (exit code {})", steps, code);
        if (crashed_after == steps) {
            say(died + ", as it did before: it would again, and is not restarted; see " + run.folder +
                "/run.log");
            return code;
        }
        if (restarts == options.max_restarts) {
            say(fmt::format("{}; it was restarted {} time(s), which is --max-restarts", died, restarts));
            return code;
        }
        say(fmt::format("{}; restart {} of {} in {:g} s, from its newest good checkpoint", died, restarts + 1,
                        options.max_restarts, wait));
        if (!wait_for(wait)) return stopped_by(signal_passed_on(), 0, run.folder);
        const std::string writer = wait_for_release(run.folder);
        if (signal_passed_on() != 0) return stopped_by(signal_passed_on(), 0, run.folder);
        if (!writer.empty()) {
            say(fmt::format("{} is still written by {}: not restarted", run.folder, writer));
            return code;
        }
        if (somewhere) crashed_after = steps;
        wait = std::min(2 * wait, kLongestWait);
    }
}

}  // namespace speedrun
