// Metrics of runs as text, for tests of records.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

namespace speedrun {

inline std::string step_line(int64_t step, double train_ms) {
    return nlohmann::ordered_json({{"event", "step"}, {"step", step}, {"loss", 2.0}, {"train_ms", train_ms}})
               .dump() +
           "\n";
}

inline std::string val_line(int64_t step, double loss, double train_ms) {
    return nlohmann::ordered_json({{"event", "val"}, {"step", step}, {"loss", loss}, {"train_ms", train_ms}})
               .dump() +
           "\n";
}

// 12 steps, validated after steps 6 and 12.
inline std::string metrics_of(double loss, double step_ms, double middle = 1.5) {
    std::string text;
    for (int64_t step = 0; step < 12; ++step) {
        text += step_line(step, step_ms * static_cast<double>(step + 1));
        if (step == 5) text += val_line(6, middle, step_ms * 6);
    }
    return text + val_line(12, loss, step_ms * 12);
}

struct MadeRun {
    double loss, step_ms, lr;
    int64_t seed, tokens_per_step;
};

// 12 steps with all fields, validated after steps 6 and 12. Losses are derived from the seed. Step times vary around
// step_ms, their mean.
inline std::string whole_metrics_of(const MadeRun& run) {
    std::mt19937 losses(static_cast<unsigned>(run.seed)), times(static_cast<unsigned>(run.step_ms * 1e4));
    std::uniform_real_distribution<double> share(0, 1);
    std::string text;
    double before = 0;
    for (int64_t step = 0; step < 12; ++step) {
        const double varied = step % 6 == 5 ? 0 : 0.3 * share(times);
        const double now = run.step_ms * (static_cast<double>(step + 1) + varied);
        const nlohmann::ordered_json line = {
            {"event", "step"},
            {"step", step},
            {"loss", 2 + share(losses)},
            {"grad_norm", 1 + share(losses)},
            {"lr", run.lr},
            {"step_ms", now - before},
            {"train_ms", now},
            {"tokens", run.tokens_per_step * (step + 1)},
            {"tokens_per_s", static_cast<double>(run.tokens_per_step) * 1e3 / (now - before)},
            {"optimizer_ms", 0.5}};
        text += line.dump() + "\n";
        if (step == 5) text += val_line(6, 1.5 + 0.001 * static_cast<double>(run.seed), now);
        before = now;
    }
    return text + val_line(12, run.loss, before);
}

}  // namespace speedrun
