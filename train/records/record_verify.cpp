#include "train/records/record_verify.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <set>

#include "data/dataset.h"
#include "data/text_file.h"
#include "kernels/device/error.h"
#include "train/records/gzip.h"
#include "train/records/input_checks.h"
#include "train/records/machine_checks.h"
#include "train/records/record_checks.h"
#include "train/records/record_folder.h"
#include "train/records/record_text.h"
#include "train/records/replication.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;

// Relative tolerance of statistics: compilers may order sums differently, and Boost versions may evaluate the distribution
// differently in the last digits. All else is compared as text.
constexpr double kTolerance = 1e-9;

// Returns the numbers and rule results of a text: these must not change when a later build words it differently.
std::vector<std::string> figures_in(const std::string& text) {
    static const std::regex pattern("[0-9][0-9.]*(e[-+]?[0-9]+)?|NOT MET|met:");
    std::vector<std::string> figures;
    for (std::sregex_iterator i(text.begin(), text.end(), pattern), end; i != end; ++i)
        figures.push_back(i->str());
    return figures;
}

bool same_figure(const std::string& key, const std::string& a, const std::string& b) {
    if (a == b) return true;
    if (key.ends_with(".why")) return figures_in(a) == figures_in(b);
    if (key.rfind("statistics.", 0) != 0) return false;
    char *end_a = nullptr, *end_b = nullptr;
    const double x = std::strtod(a.c_str(), &end_a), y = std::strtod(b.c_str(), &end_b);
    if (*end_a != 0 || *end_b != 0) return false;
    return std::abs(x - y) <= kTolerance * std::max(std::abs(x), std::abs(y));
}

// Returns the number of steps of a config, given by flat_keys(); below 0: unknown. Older configs lack schedule.final_steps.
double steps_of(const std::map<std::string, std::string>& keys) {
    const auto number = [&](const char* key, double otherwise) {
        const auto found = keys.find(key);
        return found == keys.end() ? otherwise : std::strtod(found->second.c_str(), nullptr);
    };
    return number("schedule.steps", -1) + number("schedule.final_steps", 0);
}

// Replaces the run's values by its metrics. Returns the lines, none if they cannot be read.
std::vector<RunLine> read_run(const fs::path& folder, const Record& record, RecordRun& run,
                              std::vector<std::string>& problems) {
    const std::string path = (folder / run.file).string();
    try {
        run.sha256 = sha256_file(path);
        const std::string text = gunzip(read_text_file(path), path);
        std::vector<RunLine> lines = read_run_lines(text, path);
        const RunMetrics metrics = read_metrics(text, path);
        run.steps = metrics.steps;
        run.train_ms = metrics.train_ms;
        const auto keys = flat_keys(run.side == kCandidate ? record.config : record.baseline->config);
        const bool done = metrics.validated_at_end && steps_of(keys) == static_cast<double>(metrics.steps);
        run.status = done ? "done" : "diverged";
        run.validations = metrics.validations;
        return lines;
    } catch (const Error& error) {
        problems.push_back(error.what());
        return {};
    }
}

void check_files(const fs::path& folder, const Record& record, std::vector<std::string>& problems) {
    std::set<std::string> known = {"record.json", "README.md"};
    for (const RecordRun& run : record.runs) {
        if (!known.insert(run.file).second) problems.push_back(run.file + ": the metrics of two runs");
    }
    for (const auto& entry : fs::directory_iterator(folder)) {
        const std::string name = entry.path().filename().string();
        if (!known.count(name) && name.ends_with(".gz"))
            problems.push_back(name + ": metrics of no run in record.json");
    }
}

void check_readme(const fs::path& folder, const Record& record, std::vector<std::string>& problems) {
    const std::string path = (folder / "README.md").string();
    if (!fs::exists(path)) return problems.push_back("README.md: missing");
    const std::string text = read_text_file(path);
    const size_t begin = text.find(kFiguresHeading);
    if (begin == std::string::npos)
        return problems.push_back(fmt::format("README.md: no '{}'", kFiguresHeading));
    const auto here = figures_in(text.substr(begin)), computed = figures_in(figures_markdown(record));
    const auto [a, b] = std::mismatch(here.begin(), here.end(), computed.begin(), computed.end());
    if (a == here.end() && b == computed.end()) return;
    problems.push_back(fmt::format("README.md: figure {} of '{}' says {}, computed again {}",
                                   a - here.begin() + 1, kFiguresHeading, a == here.end() ? "nothing" : *a,
                                   b == computed.end() ? "nothing" : *b));
}

// The record that this one was measured against must have the measured config.
void check_baseline(const fs::path& folder, const Record& record, std::vector<std::string>& problems) {
    if (!record.baseline || record.baseline->record.empty()) return;
    const fs::path there = folder.parent_path() / record.baseline->record;
    if (!is_record_folder(there.string()))
        return problems.push_back("baseline.record: there is no record " + there.string());
    const std::string path = (there / "record.json").string();
    const Record predecessor = record_from_json(read_text_file(path), path);
    for (std::string& problem : baseline_problems(record.baseline->config, predecessor.config, path))
        problems.push_back(std::move(problem));
}

// record_before must be on the board on which this record was made to lead.
void check_record_before(const fs::path& folder, const Record& record, const Track& track,
                         std::vector<std::string>& problems) {
    const fs::path track_folder = folder.parent_path();
    Board board{.track_class = track.class_of_record(record.race), .hardware = record.hardware_class};
    board.by_loss = record.by_loss;
    if (!record.by_loss) board.target_loss = record.target_loss;
    if (!record.record_before.empty()) {
        const std::string before = (track_folder / record.record_before).string();
        if (!is_record_folder(before))
            problems.push_back(fmt::format("record_before: there is no record {}", record.record_before));
        else if (const Record r = read_record(before); !board.has(r))
            problems.push_back(fmt::format(
                "record_before: {}, made on {}, is not on the board of class {} on {}", record.record_before,
                r.hardware_class.text(), board.track_class, board.hardware.text()));
        return;
    }
    for (const std::string& other : record_folders(track_folder.string())) {
        const std::string path = other + "/record.json";
        const Record older = record_from_json(read_text_file(path), path);
        if (older.date >= record.date) continue;  // the order of two records of one day is unknown
        if (const Record r = read_record(other); r.is_record && board.has(r))
            problems.push_back(fmt::format("record_before: none, but {} is older", other));
    }
}

// Reports faults that prevent a comparison, without derived values.
bool can_be_checked(const fs::path& folder, const Record& record, const Track& track,
                    std::vector<std::string>& problems) {
    if (!record.race.empty() && !track.find_class(record.race))
        problems.push_back(fmt::format("class: track {} has no class {}; it has {}", track.name, record.race,
                                       track.class_names()));
    for (const RecordRun& run : record.runs) {
        if (!fs::exists(folder / run.file))
            problems.push_back(fmt::format("{}: missing; it holds the metrics of the {}, seed {}", run.file,
                                           run.side, run.seed));
    }
    return problems.empty();
}

// A changed value that the metrics determine is reported separately: with the recomputed value, the stored hash matches.
void check_hash(const std::string& text, const std::string& computed, std::vector<std::string>& problems) {
    if (has_its_hash(text)) return;
    const auto hash_of = [](const std::string& json) { return flat_keys(json)["sha256"]; };
    if (!problems.empty() && hash_of(text) == hash_of(computed)) return;
    problems.insert(problems.begin(), "sha256: record.json was changed since it was written");
}

void check(const fs::path& folder, bool strict, RecordCheck& result) {
    const std::string path = (folder / "record.json").string();
    const std::string text = read_text_file(path);
    Record record = record_from_json(text, path);
    const Track track = read_track(folder.parent_path().string());
    if (record.track != track.name)
        result.problems.push_back(fmt::format("track: {}, the folder's is {}", record.track, track.name));
    if (folder.filename() != record.folder_name())
        result.problems.push_back("name, date: the folder should be " + record.folder_name());
    if (!can_be_checked(folder, record, track, result.problems)) return;
    std::vector<std::vector<RunLine>> lines;
    for (RecordRun& run : record.runs) lines.push_back(read_run(folder, record, run, result.problems));
    count_parameters(record, track, path);
    evaluate(record, track);
    result.classes = record.classes;
    const std::string computed = record_to_json(record);
    result.num_figures = static_cast<int64_t>(flat_keys(computed).size());
    for (const KeyDifference& d : key_differences(text, computed)) {
        if (d.key == "sha256" || same_figure(d.key, d.before, d.after)) continue;
        result.problems.push_back(
            fmt::format("{}: record.json says {}, computed again {}", d.key, d.before, d.after));
    }
    check_hash(text, computed, result.problems);
    check_files(folder, record, result.problems);
    check_readme(folder, record, result.problems);
    check_baseline(folder, record, result.problems);
    check_record_before(folder, record, track, result.problems);
    for (std::string& problem : implausible(folder.string(), record, track, lines))
        result.problems.push_back(std::move(problem));
    const auto add_all = [&](const std::vector<std::string>& problems) {
        result.problems.insert(result.problems.end(), problems.begin(), problems.end());
    };
    add_all(wall_problems(record));
    add_all(replication_problems(folder.string(), record, track));
    if (strict) add_all(strict_problems(record));
}

}  // namespace

RecordCheck verify_record(const std::string& folder, bool strict) {
    RecordCheck result{.folder = folder, .problems = {}, .classes = {}};
    try {
        fs::path path = fs::weakly_canonical(folder);
        if (!path.has_filename()) path = path.parent_path();  // "records/kjv/x/"
        check(path, strict, result);
    } catch (const std::exception& error) {
        result.problems.push_back(error.what());
    }
    return result;
}

}  // namespace speedrun
