#include "train/records/run_lines.h"

#include <sstream>

#include "data/json_text.h"
#include "kernels/device/error.h"
#include "train/runlog/metrics_json.h"

namespace speedrun {

namespace {

using SortedJson = nlohmann::json;

RunLine line_from(const SortedJson& json) {
    RunLine line;
    const auto event = json.at("event").get<std::string>();
    line.is_step = event == "step";
    if (!line.is_step && event != "val") throw_data("event '{}', expected step or val", event);
    line.step = value_of(json, &StepMetrics::step);
    line.loss = value_of(json, &StepMetrics::loss);
    line.train_ms = value_of(json, &StepMetrics::train_ms);
    if (!line.is_step) return line;
    line.grad_norm = value_of(json, &StepMetrics::grad_norm);
    line.lr = value_of(json, &StepMetrics::lr);
    line.step_ms = value_of(json, &StepMetrics::step_ms);
    line.tokens = value_of(json, &StepMetrics::tokens);
    line.tokens_per_s = value_of(json, &StepMetrics::tokens_per_s);
    line.optimizer_ms = value_of(json, &StepMetrics::optimizer_ms);
    return line;
}

}  // namespace

std::vector<RunLine> read_run_lines(const std::string& text, const std::string& origin) {
    std::vector<RunLine> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) {
        const auto number = static_cast<int64_t>(lines.size()) + 1;
        try {
            lines.push_back(line_from(parse_json<SortedJson>(line)));
            lines.back().number = number;
        } catch (const std::exception& error) {
            throw_data("{}: line {}: {}", origin, number, error.what());
        }
    }
    return lines;
}

}  // namespace speedrun
