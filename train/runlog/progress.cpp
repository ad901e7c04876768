#include "train/runlog/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace speedrun {

std::string clock_text(double seconds) {
    const auto whole = static_cast<int64_t>(seconds + 0.5);
    if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
    return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

Progress::Progress(const ProgressOptions& options)
    : steps_(options.steps),
      quiet_(options.quiet),
      terminal_(options.num_ranks == 1 && isatty(STDOUT_FILENO) == 1),
      flops_per_step_(options.flops_per_step),
      ceiling_(options.ceiling_flops_per_s) {}

std::string Progress::line(const StepMetrics& m) const {
    const double mean_ms = m.train_ms / static_cast<double>(m.step + 1);
    std::string text =
        fmt::format("step {:>{}}/{}  loss {:.4f}  {:>6.1f}k tokens/s  {:.0f} ms", m.step + 1,
                    std::to_string(steps_).size(), steps_, m.loss, m.tokens_per_s * 1e-3, m.step_ms);
    if (ceiling_ > 0 && mean_ms > 0)
        text += fmt::format("  MFU {:.0f}%", 100 * flops_per_step_ / (mean_ms * 1e-3) / ceiling_);
    return text + fmt::format("  trained {}  left {}", clock_text(m.train_ms * 1e-3),
                              clock_text(mean_ms * static_cast<double>(steps_ - m.step - 1) * 1e-3));
}

void Progress::step(const StepMetrics& metrics) {
    if (quiet_) return;
    const auto now = std::chrono::steady_clock::now();
    const double interval = terminal_ ? 0.1 : 5.0;
    const bool first_or_last = metrics.step == 0 || metrics.step + 1 == steps_;
    if (!first_or_last && std::chrono::duration<double>(now - last_).count() < interval) return;
    last_ = now;
    if (terminal_) {
        std::printf("\r\033[K%s", line(metrics).c_str());
        live_ = true;
    } else {
        std::printf("%s\n", line(metrics).c_str());
    }
    std::fflush(stdout);
}

void Progress::validation(const Validation& v) {
    message(fmt::format("step {:>{}}/{}  validation loss {:.4f}  after {:.1f} s of training", v.step,
                        std::to_string(steps_).size(), steps_, v.loss, v.train_ms * 1e-3));
}

void Progress::message(const std::string& text) {
    if (quiet_) return;
    finish();
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
}

void Progress::finish() {
    if (!live_) return;
    std::printf("\r\033[K");
    std::fflush(stdout);
    live_ = false;
}

}  // namespace speedrun
