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
      tokens_(options.tokens),
      quiet_(options.quiet),
      terminal_(options.num_ranks == 1 && isatty(STDOUT_FILENO) == 1),
      peak_(options.ceiling_flops_per_s) {}

std::string Progress::line(const StepMetrics& m, double flops) const {
    // Steps of different stages take different times, so the estimate is per token.
    const double left_ms =
        m.train_ms / static_cast<double>(m.tokens) * static_cast<double>(tokens_ - m.tokens);
    std::string text =
        fmt::format("step {:>{}}/{}  loss {:.4f}  {:>6.1f}k tokens/s  {:.0f} ms", m.step + 1,
                    std::to_string(steps_).size(), steps_, m.loss, m.tokens_per_s * 1e-3, m.step_ms);
    if (peak_ > 0 && m.train_ms > 0)
        text += fmt::format("  MFU {:.0f}%", 100 * flops / (m.train_ms * 1e-3) / peak_);
    return text +
           fmt::format("  trained {}  left {}", clock_text(m.train_ms * 1e-3), clock_text(left_ms * 1e-3));
}

void Progress::step(const StepMetrics& metrics, double flops) {
    if (quiet_) return;
    const auto now = std::chrono::steady_clock::now();
    const double interval = terminal_ ? 0.1 : 5.0;
    const bool first_or_last = metrics.step == 0 || metrics.step + 1 == steps_;
    if (!first_or_last && std::chrono::duration<double>(now - last_).count() < interval) return;
    last_ = now;
    if (terminal_) {
        std::printf("\r\033[K%s", line(metrics, flops).c_str());
        live_ = true;
    } else {
        std::printf("%s\n", line(metrics, flops).c_str());
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
