#include "tests/bench/check_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <stdexcept>

namespace speedrun::bench {

namespace {

constexpr size_t kCurvePoints = 50;
constexpr size_t kUntimedSteps = 3;  // first steps: caches of shapes, clocks and pages warm up

Json read_json(const std::string& path) {
    std::ifstream file(path);
    if (!file) throw std::runtime_error(path + " is not there");
    return Json::parse(file);
}

// Step lines of a run's metrics.jsonl.
std::vector<Json> read_steps(const std::string& path) {
    std::ifstream file(path);
    if (!file) throw std::runtime_error(path + " is not there");
    std::vector<Json> steps;
    for (std::string line; std::getline(file, line);) {
        const Json record = Json::parse(line);
        if (record.at("event") == "step") steps.push_back(record);
    }
    if (steps.empty()) throw std::runtime_error(path + ": no step was taken");
    return steps;
}

double median_of(const std::vector<Json>& steps, const char* key) {
    std::vector<double> values;
    const size_t first = steps.size() > 2 * kUntimedSteps ? kUntimedSteps : 0;
    for (size_t i = first; i < steps.size(); ++i) values.push_back(steps[i].at(key).get<double>());
    std::sort(values.begin(), values.end());
    return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

void compare_losses(const RunCheck& check, const std::vector<Json>& steps, Checked& checked) {
    const auto expected = read_json(check.losses).at("losses").get<std::vector<double>>();
    if (expected.empty() || steps.size() < expected.size()) {
        throw std::runtime_error(
            fmt::format("{} losses in {}, but {} steps", expected.size(), check.losses, steps.size()));
    }
    double largest = 0;
    size_t worst = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
        const double difference =
            std::abs(steps[i].at("loss").get<double>() - expected[i]) / std::abs(expected[i]);
        if (difference <= largest) continue;
        largest = difference;
        worst = i;
    }
    checked.figures["compared_losses"] = expected.size();
    checked.figures["largest_difference"] = largest;
    if (largest <= check.tolerance) return;
    checked.failure =
        fmt::format("the loss of step {} is {}, expected {}: {:.2g} of it apart, at most {:.2g} is allowed",
                    worst, steps[worst].at("loss").get<double>(), expected[worst], largest, check.tolerance);
}

void compare_runs(const RunCheck& check, const std::vector<Json>& steps, Checked& checked) {
    const std::vector<Json> others = read_steps(check.same_as);
    checked.figures["same_bits"] = false;
    for (size_t i = 0; i < std::max(steps.size(), others.size()); ++i) {
        const bool same = i < steps.size() && i < others.size() &&
                          steps[i].at("loss") == others[i].at("loss") &&
                          steps[i].at("grad_norm") == others[i].at("grad_norm");
        if (same) continue;
        checked.failure = fmt::format("step {} differs from that of {}", i, check.same_as);
        return;
    }
    checked.figures["same_bits"] = true;
}

void read_figures(const RunCheck& check, const Json& summary, const std::vector<Json>& steps, Json& figures) {
    const double tokens = steps.front().at("tokens").get<double>(), step_ms = median_of(steps, "step_ms");
    const double ceiling = summary.at("ceiling_flops_per_s").get<double>();
    // The summary's rate covers all steps; this one corresponds to the median step.
    const double mean_ms = summary.at("train_ms").get<double>() / summary.at("steps").get<double>();
    const double flops_per_s = summary.at("flops_per_s").get<double>() * mean_ms / step_ms;
    figures = {{"steps", summary.at("steps")},
               {"tokens_per_step", tokens},
               {"tokens_per_s", tokens / (step_ms * 1e-3)},
               {"step_ms", step_ms},
               {"step_p99_ms", summary.at("step_ms").at("p99")},
               {"optimizer_ms", median_of(steps, "optimizer_ms")},
               {"startup_ms", summary.at("startup_ms")},
               {"train_ms", summary.at("train_ms")},
               {"tflops", flops_per_s * 1e-12},
               {"product_tflops", ceiling * 1e-12},
               {"share_of_product", ceiling > 0 ? flops_per_s / ceiling : 0},
               {"memory_mib", summary.at("memory_bytes").get<double>() / (1 << 20)},
               {"first_loss", steps.front().at("loss")},
               {"last_loss", steps.back().at("loss")},
               {"val_loss", summary.at("val_loss")},
               {"time_to_target_ms", summary.at("time_to_target_ms")}};
    Json curve = Json::array();
    for (size_t i = 0; i < steps.size(); i += steps.size() / kCurvePoints + 1)
        curve.push_back(steps[i].at("loss"));
    figures["losses"] = curve;  // evenly spaced over the run
    if (check.floor_ms > 0) {
        figures["floor_ms"] = check.floor_ms;
        figures["share_of_floor"] = check.floor_ms / step_ms;
    }
}

// Notes on kernels that ran in place of the requested ones, without their time stamp.
Json read_notes(const std::string& path) {
    constexpr size_t kStamp = 24;  // characters
    Json notes = Json::array();
    std::ifstream log(path);
    for (std::string line; std::getline(log, line);)
        for (const char* word : {"cuBLASLt", "wgmma", "cuda.dependent_launch", "call by call", "NCCL"})
            if (line.size() > kStamp && line.find(word) != std::string::npos) {
                notes.push_back(line.substr(kStamp));
                break;
            }
    return notes;
}

void read_plan(const std::string& path, Json& figures) {
    std::ifstream file(path);
    const Json plan = Json::parse(file, nullptr, false);
    if (!plan.is_object()) return;
    double optimizer_ms = 0;
    for (const Json& row : plan.value("operations", Json::array()))
        for (const char* op :
             {"polar_express", "muon_", "normuon_", "gram", "adamw_", "lion_", "norm_term", "clip_"})
            if (text_of(row, "name").find(op) == 0) optimizer_ms += number_of(row, "ms");
    figures["modelled_ms"] = number_of(plan.value("step", Json::object()), "ms");
    figures["modelled_optimizer_ms"] = optimizer_ms;
}

}  // namespace

Checked check_run(const RunCheck& check) {
    Checked checked;
    try {
        const Json summary = read_json(check.folder + "/summary.json");
        if (summary.at("status") != "done")
            throw std::runtime_error("the run ended " + summary.at("status").get<std::string>());
        const std::vector<Json> steps = read_steps(check.folder + "/metrics.jsonl");
        read_figures(check, summary, steps, checked.figures);
        if (const Json notes = read_notes(check.folder + "/run.log"); !notes.empty())
            checked.figures["notes"] = notes;
        read_plan(check.plan, checked.figures);
        if (!check.losses.empty()) compare_losses(check, steps, checked);
        if (!check.same_as.empty()) compare_runs(check, steps, checked);
        if (check.must_reach_target && !summary.at("target_reached").get<bool>()) {
            checked.failure = fmt::format("validation loss {}, target {}", summary.at("val_loss").dump(),
                                          summary.at("target_loss").dump());
        }
    } catch (const std::exception& error) {
        checked.failure = error.what();
    }
    return checked;
}

Checked check_peers(const std::string& path) {
    Checked checked;
    try {
        checked.figures = read_json(path);
        if (checked.figures.at("peers").empty()) checked.failure = "nothing was timed";
        if (checked.figures.at("result") == "passed") return checked;
        checked.failure = "";
        for (const Json& failure : checked.figures.at("failures"))
            checked.failure += (checked.failure.empty() ? "" : "; ") + failure.get<std::string>();
        if (checked.failure.empty()) checked.failure = "the result is not 'passed'";
    } catch (const std::exception& error) {
        checked.failure = error.what();
    }
    return checked;
}

}  // namespace speedrun::bench
