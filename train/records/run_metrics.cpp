#include "train/records/run_metrics.h"

#include <sstream>

#include "data/json_text.h"
#include "kernels/device/error.h"
#include "train/runlog/metrics_json.h"

namespace speedrun {

namespace {

using SortedJson = nlohmann::json;

// Adds one line; throws SortedJson::exception, JsonError or a data error.
void add_line(const SortedJson& line, RunMetrics& metrics) {
    const auto event = line.at("event").get<std::string>();
    const int64_t step = value_of(line, &StepMetrics::step);
    const double train_ms = value_of(line, &StepMetrics::train_ms);
    // Steps are timed by the device and segments by the host: against each other they may differ by
    // microseconds.
    if (!(train_ms >= 0)) throw_data("train_ms is {}", train_ms);
    metrics.train_ms = train_ms;
    metrics.validated_at_end = event == "val" && step == metrics.steps;
    if (event == "val") {
        if (step != metrics.steps) throw_data("validation at step {} after {} steps", step, metrics.steps);
        metrics.validations.push_back(
            {.step = step, .loss = value_of(line, &Validation::loss), .train_ms = train_ms});
    } else if (event == "step") {
        if (step < metrics.steps) throw_data("step {} after step {}", step, metrics.steps - 1);
        metrics.steps = step + 1;
    } else {
        throw_data("event '{}', expected step or val", event);
    }
}

}  // namespace

RunMetrics read_metrics(const std::string& text, const std::string& origin) {
    RunMetrics metrics;
    std::istringstream lines(text);
    int64_t number = 0;
    for (std::string line; std::getline(lines, line);) {
        ++number;
        try {
            add_line(parse_json<SortedJson>(line), metrics);
        } catch (const std::exception& error) {
            throw_data("{}: line {}: {}", origin, number, error.what());
        }
    }
    return metrics;
}

RunMetrics read_unfinished_metrics(const std::string& text, const std::string& origin) {
    const size_t end = text.rfind('\n');
    return read_metrics(end == std::string::npos ? "" : text.substr(0, end + 1), origin);
}

std::string thin_metrics(const std::string& text, int64_t every) {
    if (every <= 1) return text;
    std::string kept, last;  // last: the latest step's line, if it was not kept
    std::istringstream lines(text);
    int64_t index = 0;
    for (std::string line; std::getline(lines, line);) {
        const bool is_step = line.find("\"event\":\"step\"") != std::string::npos;
        if (is_step && index++ % every != 0) {
            last = line + '\n';
            continue;
        }
        // Before a validation stands the step that it is of.
        if (!is_step) kept += last;
        last.clear();
        kept += line + '\n';
    }
    return kept + last;
}

}  // namespace speedrun
