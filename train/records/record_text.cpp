#include "train/records/record_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "data/json_text.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

std::string table_row(const std::vector<std::string>& cells) {
    return fmt::format("| {} |\n", fmt::join(cells, " | "));
}

std::string table_head(const std::vector<std::string>& cells) {
    return table_row(cells) + table_row(std::vector<std::string>(cells.size(), "---"));
}

std::string side_line(const char* who, const SideStatistics& s) {
    return table_row({who, fmt::format("{}", s.loss.count), fmt::format("{}", s.failed),
                      seconds_text(s.train_ms), loss_text(s.loss)});
}

std::string runs_table(const Record& record) {
    std::string text =
        table_head({"run", "side", "seed", "status", "loss", "training s", "start-up s", "steps"});
    for (const RecordRun& run : record.runs) {
        text += table_row({fmt::format("{}", run.order + 1), run.side, fmt::format("{}", run.seed),
                           run.status, run.done() ? fmt::format("{:.4f}", run.loss()) : "-",
                           fmt::format("{:.2f}", run.train_ms * 1e-3),
                           fmt::format("{:.2f}", run.startup_ms * 1e-3), fmt::format("{}", run.steps)});
    }
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

std::string predecessor_text(const Record& r) {
    if (!r.statistics.speedup) return "-";
    return fmt::format("{:.3f}x {}", *r.statistics.speedup, r.baseline->name);
}

std::vector<std::string> unmet_rules(const Record& record) {
    std::vector<std::string> names;
    for (const RuleResult& rule : record.rules) {
        if (!rule.met) names.push_back(rule.rule);
    }
    return names;
}

Json row_json(const Record& r) {
    const RecordStatistics& s = r.statistics;
    const auto p = [](const std::optional<TestResult>& test) { return test ? Json(test->p) : Json(nullptr); };
    return {{"name", r.name},
            {"folder", r.folder_name()},
            {"track", r.track},
            {"date", r.date},
            {"is_record", r.is_record},
            {"unmet_rules", unmet_rules(r)},
            {"runs", s.candidate.loss.count},
            {"train_ms", {{"mean", s.candidate.train_ms.mean}, {"std", s.candidate.train_ms.std}}},
            {"loss", {{"mean", s.candidate.loss.mean}, {"std", s.candidate.loss.std}}},
            {"loss_p", p(s.loss_test)},
            {"baseline", r.baseline ? Json(r.baseline->name) : Json(nullptr)},
            {"speedup", s.speedup ? Json(*s.speedup) : Json(nullptr)},
            {"time_p", p(s.time_test)},
            {"hardware", hardware_text(r)},
            {"git_sha", r.git_sha + (r.dirty ? "-dirty" : "")}};
}

std::vector<std::string> row_cells(const Record& r) {
    return {r.name,
            seconds_text(r.statistics.candidate.train_ms),
            loss_text(r.statistics.candidate.loss),
            p_text(r.statistics.loss_test),
            predecessor_text(r),
            r.date,
            hardware_text(r),
            r.git_sha.substr(0, 9) + (r.dirty ? "-dirty" : ""),
            r.is_record ? "yes" : fmt::format("no: {}", fmt::join(unmet_rules(r), ", "))};
}

// Characters, not bytes: ± has two.
size_t width_of(const std::string& text) {
    return static_cast<size_t>(
        std::count_if(text.begin(), text.end(), [](unsigned char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

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

std::string hardware_text(const Record& record) {
    const Json json = parse_json<Json>(record.hardware);
    const Json gpus = json.value("gpus", Json::array());
    if (!gpus.empty()) return fmt::format("{} x {}", gpus.size(), gpus.front().value("name", "GPU"));
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
    text += fmt::format(
        "\nMean ± sample standard deviation. One-sided t-test that the mean loss is below {}: p = {}.\n",
        record.target_loss, p_text(s.loss_test));
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
                       record.what.empty() ? "(What changed is in the table of keys below.)" : record.what,
                       figures_markdown(record));
}

void sort_leaderboard(std::vector<Record>& records) {
    const auto key = [](const Record& r) {
        const double mean = r.statistics.candidate.train_ms.mean;
        return std::pair(!r.is_record, std::isnan(mean) ? 1e300 : mean);
    };
    std::stable_sort(records.begin(), records.end(),
                     [&](const Record& a, const Record& b) { return key(a) < key(b); });
}

std::string leaderboard(const std::vector<Record>& records, TableStyle style) {
    if (style == TableStyle::json) {
        Json rows = Json::array();
        for (const Record& record : records) rows.push_back(row_json(record));
        return rows.dump(2) + "\n";
    }
    const std::vector<std::string> head = {
        "record", "training s", "loss",   "p",        "against its predecessor",
        "date",   "hardware",   "commit", "rules met"};
    std::vector<std::vector<std::string>> rows = {head};
    for (const Record& record : records) rows.push_back(row_cells(record));
    std::string text;
    if (style == TableStyle::markdown) {
        text = table_head(head);
        for (size_t i = 1; i < rows.size(); ++i) {
            rows[i][0] = fmt::format("[{}]({})", records[i - 1].name,
                                     "records/" + records[i - 1].track + "/" + records[i - 1].folder_name());
            text += table_row(rows[i]);
        }
        return text;
    }
    std::vector<size_t> widths(head.size());
    for (const auto& row : rows) {
        for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
    }
    for (const auto& row : rows) {
        for (size_t i = 0; i < row.size(); ++i)
            text += row[i] + (i + 1 < row.size() ? std::string(widths[i] + 2 - width_of(row[i]), ' ') : "\n");
    }
    return text;
}

}  // namespace speedrun
