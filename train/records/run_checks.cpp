#include "train/records/run_checks.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "train/config/config_json.h"
#include "train/config/lr_schedule.h"

namespace speedrun {

namespace {

// Milliseconds. GPU events have a resolution of 0.5 us in f32, so a clock of minutes is exact to hundredths.
constexpr double kStepClockError = 0.05;
// Milliseconds from the last step's end to the host's clock at a validation: at most 6 in the records of 2026.
constexpr double kMaxDrain = 100;
constexpr double kRateError = 1e-6;
// Number of lines below which equal values may be chance.
constexpr int64_t kFewLines = 8;

// Standard errors by which the mean of the last steps' losses may differ from the loss over all tokens.
constexpr double kSigmas = 3.5;

struct Expected {
    bool is_step;
    int64_t step;
};

// Returns the lines of a run of `steps` steps, before thinning.
std::vector<Expected> all_lines(int64_t steps, const EvalConfig& eval, bool done) {
    std::vector<Expected> lines;
    for (int64_t step = 0; step < steps; ++step) {
        if (step > 0 && eval.every > 0 && step % eval.every == 0) lines.push_back({false, step});
        lines.push_back({true, step});
    }
    if (done) lines.push_back({false, steps});
    return lines;
}

std::vector<Expected> thinned(const std::vector<Expected>& lines, int64_t every) {
    std::vector<Expected> kept;
    for (size_t i = 0; i < lines.size(); ++i) {
        const bool before_validation = i + 1 == lines.size() || !lines[i + 1].is_step;
        if (!lines[i].is_step || before_validation || lines[i].step % every == 0) kept.push_back(lines[i]);
    }
    return kept;
}

std::string name_of(bool is_step, int64_t step) {
    return is_step ? fmt::format("step {}", step) : fmt::format("the validation after {} steps", step);
}

double mean_of(const std::vector<double>& values, size_t begin, size_t end) {
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += values[i];
    return sum / static_cast<double>(end - begin);
}

std::vector<double> figures_of(const std::vector<RunLine>& lines, double RunLine::*member) {
    std::vector<double> values;
    for (const RunLine& line : lines) {
        if (line.is_step) values.push_back(line.*member);
    }
    return values;
}

// Returns the share of values equal to the median within 1e-6: values may have been rounded when copied.
double share_of_median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const double median = values[values.size() / 2], error = 1e-6 * std::abs(median);
    const auto alike = std::count_if(values.begin(), values.end(),
                                     [&](double value) { return std::abs(value - median) <= error; });
    return static_cast<double>(alike) / static_cast<double>(values.size());
}

// Returns the share of steps in which the values of two runs differ by a common factor or offset.
double share_repeated(const std::vector<double>& a, const std::vector<double>& b) {
    const size_t size = std::min(a.size(), b.size());
    if (size < 3) return size > 0 && std::equal(a.begin(), a.end(), b.begin(), b.end()) ? 1 : 0;
    std::vector<double> factors(size), differences(size);
    for (size_t i = 0; i < size; ++i) {
        factors[i] = a[i] / b[i];
        differences[i] = 1 + a[i] - b[i];  // offset by 1: 0 has no relative error
    }
    return std::max(share_of_median(factors), share_of_median(differences));
}

}  // namespace

std::string lines_problem(const std::vector<RunLine>& lines, const Config& config, int64_t every, bool done) {
    if (every < 1) return fmt::format("metrics.every is {}, expected 1 or more", every);
    int64_t steps = config.schedule.total_steps();
    if (!done) {
        steps = 0;
        for (const RunLine& line : lines) steps = std::max(steps, line.is_step ? line.step + 1 : line.step);
    }
    const std::vector<Expected> expected = thinned(all_lines(steps, config.eval, done), every);
    for (size_t i = 0; i < std::max(lines.size(), expected.size()); ++i) {
        if (i >= lines.size())
            return fmt::format("ends after line {}, expected {}", i,
                               name_of(expected[i].is_step, expected[i].step));
        const RunLine& line = lines[i];
        const std::string found = name_of(line.is_step, line.step);
        // A run may diverge directly after a validation.
        if (i >= expected.size() && !done && i + 1 == lines.size() && !line.is_step && line.step == steps)
            break;
        if (i >= expected.size()) return fmt::format("line {} is of {}, expected none", line.number, found);
        if (line.is_step != expected[i].is_step || line.step != expected[i].step)
            return fmt::format("line {} is of {}, expected {}", line.number, found,
                               name_of(expected[i].is_step, expected[i].step));
    }
    return "";
}

std::string values_problem(const std::vector<RunLine>& lines) {
    const auto bad = [](double value) { return !std::isfinite(value) || value <= 0; };
    for (const RunLine& line : lines) {
        if (bad(line.loss)) return fmt::format("line {}: loss is {}", line.number, line.loss);
        if (bad(line.train_ms)) return fmt::format("line {}: train_ms is {}", line.number, line.train_ms);
        if (!line.is_step) continue;
        if (bad(line.step_ms)) return fmt::format("line {}: step_ms is {}", line.number, line.step_ms);
        if (!std::isfinite(line.grad_norm) || line.grad_norm < 0)
            return fmt::format("line {}: grad_norm is {}", line.number, line.grad_norm);
        if (line.optimizer_ms > line.step_ms * 1.01 + kStepClockError)
            return fmt::format("line {}: optimizer_ms is {}, longer than the step of {} ms", line.number,
                               line.optimizer_ms, line.step_ms);
    }
    return "";
}

std::string times_problem(const std::vector<RunLine>& lines) {
    RunLine before;
    double longest = 0, sum = 0;
    int64_t next_step = 0, num_lines = 0;
    for (const RunLine& line : lines) {
        const double passed = line.train_ms - before.train_ms, error = kStepClockError + 1e-6 * line.train_ms;
        if (line.is_step ? passed <= 0 : passed < -error)
            return fmt::format("line {}: train_ms is {}, {} in the line before", line.number, line.train_ms,
                               before.train_ms);
        if (!line.is_step) {
            if (passed > longest + kMaxDrain)
                return fmt::format("line {}: train_ms grows by {:.3f} ms during a validation", line.number,
                                   passed);
        } else {
            const double difference = passed - line.step_ms;
            // Steps without lines may be in between.
            if (difference < -error || (line.step == next_step && difference > error))
                return fmt::format("line {}: train_ms grows by {:.3f} ms in step {}, step_ms is {}",
                                   line.number, passed, line.step, line.step_ms);
            longest = std::max(longest, line.step_ms);
            sum += line.step_ms;
            ++num_lines;
            next_step = line.step + 1;
        }
        before = line;
    }
    const std::vector<double> times = figures_of(lines, &RunLine::step_ms);
    if (num_lines >= kFewLines && share_of_median(times) > 0.5)
        return fmt::format("more than half of the steps have one step_ms, {}", times[times.size() / 2]);
    if (num_lines == next_step || num_lines < kFewLines) return "";
    // With optimizers that step every other step, one line in two differs, by a factor below 2.
    const double mean = before.train_ms / static_cast<double>(next_step),
                 kept = sum / static_cast<double>(num_lines);
    if (mean > 2 * kept || kept > 2 * mean)
        return fmt::format("steps take {:.3f} ms by train_ms, {:.3f} ms by step_ms", mean, kept);
    return "";
}

std::string schedule_problem(const std::vector<RunLine>& lines, const Config& config) {
    const auto differs = [](double a, double b) { return !(std::abs(a - b) <= kRateError * std::abs(b)); };
    const double base = config.optimizers.groups.front().lr;
    for (const RunLine& line : lines) {
        if (!line.is_step) continue;
        const double lr = base * learning_rate_factor(config.schedule, line.step);
        if (differs(line.lr, lr))
            return fmt::format("line {}: lr is {}, the config's at step {} is {}", line.number, line.lr,
                               line.step, lr);
        const int64_t tokens = config.tokens_before(line.step + 1);
        if (line.tokens != tokens)
            return fmt::format("line {}: tokens is {}, the config's after step {} is {}", line.number,
                               line.tokens, line.step, tokens);
        const double rate =
            static_cast<double>(tokens - config.tokens_before(line.step)) / (line.step_ms * 1e-3);
        if (differs(line.tokens_per_s, rate))
            return fmt::format("line {}: tokens_per_s is {}, {} by step_ms and the config", line.number,
                               line.tokens_per_s, rate);
    }
    return "";
}

bool validates_as_it_trains(const Config& config) {
    return config.data.rows == RowKind::stream &&
           config_to_json(config.in_last_stage()) == config_to_json(config.in_validation());
}

std::string last_losses_problem(const std::vector<const std::vector<RunLine>*>& runs, const Config& config) {
    const Config training = config.in_last_stage(), validation = config.in_validation();
    if (training.model.parts.loss.weights != validation.model.parts.loss.weights) return "";
    // Longer rows, wider windows and other document cuts make a validation easier.
    const double max_easier = validates_as_it_trains(config) ? 0.02 : 0.3;
    double expected = 0, trend = 0, found = 0, variance = 0, num_runs = 0;
    for (const std::vector<RunLine>* lines : runs) {
        const std::vector<double> losses = figures_of(*lines, &RunLine::loss);
        const size_t count = std::min<size_t>(20, losses.size() / 7), begin = losses.size() - count;
        if (static_cast<int64_t>(count) < kFewLines || lines->back().is_step) continue;
        const double mean = mean_of(losses, begin, losses.size());
        for (size_t i = begin; i < losses.size(); ++i)
            variance += (losses[i] - mean) * (losses[i] - mean) / static_cast<double>(count * (count - 1));
        // Losses decrease by this much from the mean to the end.
        trend +=
            mean_of(losses, begin, begin + count / 2) - mean_of(losses, begin + count / 2, losses.size());
        expected += mean;
        found += lines->back().loss;
        ++num_runs;
    }
    if (num_runs == 0) return "";
    const double least =
        (expected - std::max(0.0, trend)) / num_runs - kSigmas * std::sqrt(variance) / num_runs - max_easier;
    if (found / num_runs >= least) return "";
    return fmt::format(
        "validation loss {:.4f}, the losses of the steps before it, {:.4f}, allow {:.4f} or more",
        found / num_runs, expected / num_runs, least);
}

std::string copy_problem(const std::vector<RunLine>& lines, const std::vector<RunLine>& others,
                         bool may_share_losses) {
    if (share_repeated(figures_of(lines, &RunLine::step_ms), figures_of(others, &RunLine::step_ms)) > 0.5)
        return "more than half of the steps repeat the other's step_ms";
    if (!may_share_losses &&
        share_repeated(figures_of(lines, &RunLine::loss), figures_of(others, &RunLine::loss)) > 0.5)
        return "more than half of the steps repeat the other's losses";
    if (may_share_losses || lines.empty() || others.empty()) return "";
    if (!lines.back().is_step && !others.back().is_step && lines.back().loss == others.back().loss)
        return fmt::format("both have the validation loss {}", lines.back().loss);
    return "";
}

}  // namespace speedrun
