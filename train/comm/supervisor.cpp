#include "train/comm/supervisor.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/device/error.h"
#include "kernels/device/host_limits.h"
#include "train/comm/message_channel.h"
#include "train/comm/stop_signals.h"

namespace speedrun {

namespace {

void leave_to_the_child() {
    for (const int signal : kStopSignals) {
        if (std::signal(signal, SIG_IGN) == SIG_ERR)
            throw_internal("signal {}: {}", signal, std::strerror(errno));
    }
}

const char* rank_text() {
    for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
        if (const char* const rank = std::getenv(variable)) return rank;
    }
    return "?";
}

int wait_for(pid_t child) {
    int status = 0;
    while (waitpid(child, &status, 0) < 0) {
        if (errno != EINTR) throw_internal("waitpid: {}", std::strerror(errno));
    }
    return status;
}

// Returns the exit code for the launcher. `returned`: true if the rank's function has returned.
int exit_code_of(int status, bool returned) {
    if (WIFEXITED(status) && (returned || WEXITSTATUS(status) != 0)) return WEXITSTATUS(status);
    if (WIFEXITED(status)) {
        std::fprintf(stderr, "error: rank %s left before its end\n", rank_text());
        return static_cast<int>(ExitCode::communication);
    }
    const int signal = WTERMSIG(status);
    // The user requested the end, or the launcher ended this rank after another rank died; that rank reports the reason.
    const int stopped = 128 + signal;
    if (is_stop_code(stopped)) return stopped;
    std::fprintf(stderr, "error: rank %s died of signal %d (%s)%s\n", rank_text(), signal, strsignal(signal),
                 signal == SIGKILL ? "; unless it was killed by a user, the host may be out of memory" : "");
    return static_cast<int>(ExitCode::communication);
}

}  // namespace

int run_supervised(const std::function<int()>& rank) {
    if (!launched_with_mpi()) return rank();
    void* const shared =
        mmap(nullptr, sizeof(bool), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) throw_usage("cannot map memory: {}", std::strerror(errno));
    volatile bool& returned = *static_cast<bool*>(shared);  // zero, so false; the child sets it
    const pid_t parent = getpid();
    const pid_t child = fork();
    if (child < 0)
        throw_usage("cannot start a process for the rank: {}; {}", std::strerror(errno),
                    describe_task_limits());
    if (child > 0) {
        leave_to_the_child();
        const int status = wait_for(child);  // before `returned` is read
        return exit_code_of(status, returned);
    }
    // The second check handles a parent that exited before prctl took effect.
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        std::_Exit(static_cast<int>(ExitCode::communication));
    const int code = rank();
    returned = true;
    return code;
}

}  // namespace speedrun
