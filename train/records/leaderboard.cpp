#include "train/records/leaderboard.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "data/json_text.h"
#include "train/records/record_text.h"
#include "train/records/reference_rows.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

// Both sides of the factor ran alternately on this record's machine, on any hardware of the baseline's own record.
std::string predecessor_text(const Record& r, const Board& board) {
    if (!r.statistics.speedup || r.by_loss != board.by_loss) return "-";
    if (r.by_loss) return gain_text(r);
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

// Times from process start to the end of each run.
Moments wall_ms(const Record& r) {
    std::vector<double> times;
    for (const RecordRun* run : r.done_runs(kCandidate)) {
        if (run->wall_s) times.push_back(*run->wall_s * 1e3);
    }
    return moments_of(times);
}

bool has_wall_times(const Record& r) {
    return wall_ms(r).count > 0;
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
            {"target_loss", r.by_loss ? Json(nullptr) : Json(r.target_loss)},
            {"tokens", r.tokens ? Json(*r.tokens) : Json(nullptr)},
            {"wall_s", has_wall_times(r) ? Json(wall_ms(r).mean * 1e-3) : Json(nullptr)},
            {"train_ms", {{"mean", s.candidate.train_ms.mean}, {"std", s.candidate.train_ms.std}}},
            {"loss", {{"mean", s.candidate.loss.mean}, {"std", s.candidate.loss.std}}},
            {"loss_p", p(r.by_loss ? s.gain_test : s.loss_test)},
            {"baseline", r.baseline ? Json(r.baseline->name) : Json(nullptr)},
            {"speedup", s.speedup ? Json(*s.speedup) : Json(nullptr)},
            {"time_p", p(s.time_test)},
            {"hardware", hardware_text(r)},
            {"hardware_class", r.hardware_class.text()},
            {"replications", r.replications},
            {"git_sha", r.git_sha + (r.dirty ? "-dirty" : "")}};
}

struct BoardColumn {
    std::string head;
    std::function<std::string(const Record&)> cell;
};

std::vector<BoardColumn> columns_of(const BoardOfRecords& board) {
    const Board& of = board.board;
    const auto moments = [](const Record& r) { return r.statistics.candidate; };
    const BoardColumn seconds{"training s",
                              [=](const Record&r) { return seconds_text(moments(r).train_ms); }},
        wall{"wall s", [](const Record&r) { return seconds_text(wall_ms(r)); }},
        loss{"loss", [=](const Record&r) { return loss_text(moments(r).loss); }},
        tokens{"tokens", [](const Record&r) { return r.tokens ? fmt::format("{}", *r.tokens) : "-"; }},
        p{"p", [=](const Record&r) {
              if (!of.by_loss) return p_text(r.statistics.loss_test);
              return r.by_loss ? p_text(r.statistics.gain_test) : "-";
          }};
    std::vector<BoardColumn> columns = {{"record", [](const Record& r) { return r.name; }}};
    if (of.by_loss) columns.push_back(loss);
    columns.push_back(seconds);
    if (std::any_of(board.records.begin(), board.records.end(), has_wall_times)) columns.push_back(wall);
    columns.push_back(of.by_loss ? tokens : loss);
    const std::vector<BoardColumn> rest = {
        p,
        {"against its predecessor", [=](const Record& r) { return predecessor_text(r, of); }},
        {"date", [](const Record& r) { return r.date; }},
        {"hardware", hardware_text},
        {"commit", [](const Record& r) { return r.git_sha.substr(0, 9) + (r.dirty ? "-dirty" : ""); }},
        {"rules met", [=](const Record& r) { return rules_met_text(r, of.track_class); }}};
    columns.insert(columns.end(), rest.begin(), rest.end());
    const auto is_replicated = [](const Record& r) { return !r.replications.empty(); };
    if (std::any_of(board.records.begin(), board.records.end(), is_replicated))
        columns.push_back({"run again", replications_text});
    return columns;
}

// Counts characters, not bytes: ± has two bytes.
size_t width_of(const std::string& text) {
    return static_cast<size_t>(
        std::count_if(text.begin(), text.end(), [](unsigned char c) { return (c & 0xc0) != 0x80; }));
}

void sort_by_result(std::vector<Record>& records, bool by_loss) {
    const auto key = [=](const Record& r) {
        const SideStatistics& ours = r.statistics.candidate;
        const double mean = by_loss ? ours.loss.mean : ours.train_ms.mean;
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

// Template board of a class and one of its targets, current or past, without hardware and records.
BoardOfRecords board_for(const TrackClass& c, const PastTarget* past) {
    BoardOfRecords board{board_of(c, {}), c.rules_text(), "", {}};
    if (past) board.board.target_loss = past->target_loss;
    if (c.own_target || past)
        board.rules += fmt::format("; target {} nats per token", *board.board.target_loss);
    if (past) board.history = fmt::format("History: this target ended on {}. {}", past->until, past->reason);
    if (!c.ended.empty())
        board.history = fmt::format("History: the class ended on {}. {}", c.ended_on, c.ended);
    return board;
}

// Returns the boards of a class and target, one per hardware class.
std::vector<BoardOfRecords> boards_for(const BoardOfRecords& form, const std::vector<Record>& records,
                                       const Track& track) {
    std::vector<BoardOfRecords> boards;
    for (const Record& record : records) {
        Board here = form.board;
        here.hardware = record.hardware_class;
        const bool of_none = record.classes.empty() &&
                             track.class_of_record(record.race) == here.track_class && form.history.empty();
        if (!here.has(record) && !of_none) continue;
        const auto same = std::find_if(boards.begin(), boards.end(), [&](const BoardOfRecords& b) {
            return b.board.hardware == record.hardware_class;
        });
        if (same != boards.end()) {
            same->records.push_back(record);
            continue;
        }
        boards.push_back(form);
        boards.back().board = here;
        boards.back().records = {record};
    }
    return boards;
}

}  // namespace

std::vector<BoardOfRecords> boards_of(const std::vector<Record>& records, const Track& track) {
    std::vector<BoardOfRecords> boards;
    for (const TrackClass& c : track.classes) {
        std::vector<BoardOfRecords> of_class = boards_for(board_for(c, nullptr), records, track);
        if (of_class.empty()) of_class = {board_for(c, nullptr)};
        boards.insert(boards.end(), of_class.begin(), of_class.end());
        for (const PastTarget& past : c.history) {
            of_class = boards_for(board_for(c, &past), records, track);
            boards.insert(boards.end(), of_class.begin(), of_class.end());
        }
    }
    for (BoardOfRecords& board : boards) sort_by_result(board.records, board.board.by_loss);
    return boards;
}

std::string board_text(const BoardOfRecords& board, TableStyle style,
                       const std::vector<CountsReference>& references) {
    const bool markdown = style == TableStyle::markdown;
    const std::string mark = markdown ? "**" : "", name = board.board.track_class;
    const std::string title = fmt::format("{0}{1}{0} ({2})", mark, name, board.rules);
    const std::string history = board.history.empty() ? "" : board.history + "\n" + (markdown ? "\n" : "");
    const std::string note = reference_note(board.board.hardware, references, markdown);
    if (board.records.empty()) {
        return title + ": no record" + (board.history.empty() ? " yet" : "") + "\n" +
               (history.empty() || !markdown ? "" : "\n") + history + note;
    }
    std::string text =
        fmt::format("{}, {}\n{}", title, board.board.hardware.text(), markdown ? "\n" : "") + history;
    const std::vector<BoardColumn> columns = columns_of(board);
    std::vector<std::vector<std::string>> rows(board.records.size() + 1);
    for (const BoardColumn& column : columns) {
        rows[0].push_back(column.head);
        for (size_t i = 0; i < board.records.size(); ++i)
            rows[i + 1].push_back(column.cell(board.records[i]));
    }
    for (const CountsReference& reference : references_of(board.board.hardware, references))
        rows.push_back(reference_cells(reference, rows[0]));
    if (!markdown) return text + table_text(rows) + note;
    text += table_head(rows[0]);
    for (size_t i = 1; i < rows.size(); ++i) {
        if (i <= board.records.size()) {
            const Record& record = board.records[i - 1];
            rows[i][0] = fmt::format("[{}](records/{}/{})", record.name, record.track, record.folder_name());
        }
        text += table_row(rows[i]);
    }
    return text + note;
}

std::string records_json(const std::vector<Record>& records, const std::vector<CountsReference>& references) {
    Json rows = Json::array();
    for (const Record& record : records) rows.push_back(row_json(record));
    for (const CountsReference& r : references) rows.push_back(parse_json<Json>(reference_row_json(r)));
    return rows.dump(2) + "\n";
}

}  // namespace speedrun
