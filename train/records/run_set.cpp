#include "train/records/run_set.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "data/json_text.h"
#include "data/shard_patterns.h"
#include "data/text_file.h"
#include "kernels/device/error.h"
#include "train/records/record_folder.h"
#include "train/records/record_text.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

std::string machine_of(const Json& environment) {
    std::string text =
        environment.value("host", "") + ", " + environment.value("cpu", Json::object()).value("model", "");
    for (const Json& rank : environment.value("ranks", Json::array()))
        text += ", " + rank.value("device", "");
    return text;
}

RunSet set_of(const Record& record, const std::string& side) {
    RunSet set;
    set.name = side == kCandidate ? record.name : record.baseline->name;
    set.config = side == kCandidate ? record.config : record.baseline->config;
    set.machine = machine_of(parse_json<Json>(record.hardware));
    for (const RecordRun& run : record.runs) {
        if (run.side != side) continue;
        if (run.done())
            set.runs.push_back(run);
        else
            set.notes.push_back(fmt::format("{}: the run with seed {} diverged", set.name, run.seed));
    }
    return set;
}

std::string same_or_throw(const std::string& before, const std::string& now, const std::string& what,
                          const std::string& folder) {
    if (!before.empty() && before != now)
        throw_usage("{}: {} {}, but {} in the runs before it: runs of one set are made alike", folder, what,
                    now, before);
    return now;
}

void add_run(RunSet& set, const std::string& folder) {
    const auto file = [&](const char* name) { return (fs::path(folder) / name).string(); };
    Json config, environment, summary;
    RecordRun run;
    try {
        config = parse_json<Json>(read_text_file(file("config.json")));
        environment = parse_json<Json>(read_text_file(file("environment.json")));
        summary = fs::exists(file("summary.json")) ? parse_json<Json>(read_text_file(file("summary.json")))
                                                   : Json::object();
        run.seed = config.value("seed", int64_t{0});
        run.began_utc = environment.value("time_utc", "");
        run.status = summary.value(field_of(&RunSummary::status).key, "interrupted");
        if (const char* const key = field_of(&RunSummary::wall_s).key; summary.contains(key))
            run.wall_s = summary.at(key).get<double>();
    } catch (const JsonError& error) {
        throw_data("{}: {}", folder, error.what());
    } catch (const Json::exception& error) {
        throw_data("{}: {}", folder, error.what());
    }
    const RunMetrics metrics =
        read_unfinished_metrics(read_text_file(file("metrics.jsonl")), file("metrics.jsonl"));
    if (metrics.damaged.any())
        set.notes.push_back(fmt::format("{}: {}", file("metrics.jsonl"), metrics.damaged.text()));
    run.steps = metrics.steps;
    run.train_ms = metrics.train_ms;
    run.validations = metrics.validations;
    config.erase("seed");
    set.config = same_or_throw(set.config, config.dump(2), "config", folder);
    set.machine = same_or_throw(set.machine, machine_of(environment), "machine", folder);
    if (run.done() && metrics.validated_at_end)
        set.runs.push_back(run);
    else
        set.notes.push_back(fmt::format("{}: left out, its status is {}", folder, run.status));
}

std::string without_seed(const std::string& config) {
    Json json = parse_json<Json>(config);
    json.erase("seed");
    return json.dump();
}

// True if, in order of start, at most two consecutive runs are of the same set.
bool runs_alternate(const std::vector<RecordRun>& a, const std::vector<RecordRun>& b) {
    std::vector<std::tuple<std::string, int64_t, int>> order;  // ties within a second: by the second member
    for (const RecordRun& run : a) order.emplace_back(run.began_utc, run.order, 0);
    for (const RecordRun& run : b) order.emplace_back(run.began_utc, run.order, 1);
    std::sort(order.begin(), order.end());
    for (size_t i = 2; i < order.size(); ++i) {
        const auto side = [&](size_t at) { return std::get<2>(order[at]); };
        if (side(i) == side(i - 1) && side(i) == side(i - 2)) return false;
    }
    return true;
}

void warn(Comparison& c) {
    if (!c.same_machine)
        c.warnings.push_back(fmt::format(
            "not the same machine: {} / {}; times cannot be compared: `speedrun records attempt A "
            "--against B` runs the config of B again, here",
            c.a.machine, c.b.machine));
    if (!c.alternating)
        c.warnings.push_back(
            "the runs were not made in turns, so a machine that changed its speed in between counts as a "
            "difference; `speedrun records attempt A --against B` measures in turns");
    for (const RunSet* set : {&c.a, &c.b}) {
        c.warnings.insert(c.warnings.end(), set->notes.begin(), set->notes.end());
        for (size_t i = 0; i < set->runs.size(); ++i) {
            for (size_t j = 0; j < i; ++j) {
                if (set->runs[i].seed == set->runs[j].seed)
                    c.warnings.push_back(
                        fmt::format("{}: seed {} is there twice; such runs are not independent", set->name,
                                    set->runs[i].seed));
            }
        }
    }
}

Json moments_json(const Moments& m) {
    return {{"mean", m.mean}, {"std", m.std}};
}

// Moments over the runs with a wall clock, which older ones lack.
Moments wall_clock_of(const RunSet& set) {
    std::vector<double> values;
    for (const RecordRun& run : set.runs)
        if (run.wall_s) values.push_back(*run.wall_s);
    return moments_of(values);
}

std::string wall_text(const RunSet& set) {
    Moments wall = wall_clock_of(set);
    if (wall.count == 0) return "";
    wall.mean *= 1e3;  // seconds_text() expects milliseconds
    wall.std *= 1e3;
    return fmt::format(", wall clock {} s", seconds_text(wall));
}

Json side_json(const RunSet& set, const Moments& time, const Moments& loss) {
    const Moments wall = wall_clock_of(set);
    return {{"name", set.name},
            {"runs", set.runs.size()},
            {"train_ms", moments_json(time)},
            {"wall_s", wall.count > 0 ? moments_json(wall) : Json(nullptr)},
            {"loss", moments_json(loss)}};
}

Json test_json(const std::optional<TestResult>& test) {
    if (!test) return nullptr;
    return {{"t", test->t}, {"df", test->df}, {"p_two_sided", two_sided(*test)}};
}

std::string test_text(const std::optional<TestResult>& test) {
    if (!test) return "too few runs for a test";
    return fmt::format("Welch t = {:.3f}, {:.1f} degrees of freedom, two-sided p = {:.2g}", test->t, test->df,
                       two_sided(*test));
}

}  // namespace

RunSet read_run_set(const std::string& source) {
    if (is_record_folder(source)) return set_of(read_record(source), kCandidate);
    std::vector<std::string> patterns;
    std::istringstream parts(source);
    for (std::string part; std::getline(parts, part, ',');) patterns.push_back(part);
    RunSet set;
    for (const std::string& pattern : patterns) {
        std::vector<std::string> folders;
        try {
            folders = expand_globs({pattern});
        } catch (const Error&) {
            throw_usage("{}: no such record or run folder", pattern);
        }
        for (const std::string& folder : folders) {
            if (!fs::exists(fs::path(folder) / "metrics.jsonl"))
                throw_usage("{}: neither a record (record.json) nor a run folder (metrics.jsonl)", folder);
            add_run(set, folder);
        }
    }
    set.name = source;
    return set;
}

Comparison compare_run_sets(const std::string& a, const std::string& b) {
    Comparison c;
    c.a = read_run_set(a);
    c.b = read_run_set(b);
    if (is_record_folder(a) && is_record_folder(b)) {
        const Record ra = read_record(a), rb = read_record(b);
        const auto measured_against = [](const Record& one, const Record& other) {
            return one.baseline && one.track == other.track && one.baseline->record == other.folder_name();
        };
        if (measured_against(ra, rb)) {
            c.b = set_of(ra, kBaseline);
        } else if (measured_against(rb, ra)) {
            c.a = set_of(rb, kBaseline);
        }
    }
    const auto column = [](const RunSet& set, auto value) {
        std::vector<double> values;
        for (const RecordRun& run : set.runs) values.push_back(value(run));
        return values;
    };
    const auto time = [](const RecordRun& run) { return run.train_ms; };
    const auto loss = [](const RecordRun& run) { return run.loss(); };
    c.time_a = moments_of(column(c.a, time));
    c.time_b = moments_of(column(c.b, time));
    c.loss_a = moments_of(column(c.a, loss));
    c.loss_b = moments_of(column(c.b, loss));
    c.ratio = c.time_a.mean / c.time_b.mean;
    c.time_test = test_mean_less(column(c.a, time), column(c.b, time));
    c.loss_test = test_mean_less(column(c.a, loss), column(c.b, loss));
    c.differences = key_differences(without_seed(c.a.config), without_seed(c.b.config));
    c.alternating = runs_alternate(c.a.runs, c.b.runs);
    c.same_machine = c.a.machine == c.b.machine;
    warn(c);
    return c;
}

std::string comparison_text(const Comparison& c) {
    std::string text;
    for (const auto& [set, time, loss] :
         {std::tuple(&c.a, &c.time_a, &c.loss_a), std::tuple(&c.b, &c.time_b, &c.loss_b)})
        text += fmt::format("{}: {} runs, training {} s{}, loss {}\n", set->name, set->runs.size(),
                            seconds_text(*time), wall_text(*set), loss_text(*loss));
    text += fmt::format("time: ratio of means {:.4f}; {}\n", c.ratio, test_text(c.time_test));
    text += fmt::format("loss: difference of means {:+.5f}; {}\n", c.loss_a.mean - c.loss_b.mean,
                        test_text(c.loss_test));
    for (const KeyDifference& d : c.differences)
        text += fmt::format("config {}: {} / {}\n", d.key, d.before, d.after);
    if (c.differences.empty()) text += "the configs are the same\n";
    for (const std::string& warning : c.warnings) text += "warning: " + warning + "\n";
    return text;
}

std::string comparison_json(const Comparison& c) {
    Json differences = Json::array();
    for (const KeyDifference& d : c.differences)
        differences.push_back({{"key", d.key}, {"a", d.before}, {"b", d.after}});
    return Json({{"a", side_json(c.a, c.time_a, c.loss_a)},
                 {"b", side_json(c.b, c.time_b, c.loss_b)},
                 {"ratio", c.ratio},
                 {"time", test_json(c.time_test)},
                 {"loss", test_json(c.loss_test)},
                 {"in_turns", c.alternating},
                 {"same_machine", c.same_machine},
                 {"differences", differences},
                 {"warnings", c.warnings}})
               .dump(2) +
           "\n";
}

}  // namespace speedrun
