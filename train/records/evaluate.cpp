// Values derived from a record's runs: statistics, and the rules of the track that are met.
#include <algorithm>

#include "kernels/device/error.h"
#include "train/records/record.h"

namespace speedrun {

namespace {

std::vector<double> losses_of(const std::vector<const RecordRun*>& runs) {
    std::vector<double> values;
    for (const RecordRun* run : runs) values.push_back(run->loss());
    return values;
}

std::vector<double> times_of(const std::vector<const RecordRun*>& runs) {
    std::vector<double> values;
    for (const RecordRun* run : runs) values.push_back(run->train_ms);
    return values;
}

std::vector<double> wall_clocks_of(const std::vector<const RecordRun*>& runs) {
    std::vector<double> values;
    for (const RecordRun* run : runs)
        if (run->wall_s) values.push_back(*run->wall_s);
    return values;
}

SideStatistics side_statistics(const Record& record, const std::string& side) {
    const auto done = record.done_runs(side);
    const auto all = std::count_if(record.runs.begin(), record.runs.end(),
                                   [&](const RecordRun& run) { return run.side == side; });
    return {.failed = static_cast<int64_t>(all) - static_cast<int64_t>(done.size()),
            .loss = moments_of(losses_of(done)),
            .train_ms = moments_of(times_of(done)),
            .wall_s = moments_of(wall_clocks_of(done))};
}

const RecordRun* done_with_seed(const Record& record, const std::string& side, int64_t seed) {
    for (const RecordRun* run : record.done_runs(side)) {
        if (run->seed == seed) return run;
    }
    return nullptr;
}

// Tests the pairs at each validation and returns the worst result, so that it holds for all. None if there are fewer than two
// pairs, or if the runs of a pair validate at different steps.
std::optional<TestResult> margin_test(const Record& record, double margin) {
    std::vector<std::vector<double>> differences;  // (validations, pairs)
    std::vector<int64_t> steps;
    for (const RecordRun* ours : record.done_runs(kCandidate)) {
        const RecordRun* theirs = done_with_seed(record, kBaseline, ours->seed);
        if (!theirs) continue;
        if (steps.empty()) {
            for (const Validation& v : ours->validations) steps.push_back(v.step);
            differences.resize(steps.size());
        }
        if (ours->validations.size() != steps.size() || theirs->validations.size() != steps.size())
            return std::nullopt;
        for (size_t i = 0; i < steps.size(); ++i) {
            const Validation &a = ours->validations[i], &b = theirs->validations[i];
            if (a.step != steps[i] || b.step != steps[i]) return std::nullopt;
            differences[i].push_back(a.loss - b.loss);
        }
    }
    std::optional<TestResult> worst;
    for (const std::vector<double>& pairs : differences) {
        const auto test = test_equivalent(pairs, margin);
        if (!test) return std::nullopt;
        if (!worst || test->p > worst->p) worst = test;
    }
    return worst;
}

const TrackClass* race_of(const Record& record, const Track& track) {
    return track.find_class(track.class_of_record(record.race));
}

// Returns the record's own target if it was its class's target on that day, else the class's current one. 0: none.
double record_target(const Record& record, const Track& track) {
    const TrackClass* c = race_of(record, track);
    if (!c) return track.target_loss;
    return c->had_target(record.target_loss, record.date) ? record.target_loss : c->target_loss.value_or(0);
}

RuleResult data_rule(const Record& record, const Track& track) {
    std::string problem = data_problem(track, record.data);
    const auto keys = flat_keys(record.config);
    const auto found = keys.find("data.val_tokens");
    const std::string scored = found == keys.end() ? "0" : found->second;
    if (problem.empty() && scored != "0" && scored != std::to_string(track.validation_tokens))
        problem = fmt::format("{} validation tokens are scored, not {}", scored, track.validation_tokens);
    const double target = record_target(record, track);
    if (problem.empty() && record.target_loss != target)
        problem = fmt::format("target {}, the track's is {}", record.target_loss, target);
    const auto from = keys.find("model.init_from");
    if (problem.empty() && from != keys.end() && from->second != "\"\"")
        problem = fmt::format("starts from the weights in {}", from->second);
    const std::string fine =
        fmt::format("the track's shards, all {} validation tokens", track.validation_tokens) +
        (target > 0 ? fmt::format(", target {}", target) : "");
    return {"data", problem.empty(), problem.empty() ? fine : problem};
}

RuleResult runs_rule(const Record& record, const Track& track) {
    const int64_t done = record.statistics.candidate.loss.count, failed = record.statistics.candidate.failed;
    return {"runs", done >= track.rules.min_runs && failed == 0,
            fmt::format("{} runs with distinct seeds came to their end, {} wanted; {} diverged, 0 allowed",
                        done, track.rules.min_runs, failed)};
}

RuleResult loss_rule(const Record& record, const Track& track) {
    const RecordStatistics& s = record.statistics;
    if (s.candidate.loss.count == 0) return {"loss", false, "no run came to its end"};
    const double target = record_target(record, track);
    const bool below = s.candidate.loss.mean <= target;
    const std::string mean = fmt::format("mean loss {:.4f}, target {}", s.candidate.loss.mean, target);
    if (!record.systems_only) {
        const double p = s.loss_test ? s.loss_test->p : 1;
        return {"loss", below && p < track.rules.max_loss_p,
                fmt::format("{}; t-test that it is below: p = {:.2g}, less than {} wanted", mean, p,
                            track.rules.max_loss_p)};
    }
    const double p = s.margin_test ? s.margin_test->p : 1;
    return {"loss", below && p < track.rules.max_margin_p,
            fmt::format("{}; systems-only, tests that it is the baseline's within {} at every "
                        "validation: p = {:.2g}, less than {} wanted",
                        mean, track.rules.loss_margin, p, track.rules.max_margin_p)};
}

// Returns a rule if a record's runs cannot be compared with the previous record's: not met, or met if there is no previous
// record.
std::optional<RuleResult> chain_rule(const Record& record, const std::string& rule) {
    const std::string& before = record.record_before;
    if (!before.empty() && (!record.baseline || record.baseline->record != before))
        return RuleResult{rule, false,
                          fmt::format("not measured in turns with the record before it, {}", before)};
    if (!record.baseline) return RuleResult{rule, true, "the first record of its class on such hardware"};
    if (!record.statistics.speedup) return RuleResult{rule, false, "no pair of completed runs"};
    return std::nullopt;
}

RuleResult time_rule(const Record& record, const Track& track) {
    if (const auto chain = chain_rule(record, "time")) return *chain;
    const RecordStatistics& s = record.statistics;
    const double p = s.time_test ? s.time_test->p : 1;
    return {
        "time", p < track.rules.max_time_p,
        fmt::format(
            "{:.2f} s, in turns with {} of {:.2f} s; Welch's t-test that it is faster: p = {:.2g}, less than "
            "{} wanted",
            s.candidate.train_ms.mean * 1e-3, record.baseline->name, s.baseline->train_ms.mean * 1e-3, p,
            track.rules.max_time_p)};
}

// Replaces the rules `loss` and `time` in a class by loss.
RuleResult gain_rule(const Record& record, const Track& track) {
    const RecordStatistics& s = record.statistics;
    if (s.candidate.loss.count == 0) return {"loss", false, "no run came to its end"};
    if (record.systems_only)
        return {"loss", false, "systems-only leaves the losses alone, and this class compares them"};
    if (const auto chain = chain_rule(record, "loss")) return *chain;
    const double p = s.gain_test ? s.gain_test->p : 1;
    return {"loss", p < track.rules.max_time_p,
            fmt::format("{:.4f}, alternating with {} of {:.4f}; Welch's t-test that it is lower: p = {:.2g}, "
                        "less than {} wanted",
                        s.candidate.loss.mean, record.baseline->name, s.baseline->loss.mean, p,
                        track.rules.max_time_p)};
}

std::string build_text(const std::string& git_sha, bool dirty) {
    if (git_sha == "unknown") return "built from an unknown commit";
    return "built from commit " + git_sha.substr(0, 12) + (dirty ? " and changes that are in no commit" : "");
}

// A second build must have another commit and the same config.
RuleResult build_rule(const Record& record) {
    const auto is_commit = [](const std::string& sha, bool dirty) { return sha != "unknown" && !dirty; };
    RuleResult result{"build", is_commit(record.git_sha, record.dirty),
                      build_text(record.git_sha, record.dirty)};
    if (!record.baseline || !record.baseline->program) return result;
    const ProgramOfRecord& other = *record.baseline->program;
    result.why += ", the baseline " + build_text(other.git_sha, other.dirty);
    result.met = result.met && is_commit(other.git_sha, other.dirty) && other.git_sha != record.git_sha;
    if (!record.systems_only || !record.changes.empty()) {
        result.met = false;
        result.why += "; two builds are raced with one config, and systems-only";
    }
    return result;
}

ClassFacts class_facts(const Record& record) {
    ClassFacts facts{.parameters = record.parameters, .hardware = record.hardware_class};
    facts.not_dense = record.not_dense;
    facts.tokens = record.tokens;
    facts.date = record.date;
    for (const RecordRun* run : record.done_runs(kCandidate))
        facts.longest_run_ms = std::max(facts.longest_run_ms, run->train_ms);
    return facts;
}

// Checks the class that the record was made for; the record may be in other classes too.
RuleResult class_rule(const Record& record, const Track& track) {
    const TrackClass* c = track.find_class(record.race);
    if (!c)
        return {
            "class", false,
            fmt::format("track {} has no class {}; it has {}", track.name, record.race, track.class_names())};
    const std::string problem = c->problem(class_facts(record));
    const std::string counted = record.parameters ? fmt::format("; {} parameters", *record.parameters) : "";
    return {"class", problem.empty(),
            c->name + ": " + (problem.empty() ? c->rules_text() + counted : problem)};
}

}  // namespace

std::optional<RuleResult> machine_rule(const Record& record) {
    const auto watched = std::count_if(record.runs.begin(), record.runs.end(),
                                       [](const RecordRun& run) { return run.machine.has_value(); });
    if (watched == 0) return std::nullopt;
    std::string first;
    int64_t marked = 0;
    for (const RecordRun& run : record.runs) {
        if (!run.machine || run.machine->problem().empty()) continue;
        if (marked++ == 0) first = fmt::format("; run {}: {}", run.order + 1, run.machine->problem());
    }
    const int64_t most = std::max<int64_t>(1, static_cast<int64_t>(record.runs.size()) / 10);
    return RuleResult{"machine", marked <= most,
                      fmt::format("{} of {} runs are marked, {} allowed{}", marked, watched, most, first)};
}

bool Record::is_of(const std::string& track_class) const {
    return std::find(classes.begin(), classes.end(), track_class) != classes.end();
}

std::vector<const RecordRun*> Record::done_runs(const std::string& side) const {
    std::vector<const RecordRun*> found;
    for (const RecordRun& run : runs) {
        if (run.side == side && run.done()) found.push_back(&run);
    }
    return found;
}

void evaluate(Record& record, const Track& track) {
    record.changes.clear();
    if (record.baseline) {
        for (KeyDifference& d : key_differences(record.baseline->config, record.config)) {
            if (d.key != "seed") record.changes.push_back(std::move(d));
        }
    }
    const auto ours = record.done_runs(kCandidate), theirs = record.done_runs(kBaseline);
    RecordStatistics s;
    s.candidate = side_statistics(record, kCandidate);
    const TrackClass* own = race_of(record, track);
    record.by_loss = own && own->by_loss();
    if (!record.by_loss) s.loss_test = test_mean_below(losses_of(ours), record_target(record, track));
    if (record.baseline) {
        s.baseline = side_statistics(record, kBaseline);
        s.time_test = test_mean_less(times_of(ours), times_of(theirs));
        if (record.by_loss) s.gain_test = test_mean_less(losses_of(ours), losses_of(theirs));
        if (!ours.empty() && !theirs.empty())
            s.speedup = s.baseline->train_ms.mean / s.candidate.train_ms.mean;
        if (record.systems_only) s.margin_test = margin_test(record, track.rules.loss_margin);
    }
    record.statistics = s;
    record.hardware_class = hardware_class_of(record.hardware);
    record.classes.clear();
    ClassFacts facts = class_facts(record);
    facts.target_loss = record.target_loss;
    for (const TrackClass& c : track.classes) {
        if (c.problem(facts).empty()) record.classes.push_back(c.name);
    }
    record.rules = {data_rule(record, track), build_rule(record), runs_rule(record, track)};
    if (record.by_loss)
        record.rules.push_back(gain_rule(record, track));
    else
        record.rules.insert(record.rules.end(), {loss_rule(record, track), time_rule(record, track)});
    if (!record.race.empty()) record.rules.push_back(class_rule(record, track));
    if (auto rule = machine_rule(record)) record.rules.push_back(std::move(*rule));
    record.is_record =
        std::all_of(record.rules.begin(), record.rules.end(), [](const RuleResult& r) { return r.met; });
}

}  // namespace speedrun
