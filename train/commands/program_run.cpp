#include "train/commands/program_run.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "kernels/device/error.h"
#include "kernels/device/host_limits.h"

namespace speedrun {

namespace {

std::atomic<pid_t> running{0};
std::atomic<int> stopped{0};

void pass_on(int signal) {
    stopped = signal;
    if (const pid_t child = running.load(); child > 0) kill(child, signal);
}

std::vector<std::string> words_of(const std::string& program, const TrainOptions& options) {
    std::vector<std::string> words = {program, "train", options.config};
    for (const std::string& setting : options.settings) words.insert(words.end(), {"--set", setting});
    words.insert(words.end(), {"--out", options.out, "--name", options.name, "--quiet"});
    if (options.seed) words.insert(words.end(), {"--seed", std::to_string(*options.seed)});
    return words;
}

// In the child, after fork. Only what may be called there.
[[noreturn]] void become(const std::vector<char*>& arguments, pid_t parent, bool quiet) {
    setpgid(0, 0);  // a terminal's Ctrl-C reaches the parent alone, which passes it on once
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(127);
    // Nothing to read: in a group of its own a program that reads from the terminal is stopped.
    const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (nowhere >= 0) dup2(nowhere, STDIN_FILENO);
    if (nowhere >= 0 && quiet) dup2(nowhere, STDOUT_FILENO);
    execvp(arguments.front(), arguments.data());
    _exit(127);
}

}  // namespace

int signal_passed_on() {
    return stopped;
}

int run_program(const std::vector<std::string>& program, bool quiet, const std::function<bool()>& is_stuck) {
    struct sigaction action {};
    action.sa_handler = pass_on;
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) sigaction(signal, &action, nullptr);
    if (stopped != 0) return 128 + stopped;
    std::vector<std::string> words = program;
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    const pid_t parent = getpid(), child = fork();
    if (child < 0) {
        throw_usage("{}: cannot start a process: {}; {}", words.front(), std::strerror(errno),
                    describe_task_limits());
    }
    if (child == 0) become(arguments, parent, quiet);
    running = child;
    if (stopped != 0) kill(child, stopped);  // came before there was somebody to pass it to
    int status = 0;
    for (pid_t ended = 0; ended != child;) {
        ended = waitpid(child, &status, is_stuck ? WNOHANG : 0);
        if (ended < 0 && errno != EINTR) throw_internal("waitpid: {}", std::strerror(errno));
        if (ended != 0) continue;
        if (is_stuck()) kill(-child, SIGKILL);
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    running = 0;
    if (WIFSIGNALED(status)) return 128 + WTERMSIG(status);
    if (WEXITSTATUS(status) == 127) throw_usage("{}: cannot be run", words.front());
    return WEXITSTATUS(status);
}

int train_with(const std::string& program, const TrainOptions& options) {
    if (access(program.c_str(), X_OK) != 0)
        throw_usage("{}: cannot be run: {}", program, std::strerror(errno));
    // A file, also where its name is no path.
    return run_program(words_of(std::filesystem::absolute(program).string(), options), true);
}

}  // namespace speedrun
