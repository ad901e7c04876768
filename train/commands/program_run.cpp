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
#include <set>
#include <thread>

#include "kernels/device/error.h"
#include "kernels/device/host_limits.h"
#include "train/comm/stop_signals.h"
#include "train/commands/output_relay.h"

namespace speedrun {

namespace {

std::atomic<pid_t> running{0};
std::atomic<int> stopped{0};
std::atomic<bool> passed_on{false};     // to the running program
std::atomic<bool> starts_ranks{false};  // true if the running program starts ranks, possibly on other hosts

// mpirun kills its ranks one second after most signals; it forwards SIGUSR1 and waits.
int signal_to_child(int signal, bool insisted) {
    return starts_ranks && !insisted ? SIGUSR1 : signal;
}

void pass_on(int signal) {
    const bool insisted = insists(signal);
    int none = 0;
    stopped.compare_exchange_strong(none, signal);
    const pid_t child = running;
    if (child <= 0) return;
    passed_on = true;
    kill(child, signal_to_child(signal, insisted));
}

bool is_launcher(const std::string& program) {
    static const std::set<std::string> kNames{"mpirun",  "mpiexec", "orterun",
                                              "prterun", "srun",    "mpiexec.hydra"};
    return kNames.contains(std::filesystem::path(program).filename().string());
}

std::vector<std::string> words_of(const std::string& program, const TrainOptions& options) {
    std::vector<std::string> words = {program, "train", options.config};
    for (const std::string& setting : options.settings) words.insert(words.end(), {"--set", setting});
    words.insert(words.end(), {"--out", options.out, "--name", options.name, "--quiet"});
    if (options.seed) words.insert(words.end(), {"--seed", std::to_string(*options.seed)});
    return words;
}

// In the child, after fork: async-signal-safe functions only. failure: descriptor for errno if exec fails.
[[noreturn]] void become(const std::vector<char*>& arguments, pid_t parent, bool quiet,
                         const OutputRelay& relay, int failure) {
    setpgid(0, 0);  // a terminal's Ctrl-C reaches only the parent, which forwards it once
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(127);
    restore_write_signals();
    std::signal(SIGTTOU, SIG_IGN);  // a background group may then write to a terminal under `stty tostop`
    // No stdin: a background group that reads from the terminal is stopped.
    const int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (nowhere >= 0) dup2(nowhere, STDIN_FILENO);
    relay.take_place();
    if (nowhere >= 0 && quiet) dup2(nowhere, STDOUT_FILENO);
    execvp(arguments.front(), arguments.data());
    const int error = errno;
    _exit(write(failure, &error, sizeof error) > 0 ? 127 : 126);
}

}  // namespace

int signal_passed_on() {
    return stopped;
}

int run_program(const std::vector<std::string>& program, bool quiet, const std::function<bool()>& is_stuck) {
    handle_stop_signals(pass_on);
    if (stopped != 0) return 128 + stopped;
    std::vector<std::string> words = program;
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    OutputRelay relay;
    int failure[2];  // read, write; a successful exec closes it
    if (pipe2(failure, O_CLOEXEC) != 0) throw_internal("pipe: {}", std::strerror(errno));
    const pid_t parent = getpid(), child = fork();
    if (child < 0) {
        throw_usage("{}: cannot start a process: {}; {}", words.front(), std::strerror(errno),
                    describe_task_limits());
    }
    if (child == 0) become(arguments, parent, quiet, relay, failure[1]);
    relay.start();
    close(failure[1]);
    int error = 0;
    while (read(failure[0], &error, sizeof error) < 0 && errno == EINTR) {
    }
    close(failure[0]);
    starts_ranks = is_launcher(words.front());
    passed_on = false;
    running = child;
    // Forwards a signal that arrived before the program was started.
    if (const int signal = stopped; signal != 0 && !passed_on) kill(child, signal_to_child(signal, false));
    int status = 0;
    for (pid_t ended = 0; ended != child;) {
        ended = waitpid(child, &status, is_stuck ? WNOHANG : 0);
        if (ended < 0 && errno != EINTR) throw_internal("waitpid: {}", std::strerror(errno));
        if (ended != 0) continue;
        if (is_stuck()) kill(-child, SIGKILL);
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    running = 0;
    if (error != 0) throw_usage("{}: cannot be run: {}", words.front(), std::strerror(error));
    if (WIFSIGNALED(status)) return 128 + WTERMSIG(status);
    const int code = WEXITSTATUS(status);
    return stopped != 0 && starts_ranks && code == 128 + SIGUSR1 ? 128 + stopped : code;
}

int train_with(const std::string& program, const TrainOptions& options) {
    if (access(program.c_str(), X_OK) != 0)
        throw_usage("{}: cannot be run: {}", program, std::strerror(errno));
    // An absolute path, so that a plain name is not searched on PATH.
    return run_program(words_of(std::filesystem::absolute(program).string(), options), true);
}

}  // namespace speedrun
