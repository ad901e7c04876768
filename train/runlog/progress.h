// Progress output of a run: one live line on a terminal, otherwise a plain line every few seconds. mpirun gives its ranks a
// terminal even if its own output is a file, so runs of several ranks print plain lines.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "train/runlog/metrics.h"

namespace speedrun {

struct ProgressOptions {
    int64_t steps = 0;
    int64_t tokens = 0;  // total of all steps
    bool quiet = false;
    int num_ranks = 1;
    // FLOP/s of a large matmul on the machines of all ranks, the reference for utilisation; 0: not shown.
    double ceiling_flops_per_s = 0;
};

class Progress {
  public:
    explicit Progress(const ProgressOptions& options);

    // flops: sum over all ranks, up to the end of this step.
    void step(const StepMetrics& metrics, double flops);
    void validation(const Validation& validation);
    // Prints a separate line, which stays on the screen.
    void message(const std::string& text);
    // Removes the live line.
    void finish();

  private:
    std::string line(const StepMetrics& metrics, double flops) const;

    const int64_t steps_, tokens_;
    const bool quiet_, terminal_;
    const double peak_;
    bool live_ = false;
    std::chrono::steady_clock::time_point last_{};
};

// Formats seconds as "1:05" or "1:02:03".
std::string clock_text(double seconds);

}  // namespace speedrun
