#include "train/commands/output_relay.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "kernels/device/error.h"
#include "kernels/device/start_thread.h"

namespace speedrun {

namespace {

constexpr int kPeriod = 100;  // ms

bool is_pipe(int descriptor) {
    struct stat status {};
    return fstat(descriptor, &status) == 0 && (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode));
}

// Returns early if the reader has closed the pipe: the rest is lost, and the next text is tried again.
void write_all(int descriptor, const char* text, ssize_t size) {
    while (size > 0) {
        const ssize_t written = write(descriptor, text, static_cast<size_t>(size));
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return;
        text += written;
        size -= written;
    }
}

}  // namespace

OutputRelay::OutputRelay() : pipes_{Pipe{STDOUT_FILENO}, Pipe{STDERR_FILENO}} {
    for (Pipe& pipe : pipes_) {
        if (!is_pipe(pipe.to)) continue;
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0) throw_internal("pipe: {}", std::strerror(errno));
        pipe.read = ends[0];
        pipe.write = ends[1];
    }
}

OutputRelay::~OutputRelay() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    for (const Pipe& pipe : pipes_) {
        if (pipe.read >= 0) close(pipe.read);
        if (pipe.write >= 0) close(pipe.write);
    }
}

void OutputRelay::take_place() const {
    for (const Pipe& pipe : pipes_)
        if (pipe.write >= 0) dup2(pipe.write, pipe.to);
}

void OutputRelay::start() {
    for (Pipe& pipe : pipes_) {
        if (pipe.write >= 0) close(pipe.write);
        pipe.write = -1;
    }
    thread_ = start_thread("copy of the output", [this] { run(); });
}

// A process that outlives the program may keep a pipe open: after the end, one period of silence is enough.
void OutputRelay::run() {
    std::array<pollfd, 2> requested{pollfd{pipes_[0].read, POLLIN, 0}, pollfd{pipes_[1].read, POLLIN, 0}};
    while (requested[0].fd >= 0 || requested[1].fd >= 0) {
        const bool ending = stop_;
        const int num_ready = poll(requested.data(), requested.size(), kPeriod);
        if (num_ready == 0 && ending) return;
        if (num_ready <= 0) continue;
        for (size_t i = 0; i < requested.size(); ++i) {
            if (requested[i].fd < 0 || requested[i].revents == 0) continue;
            char text[1 << 14];
            const ssize_t size = read(requested[i].fd, text, sizeof text);
            if (size > 0) write_all(pipes_[i].to, text, size);
            if (size == 0) requested[i].fd = -1;  // closed; poll ignores it
        }
    }
}

}  // namespace speedrun
