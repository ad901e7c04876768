#include "train/records/replication.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "data/durable_file.h"
#include "data/json_text.h"
#include "data/sha256.h"
#include "data/text_file.h"
#include "kernels/device/error.h"
#include "train/records/machine_checks.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;
using ReplicationJson = nlohmann::ordered_json;

const RuleResult* rule_named(const Record& record, const std::string& name) {
    for (const RuleResult& rule : record.rules)
        if (rule.rule == name) return &rule;
    return nullptr;
}

std::vector<fs::path> files_in(const std::string& record_folder) {
    std::vector<fs::path> files;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(fs::path(record_folder) / "replications", error))
        if (entry.path().extension() == ".json") files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    return files;
}

std::string ratio_text(const Replication& r, const Record& record) {
    return fmt::format("{:.3f} times as fast here, {:.3f} in the record; test that it is less: p = {:.2g}",
                       *r.attempt.statistics.speedup, *record.statistics.speedup, r.ratio_test->p);
}

void judge_times(Replication& r, const Record& record, const Track& track) {
    if (!record.statistics.speedup) {
        r.verdict = kReplicated;
        return r.reasons.push_back("time: the record has no baseline, so its time is not judged");
    }
    const SideStatistics &ours = r.attempt.statistics.candidate, &theirs = record.statistics.candidate;
    r.ratio_test = test_ratio_less({r.attempt.statistics.baseline->train_ms, ours.train_ms},
                                   {record.statistics.baseline->train_ms, theirs.train_ms});
    if (!r.ratio_test) {
        r.verdict = kNotReplicated;
        return r.reasons.push_back("time: two runs of each side are needed at least");
    }
    const bool below = r.ratio_test->p < track.rules.max_time_p || *r.attempt.statistics.speedup <= 1;
    r.verdict = below ? kNotReplicated : kReplicated;
    r.reasons.push_back("time: " + ratio_text(r, record));
}

std::string hash_of_text(const std::string& text) {
    Sha256 hash;
    hash.update(text.data(), text.size());
    return hash.hex();
}

bool same_value(const std::string& a, const std::string& b) {
    if (a == b) return true;
    char *end_a = nullptr, *end_b = nullptr;
    const double x = std::strtod(a.c_str(), &end_a), y = std::strtod(b.c_str(), &end_b);
    return *end_a == 0 && *end_b == 0 && std::abs(x - y) <= 1e-9 * std::max(std::abs(x), std::abs(y));
}

void check_configs(const std::string& name, std::vector<std::string>& problems, const std::string& here,
                   const std::string& recorded) {
    for (const KeyDifference& d : key_differences(recorded, here))
        if (d.key != "seed")
            problems.push_back(fmt::format("{}.{}: {}, the record's is {}", name, d.key, d.after, d.before));
}

std::vector<std::string> problems_of(const std::string& text, const std::string& record_folder,
                                     const Record& record, const Track& track) {
    Replication r = replication_from_json(text, "replication");
    std::vector<std::string> problems;
    if (!has_its_hash(text)) problems.push_back("sha256: changed since it was written");
    if (r.replicates != record_folder)
        problems.push_back(fmt::format("replicates: {}, the folder is {}", r.replicates, record_folder));
    r.attempt.parameters = record.parameters;
    evaluate(r.attempt, track);
    judge(r, record, track);
    for (const KeyDifference& d : key_differences(text, replication_to_json(r))) {
        if (d.key.ends_with("sha256") || d.key.ends_with(".why") || same_value(d.before, d.after)) continue;
        problems.push_back(fmt::format("{}: {}, computed again {}", d.key, d.before, d.after));
    }
    check_configs("attempt.config", problems, r.attempt.config, record.config);
    if (record.baseline.has_value() != r.attempt.baseline.has_value())
        problems.push_back("attempt.baseline: the record has one, or this has one, but not both");
    else if (record.baseline)
        check_configs("attempt.baseline.config", problems, r.attempt.baseline->config,
                      record.baseline->config);
    if (r.attempt.git_sha != record.git_sha)
        problems.push_back(
            fmt::format("attempt.git_sha: {}, the record's is {}", r.attempt.git_sha, record.git_sha));
    if (r.attempt.date < record.date)
        problems.push_back(fmt::format("attempt.date: {}, the record is of {}", r.attempt.date, record.date));
    std::set<int64_t> seeds;
    for (const RecordRun& run : record.runs) seeds.insert(run.seed);
    for (const RecordRun& run : r.attempt.runs)
        if (seeds.contains(run.seed))
            problems.push_back(fmt::format("attempt.runs: seed {} is one of the record's", run.seed));
    for (const std::string& problem : wall_problems(r.attempt)) problems.push_back("attempt." + problem);
    return problems;
}

}  // namespace

void judge(Replication& r, const Record& record, const Track& track) {
    r.reasons.clear();
    r.ratio_test.reset();
    const int64_t failed = r.attempt.statistics.candidate.failed;
    if (failed > 0) r.reasons.push_back(fmt::format("runs: {} diverged", failed));
    const RuleResult* const loss = rule_named(r.attempt, "loss");
    const bool loss_met = loss && loss->met;
    r.reasons.push_back("loss: " + (loss ? loss->why : "not judged"));
    const RuleResult* const data = rule_named(r.attempt, "data");
    if (data && !data->met) r.reasons.push_back("data: " + data->why);
    if (failed > 0 || !loss_met || (data && !data->met)) {
        r.verdict = kNotReplicated;
        return;
    }
    const HardwareClass &here = r.attempt.hardware_class, &there = record.hardware_class;
    if (!(here == there)) {
        r.verdict = kOtherHardware;
        return r.reasons.push_back(
            fmt::format("time: not judged, made on {}, the record on {}", here.text(), there.text()));
    }
    if (const RuleResult* const machine = rule_named(r.attempt, "machine"); machine && !machine->met) {
        r.verdict = kBusyMachine;
        return r.reasons.push_back("time: not judged, " + machine->why);
    }
    judge_times(r, record, track);
}

std::string replication_to_json(const Replication& r) {
    ReplicationJson json = {{"schema", 1},
                            {"replicates", r.replicates},
                            {"verdict", r.verdict},
                            {"reasons", r.reasons},
                            {"factor_below_record", nullptr},
                            {"attempt", parse_json<ReplicationJson>(record_to_json(r.attempt))}};
    if (r.ratio_test)
        json["factor_below_record"] = {
            {"t", r.ratio_test->t}, {"df", r.ratio_test->df}, {"p", r.ratio_test->p}};
    json["sha256"] = hash_of_text(json.dump(2));
    return json.dump(2) + "\n";
}

Replication replication_from_json(const std::string& text, const std::string& origin) {
    try {
        const auto json = parse_json<ReplicationJson>(text);
        if (const auto schema = whole_number(json.at("schema")); schema != 1)
            throw_data("schema {}, this build knows 1", schema);
        Replication r;
        r.replicates = json.at("replicates").get<std::string>();
        r.verdict = json.at("verdict").get<std::string>();
        for (const char* known : {kReplicated, kNotReplicated, kOtherHardware, kBusyMachine})
            if (r.verdict == known) r.reasons = json.at("reasons").get<std::vector<std::string>>();
        if (r.reasons.empty()) throw_data("a verdict '{}'", shown_text(r.verdict));
        r.attempt = record_from_json(json.at("attempt").dump(2), "attempt");
        return r;
    } catch (const std::exception& error) {
        throw_data("{}: {}", origin, error.what());
    }
}

std::vector<std::string> replication_problems(const std::string& folder, const Record& record,
                                              const Track& track) {
    std::vector<std::string> problems;
    for (const fs::path& file : files_in(folder)) {
        const std::string name = "replications/" + file.filename().string();
        try {
            for (const std::string& problem :
                 problems_of(read_text_file(file.string()), record.folder_name(), record, track))
                problems.push_back(name + ": " + problem);
        } catch (const std::exception& error) {
            problems.push_back(name + ": " + error.what());
        }
    }
    return problems;
}

std::map<std::string, int64_t> count_replications(const std::string& folder) {
    std::map<std::string, int64_t> counts;
    for (const fs::path& file : files_in(folder))
        ++counts[replication_from_json(read_text_file(file.string()), file.string()).verdict];
    return counts;
}

std::string write_replication(const std::string& folder, const Replication& r) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) throw_usage("{}: the folder cannot be made: {}", folder, error.message());
    std::string hardware = r.attempt.hardware_class.text();
    for (char& c : hardware)
        if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_') c = '-';
    const std::string host = parse_json<ReplicationJson>(r.attempt.hardware).value("host", "");
    const std::string name =
        fmt::format("{}_{}_{}", r.attempt.date, hardware, hash_of_text(host).substr(0, 8));
    fs::path path = fs::path(folder) / (name + ".json");
    for (int number = 2; fs::exists(path); ++number)
        path = fs::path(folder) / fmt::format("{}-{}.json", name, number);
    write_file(path.string(), replication_to_json(r));
    return path.string();
}

}  // namespace speedrun
