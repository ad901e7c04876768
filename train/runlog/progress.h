// What a person sees of a run: one live line on a terminal, a plain line every few seconds elsewhere. mpirun
// gives its ranks a terminal even where its own output is a file, so several ranks print plain lines.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "train/runlog/metrics.h"

namespace speedrun {

struct ProgressOptions {
    int64_t steps = 0;
    bool quiet = false;
    int num_ranks = 1;
    double flops_per_step = 0;  // of all ranks, as is the next
    // FLOP/s of a large product on this machine, for the share that training reaches; 0: not shown.
    double ceiling_flops_per_s = 0;
};

class Progress {
  public:
    explicit Progress(const ProgressOptions& options);

    void step(const StepMetrics& metrics);
    void validation(const Validation& validation);
    // A line of its own, kept on the screen.
    void message(const std::string& text);
    // Removes the live line.
    void finish();

  private:
    std::string line(const StepMetrics& metrics) const;

    const int64_t steps_;
    const bool quiet_, terminal_;
    const double flops_per_step_, ceiling_;
    bool live_ = false;
    std::chrono::steady_clock::time_point last_{};
};

// "1:05" or "1:02:03" of seconds.
std::string clock_text(double seconds);

}  // namespace speedrun
