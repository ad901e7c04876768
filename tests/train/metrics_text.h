// Runs' metrics as text, for tests of records.
#pragma once

#include <nlohmann/json.hpp>
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

// 12 steps, validated after 6 and 12.
inline std::string metrics_of(double loss, double step_ms, double middle = 1.5) {
    std::string text;
    for (int64_t step = 0; step < 12; ++step) {
        text += step_line(step, step_ms * static_cast<double>(step + 1));
        if (step == 5) text += val_line(6, middle, step_ms * 6);
    }
    return text + val_line(12, loss, step_ms * 12);
}

}  // namespace speedrun
