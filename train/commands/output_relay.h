// Copies the output of a program to this process's output, for programs that end when their pipe is closed: mpirun then ends
// its ranks.
#pragma once

#include <array>
#include <atomic>
#include <thread>

namespace speedrun {

// Applies to stdout and stderr if they are pipes. Terminals and files are inherited by the program.
class OutputRelay {
  public:
    // Creates a pipe for each.
    OutputRelay();
    // Copies the remaining output and ends.
    ~OutputRelay();
    OutputRelay(const OutputRelay&) = delete;
    OutputRelay& operator=(const OutputRelay&) = delete;

    // In the child, between fork and exec: replaces its stdout and stderr by the pipes. Async-signal-safe.
    void take_place() const;
    // In the parent, after the fork.
    void start();

  private:
    struct Pipe {
        int to, read = -1, write = -1;  // descriptors; to: 1 or 2
    };
    void run();

    std::array<Pipe, 2> pipes_;
    std::atomic<bool> stop_ = false;
    std::thread thread_;
};

}  // namespace speedrun
