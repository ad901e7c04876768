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
    int64_t tokens = 0;  // in all of them
    bool quiet = false;
    int num_ranks = 1;
    // FLOP/s of a large product on the machines of all ranks, for the share that training reaches; 0: not shown.
    double ceiling_flops_per_s = 0;
};

class Progress {
  public:
    explicit Progress(const ProgressOptions& options);

    // flops: of all ranks, up to the end of this step.
    void step(const StepMetrics& metrics, double flops);
    void validation(const Validation& validation);
    // A line of its own, kept on the screen.
    void message(const std::string& text);
    // Removes the live line.
    void finish();

  private:
    std::string line(const StepMetrics& metrics, double flops) const;

    const int64_t steps_, tokens_;
    const bool quiet_, terminal_;
    const double ceiling_;
    bool live_ = false;
    std::chrono::steady_clock::time_point last_{};
};

// "1:05" or "1:02:03" of seconds.
std::string clock_text(double seconds);

}  // namespace speedrun
