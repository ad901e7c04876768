#include "train/records/run_metrics.h"

#include <algorithm>
#include <optional>
#include <sstream>

#include "data/json_text.h"
#include "data/text_file.h"
#include "kernels/device/error.h"
#include "train/runlog/metrics_json.h"

namespace speedrun {

namespace {

using SortedJson = nlohmann::json;

// Adds one line; throws SortedJson::exception, JsonError or a data error. gaps: previous lines may be missing.
void add_line(const SortedJson& line, bool gaps, RunMetrics& metrics) {
    const auto event = line.at("event").get<std::string>();
    if (event != "val" && event != "step")
        throw JsonError("event '" + shown_text(event) + "', expected step or val");
    const int64_t step = value_of(line, &StepMetrics::step);
    const double train_ms = value_of(line, &StepMetrics::train_ms);
    // Steps are timed by the device and segments by the host: the two may differ by microseconds.
    if (!(train_ms >= 0)) throw JsonError(fmt::format("train_ms is {}", train_ms));
    std::optional<double> loss;  // none: a step, or a validation with a non-finite loss
    if (event == "val" && !line.at(field_of(&Validation::loss).key).is_null())
        loss = value_of(line, &Validation::loss);
    metrics.train_ms = train_ms;
    if (gaps && event == "val" && step > metrics.steps) metrics.steps = step;
    metrics.validated_at_end = event == "val" && step == metrics.steps && loss;
    if (event == "val") {
        if (step != metrics.steps) throw_data("validation at step {} after {} steps", step, metrics.steps);
        if (loss) metrics.validations.push_back({.step = step, .loss = *loss, .train_ms = train_ms});
    } else {
        if (step < metrics.steps) throw_data("step {} after step {}", step, metrics.steps - 1);
        metrics.steps = step + 1;
    }
}

RunMetrics read_lines(const std::string& text, const std::string& origin, bool gaps) {
    RunMetrics metrics;
    std::istringstream lines(text);
    int64_t number = 0;
    for (std::string line; std::getline(lines, line);) {
        ++number;
        try {
            add_line(parse_json<SortedJson>(line), gaps, metrics);
        } catch (const Error& error) {
            throw_data("{}: line {}: {}", origin, number, error.what());
        } catch (const std::exception& error) {
            if (!gaps) throw_data("{}: line {}: {}", origin, number, error.what());
            metrics.damaged.add(number);
        }
    }
    return metrics;
}

}  // namespace

RunMetrics read_metrics(const std::string& text, const std::string& origin) {
    return read_lines(text, origin, false);
}

RunMetrics read_unfinished_metrics(const std::string& text, const std::string& origin) {
    const size_t end = text.rfind('\n');
    return read_lines(end == std::string::npos ? "" : text.substr(0, end + 1), origin, true);
}

int64_t step_lines_kept(const StepLines& lines) {
    // Limit for all metrics files of a record, which must stay below 500 kB. A line takes 71 bytes compressed (1,000 steps of
    // the KJV baseline), mostly digits of losses and times.
    constexpr int64_t kMaxStepLines = 5000;
    const int64_t most = std::max<int64_t>(2, kMaxStepLines / static_cast<int64_t>(lines.num_runs));
    return std::max<int64_t>(1, (lines.steps + most - 1) / most);
}

std::string thin_metrics(const std::string& text, int64_t every) {
    if (every <= 1) return text;
    std::string kept, last;  // last: line of the latest step, if it was skipped
    std::istringstream lines(text);
    int64_t index = 0;
    for (std::string line; std::getline(lines, line);) {
        const bool is_step = line.find("\"event\":\"step\"") != std::string::npos;
        if (is_step && index++ % every != 0) {
            last = line + '\n';
            continue;
        }
        // The step before a validation is always kept.
        if (!is_step) kept += last;
        last.clear();
        kept += line + '\n';
    }
    return kept + last;
}

}  // namespace speedrun
