#include "train/records/leaderboard.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "data/json_text.h"
#include "train/records/record_text.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

// Both sides of the factor were run in turns on this record's machine, whatever hardware the baseline's own record is of.
std::string predecessor_text(const Record& r) {
    if (!r.statistics.speedup) return "-";
    return fmt::format("{:.3f}x {}", *r.statistics.speedup, r.baseline->name);
}

// "2 replicated, 1 other hardware".
std::string replications_text(const Record& r) {
    std::vector<std::string> counts;
    for (const auto& [verdict, count] : r.replications)
        counts.push_back(fmt::format("{} {}", count, verdict));
    return counts.empty() ? "-" : fmt::format("{}", fmt::join(counts, ", "));
}

std::vector<std::string> unmet_rules(const Record& record) {
    std::vector<std::string> names;
    for (const RuleResult& rule : record.rules) {
        if (!rule.met) names.push_back(rule.rule);
    }
    return names;
}

std::string rules_met_text(const Record& r, const std::string& track_class) {
    if (!r.is_record) return fmt::format("no: {}", fmt::join(unmet_rules(r), ", "));
    return r.race.empty() || r.race == track_class ? "yes" : "yes, made for " + r.race;
}

Json row_json(const Record& r) {
    const RecordStatistics& s = r.statistics;
    const auto p = [](const std::optional<TestResult>& test) { return test ? Json(test->p) : Json(nullptr); };
    return {{"name", r.name},
            {"folder", r.folder_name()},
            {"track", r.track},
            {"classes", r.classes},
            {"made_for", r.race.empty() ? Json(nullptr) : Json(r.race)},
            {"parameters", r.parameters ? Json(*r.parameters) : Json(nullptr)},
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
            {"hardware_class", r.hardware_class.text()},
            {"replications", r.replications},
            {"git_sha", r.git_sha + (r.dirty ? "-dirty" : "")}};
}

std::vector<std::string> row_cells(const Record& r, const std::string& track_class) {
    return {r.name,
            seconds_text(r.statistics.candidate.train_ms),
            loss_text(r.statistics.candidate.loss),
            p_text(r.statistics.loss_test),
            predecessor_text(r),
            r.date,
            hardware_text(r),
            r.git_sha.substr(0, 9) + (r.dirty ? "-dirty" : ""),
            rules_met_text(r, track_class)};
}

// Characters, not bytes: ± has two.
size_t width_of(const std::string& text) {
    return static_cast<size_t>(
        std::count_if(text.begin(), text.end(), [](unsigned char c) { return (c & 0xc0) != 0x80; }));
}

void sort_by_time(std::vector<Record>& records) {
    const auto key = [](const Record& r) {
        const double mean = r.statistics.candidate.train_ms.mean;
        return std::pair(!r.is_record, std::isnan(mean) ? 1e300 : mean);
    };
    std::stable_sort(records.begin(), records.end(),
                     [&](const Record& a, const Record& b) { return key(a) < key(b); });
}

std::string table_text(const std::vector<std::vector<std::string>>& rows) {
    std::vector<size_t> widths(rows.front().size());
    for (const auto& row : rows) {
        for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
    }
    std::string text;
    for (const auto& row : rows) {
        for (size_t i = 0; i < row.size(); ++i)
            text += row[i] + (i + 1 < row.size() ? std::string(widths[i] + 2 - width_of(row[i]), ' ') : "\n");
    }
    return text;
}

}  // namespace

std::vector<BoardOfRecords> boards_of(const std::vector<Record>& records, const Track& track) {
    std::vector<BoardOfRecords> boards;
    for (const TrackClass& c : track.classes) {
        const size_t first = boards.size();
        for (const Record& record : records) {
            const std::string made_for = record.race.empty() ? track.classes.front().name : record.race;
            if (!record.is_of(c.name) && !(record.classes.empty() && made_for == c.name)) continue;
            const auto same = std::find_if(
                boards.begin() + static_cast<std::ptrdiff_t>(first), boards.end(),
                [&](const BoardOfRecords& b) { return b.board.hardware == record.hardware_class; });
            if (same != boards.end())
                same->records.push_back(record);
            else
                boards.push_back({{c.name, record.hardware_class}, c.rules_text(), {record}});
        }
        if (boards.size() == first) boards.push_back({{c.name, {}}, c.rules_text(), {}});
    }
    for (BoardOfRecords& board : boards) sort_by_time(board.records);
    return boards;
}

std::string board_text(const BoardOfRecords& board, TableStyle style) {
    const bool markdown = style == TableStyle::markdown;
    const std::string mark = markdown ? "**" : "", name = board.board.track_class;
    const std::string title = fmt::format("{0}{1}{0} ({2})", mark, name, board.rules);
    if (board.records.empty()) return title + ": no record yet\n";
    const std::string head_line =
        fmt::format("{}, {}\n{}", title, board.board.hardware.text(), markdown ? "\n" : "");
    const std::vector<std::string> head = {
        "record", "training s", "loss",   "p",        "against its predecessor",
        "date",   "hardware",   "commit", "rules met"};
    std::vector<std::vector<std::string>> rows = {head};
    for (const Record& record : board.records) rows.push_back(row_cells(record, name));
    const auto has_replications = [](const Record& record) { return !record.replications.empty(); };
    if (std::any_of(board.records.begin(), board.records.end(), has_replications)) {
        rows.front().emplace_back("run again");
        for (size_t i = 1; i < rows.size(); ++i) rows[i].push_back(replications_text(board.records[i - 1]));
    }
    if (!markdown) return head_line + table_text(rows);
    std::string text = head_line + table_head(rows.front());
    for (size_t i = 1; i < rows.size(); ++i) {
        const Record& record = board.records[i - 1];
        rows[i][0] = fmt::format("[{}](records/{}/{})", record.name, record.track, record.folder_name());
        text += table_row(rows[i]);
    }
    return text;
}

std::string records_json(const std::vector<Record>& records) {
    Json rows = Json::array();
    for (const Record& record : records) rows.push_back(row_json(record));
    return rows.dump(2) + "\n";
}

}  // namespace speedrun
