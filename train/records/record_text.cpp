#include "train/records/record_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "data/json_text.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

std::string side_line(const char* who, const SideStatistics& s) {
    return table_row({who, fmt::format("{}", s.loss.count), fmt::format("{}", s.failed),
                      seconds_text(s.train_ms), loss_text(s.loss)});
}

std::string runs_table(const Record& record) {
    const bool watched = std::any_of(record.runs.begin(), record.runs.end(),
                                     [](const RecordRun& run) { return run.wall_s || run.machine; });
    std::vector<std::string> head = {"run",  "side",       "seed",       "status",
                                     "loss", "training s", "start-up s", "steps"};
    if (watched) head.insert(head.end(), {"wall clock s", "other programs"});
    std::string text = table_head(head);
    for (const RecordRun& run : record.runs) {
        std::vector<std::string> cells = {fmt::format("{}", run.order + 1),
                                          run.side,
                                          fmt::format("{}", run.seed),
                                          run.status,
                                          run.done() ? fmt::format("{:.4f}", run.loss()) : "-",
                                          fmt::format("{:.2f}", run.train_ms * 1e-3),
                                          fmt::format("{:.2f}", run.startup_ms * 1e-3),
                                          fmt::format("{}", run.steps)};
        if (watched) {
            cells.push_back(run.wall_s ? fmt::format("{:.2f}", *run.wall_s) : "-");
            cells.push_back(run.machine ? fmt::format("{:.1f}%", run.machine->others * 100) : "-");
        }
        text += table_row(cells);
    }
    for (const RecordRun& run : record.runs) {
        if (run.machine && !run.machine->problem().empty())
            text += fmt::format("\nRun {} is marked: {}.\n", run.order + 1, run.machine->problem());
    }
    if (watched)
        text +=
            "\nWall clock: from the start of the process, or of the run in a process that makes several, to its last "
            "validation, start-up and validations included.\n";
    for (const InterruptedRun& run : record.interrupted)
        text += fmt::format("\nInterrupted after {} steps and started afresh: {}, seed {}.\n", run.steps,
                            run.side, run.seed);
    return text;
}

std::string changes_table(const Record& record) {
    if (record.changes.empty()) return "";
    std::string text =
        "\nKeys of the config that differ:\n\n" + table_head({"key", record.baseline->name, record.name});
    for (const KeyDifference& d : record.changes) text += table_row({"`" + d.key + "`", d.before, d.after});
    return text;
}

}  // namespace

std::string table_row(const std::vector<std::string>& cells) {
    return fmt::format("| {} |\n", fmt::join(cells, " | "));
}

std::string table_head(const std::vector<std::string>& cells) {
    return table_row(cells) + table_row(std::vector<std::string>(cells.size(), "---"));
}

std::string seconds_text(const Moments& ms) {
    if (ms.count == 0) return "-";
    if (ms.count == 1) return fmt::format("{:.2f}", ms.mean * 1e-3);
    return fmt::format("{:.2f} ± {:.2f}", ms.mean * 1e-3, ms.std * 1e-3);
}

std::string loss_text(const Moments& loss) {
    if (loss.count == 0) return "-";
    if (loss.count == 1) return fmt::format("{:.4f}", loss.mean);
    return fmt::format("{:.4f} ± {:.4f}", loss.mean, loss.std);
}

std::string p_text(const std::optional<TestResult>& test) {
    return test ? fmt::format("{:.2g}", test->p) : "-";
}

std::string gain_text(const Record& record) {
    const double gain = record.statistics.baseline->loss.mean - record.statistics.candidate.loss.mean;
    return fmt::format("{:.4f} {} {}", std::abs(gain), gain < 0 ? "above" : "below", record.baseline->name);
}

std::string hardware_text(const Record& record) {
    if (record.hardware_class.gpus > 0) return record.hardware_class.text();
    const Json json = parse_json<Json>(record.hardware);
    const Json cpu = json.value("cpu", Json::object());
    const size_t ranks = json.value("ranks", Json::array()).size();
    const std::string isa = cpu.value("isa", "");
    return fmt::format("{} cores of {}{}{}", whole_number(cpu.value("cores", Json(0))),
                       cpu.value("model", "CPU"), isa.empty() ? "" : fmt::format(", {}", isa),
                       ranks > 1 ? fmt::format(", {} ranks", ranks) : "");
}

std::string figures_markdown(const Record& record) {
    const RecordStatistics& s = record.statistics;
    std::string text = std::string(kFiguresHeading) + "\n\n" +
                       table_head({"", "runs", "diverged", "training s", "loss, nats per token"}) +
                       side_line(record.name.c_str(), s.candidate);
    if (s.baseline) text += side_line(record.baseline->name.c_str(), *s.baseline);
    text += "\nMean ± sample standard deviation.";
    if (!record.by_loss)
        text += fmt::format(" One-sided t-test that the mean loss is below {}: p = {}.", record.target_loss,
                            p_text(s.loss_test));
    text += "\n";
    if (s.gain_test)
        text += fmt::format(
            "Mean loss of {} - this: {:.4f}, in alternating runs on one machine. Welch's one-sided t-test that "
            "this is lower: p = {}.\n",
            record.baseline->name, s.baseline->loss.mean - s.candidate.loss.mean, p_text(s.gain_test));
    if (s.speedup)
        text += fmt::format(
            "Mean time of {} / this: {:.4f}, measured in turns on one machine. Welch's one-sided t-test that "
            "this is faster: p = {}.\n",
            record.baseline->name, *s.speedup, p_text(s.time_test));
    text += fmt::format(
        "\n{}:\n\n", record.is_record ? "A record by the track's rules" : "No record by the track's rules");
    for (const RuleResult& rule : record.rules)
        text += fmt::format("- {} {}: {}\n", rule.rule, rule.met ? "met" : "NOT MET", rule.why);
    return text + "\n" + runs_table(record) + changes_table(record);
}

std::string record_readme(const Record& record) {
    return fmt::format("# {}\n\nTrack {}, {}, on {}; commit {}.\n\n{}\n\n{}", record.name, record.track,
                       record.date, hardware_text(record),
                       record.git_sha + (record.dirty ? " with changes" : ""),
                       record.what.empty() ? "(The changed keys are in the table below.)" : record.what,
                       figures_markdown(record));
}

}  // namespace speedrun
