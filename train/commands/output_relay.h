// Copies the output of a program to this process's, for programs that end when nobody reads it: mpirun ends its ranks then.
#pragma once

#include <array>
#include <atomic>
#include <thread>

namespace speedrun {

// Covers stdout and stderr where they are pipes. Terminals and files are left to the program itself.
class OutputRelay {
  public:
    // Makes a pipe for each.
    OutputRelay();
    // Copies the rest and ends.
    ~OutputRelay();
    OutputRelay(const OutputRelay&) = delete;
    OutputRelay& operator=(const OutputRelay&) = delete;

    // In the child, between fork and exec: puts the pipes in place of its stdout and stderr. Async-signal-safe.
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
