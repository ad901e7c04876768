#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <thread>

#include "kernels/device/error.h"
#include "train/commands/commands.h"
#include "train/commands/program_run.h"
#include "train/records/run_metrics.h"
#include "train/records/text_files.h"

namespace speedrun {

namespace {

constexpr double kLongestWait = 60;

// Value of an option of `train`, as "--name X" or "--name=X", behind word `from`.
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
    LaunchedRun run{command, option_of(command, at, "--out").value_or("logs") + "/" + *name};
    if (!resume) run.words.insert(run.words.end(), {"--resume", "auto"});
    return run;
}

// Steps that the run's metrics have.
int64_t steps_done(const std::string& folder) {
    const std::string path = folder + "/metrics.jsonl";
    if (!std::filesystem::exists(path)) return 0;
    return read_unfinished_metrics(read_text_file(path), path).steps;
}

// Neither a result nor something that would come again: the run died.
bool is_crash(int code) {
    for (const ExitCode kind : {ExitCode::usage, ExitCode::data, ExitCode::diverged})
        if (code == static_cast<int>(kind)) return false;
    return code != 0;
}

void say(const std::string& text) {
    std::fprintf(stderr, "launch: %s\n", text.c_str());
}

// False if a signal came.
bool wait_for(double seconds) {
    using Clock = std::chrono::steady_clock;
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    while (Clock::now() < end) {
        if (signal_passed_on() != 0) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return signal_passed_on() == 0;
}

}  // namespace

int run_launch(const LaunchOptions& options) {
    const LaunchedRun run = run_of(options.command);
    std::optional<int64_t> crashed_after;
    double wait = options.backoff_s;
    for (int64_t restarts = 0;; ++restarts) {
        const int code = run_program(run.words, false);
        if (const int signal = signal_passed_on(); signal != 0) return code != 0 ? code : 128 + signal;
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
        if (!wait_for(wait)) return 128 + signal_passed_on();
        crashed_after = steps;
        wait = std::min(2 * wait, kLongestWait);
    }
}

}  // namespace speedrun
