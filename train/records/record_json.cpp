// Conversion between the Record struct and record.json.
#include <set>

#include "data/json_text.h"
#include "data/sha256.h"
#include "kernels/device/error.h"
#include "train/records/record.h"
#include "train/runlog/metrics_json.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

// NaN (too few runs) is written as null.
Json to_json(const Moments& m) {
    return {{"count", m.count}, {"mean", m.mean}, {"std", m.std}};
}

Json to_json(const std::optional<TestResult>& test) {
    if (!test) return nullptr;
    return {{"t", test->t}, {"df", test->df}, {"p", test->p}};
}

Json to_json(const SideStatistics& s) {
    Json json = {{"runs", s.loss.count},
                 {"failed", s.failed},
                 {"loss", to_json(s.loss)},
                 {"train_ms", to_json(s.train_ms)}};
    if (s.wall_s.count > 0) json["wall_s"] = to_json(s.wall_s);
    return json;
}

Json to_json(const RecordStatistics& s) {
    Json json = {{"candidate", to_json(s.candidate)},
                 {"baseline", s.baseline ? to_json(*s.baseline) : Json(nullptr)},
                 {"loss_below_target", to_json(s.loss_test)},
                 {"time_below_baseline", to_json(s.time_test)},
                 {"loss_within_margin", to_json(s.margin_test)},
                 {"speedup", s.speedup ? Json(*s.speedup) : Json(nullptr)}};
    if (s.gain_test) json["loss_below_baseline"] = to_json(s.gain_test);
    return json;
}

Json to_json(const RecordRun& run) {
    Json validations = Json::array();
    for (const Validation& v : run.validations) validations.push_back(metrics_to_json<Json>(v));
    Json json = {{"side", run.side},
                 {"order", run.order},
                 {"seed", run.seed},
                 {"status", run.status},
                 {"loss", run.done() ? Json(run.loss()) : Json(nullptr)},
                 {"train_ms", run.train_ms},
                 {"startup_ms", run.startup_ms},
                 {"steps", run.steps},
                 {"began_utc", run.began_utc},
                 {"metrics", {{"file", run.file}, {"sha256", run.sha256}, {"every", run.every}}},
                 {"validations", validations}};
    if (run.wall_s) json["wall_s"] = *run.wall_s;
    if (run.machine) json["machine"] = parse_json<Json>(machine_state_to_json(*run.machine));
    return json;
}

RecordRun run_from(const Json& json) {
    RecordRun run;
    run.side = json.at("side").get<std::string>();
    run.order = whole_number(json.at("order"));
    run.seed = whole_number(json.at("seed"));
    run.status = json.at("status").get<std::string>();
    run.train_ms = json.at("train_ms").get<double>();
    run.startup_ms = json.at("startup_ms").get<double>();
    if (json.contains("wall_s")) run.wall_s = json.at("wall_s").get<double>();
    if (json.contains("machine"))
        run.machine = machine_state_from_json(json.at("machine").dump(), "machine of a run");
    run.steps = whole_number(json.at("steps"));
    run.began_utc = json.at("began_utc").get<std::string>();
    run.file = json.at("metrics").at("file").get<std::string>();
    run.sha256 = json.at("metrics").at("sha256").get<std::string>();
    run.every = whole_number(json.at("metrics").at("every"));
    for (const Json& v : json.at("validations"))
        run.validations.push_back({.step = value_of(v, &Validation::step),
                                   .loss = value_of(v, &Validation::loss),
                                   .train_ms = value_of(v, &Validation::train_ms)});
    if (run.side != kCandidate && run.side != kBaseline) throw_data("a run of side '{}'", run.side);
    if (run.status != "done" && run.status != "diverged") throw_data("a run of status '{}'", run.status);
    if (run.done() && run.validations.empty()) throw_data("a run that is done, without validation");
    if (run.file.empty() || run.file.find('/') != std::string::npos) throw_data("a file '{}'", run.file);
    return run;
}

Json baseline_json(const Record& record) {
    if (!record.baseline) return nullptr;
    const BaselineOfRecord& b = *record.baseline;
    Json json = {{"name", b.name},
                 {"record", b.record.empty() ? Json(nullptr) : Json(b.record)},
                 {"config", parse_json<Json>(b.config)}};
    if (b.program)
        json["program"] = {{"git_sha", b.program->git_sha},
                           {"dirty", b.program->dirty},
                           {"binary_sha256", b.program->binary_sha256},
                           {"build", parse_json<Json>(b.program->build)}};
    return json;
}

std::string object_in(const Json& json, const char* key) {
    const Json& value = json.at(key);
    if (!value.is_object()) throw_data("{}: expected an object, found {}", key, shown(value));
    return value.dump(2);
}

ProgramOfRecord program_from(const Json& json) {
    return {.git_sha = json.at("git_sha").get<std::string>(),
            .dirty = json.at("dirty").get<bool>(),
            .binary_sha256 = json.at("binary_sha256").get<std::string>(),
            .build = object_in(json, "build")};
}

Record record_of(const Json& json) {
    Record record;
    if (const auto schema = whole_number(json.at("schema")); schema != kRecordSchema)
        throw_data("schema {}, this build knows {}", schema, kRecordSchema);
    const auto text = [&](const char* key) { return json.at(key).get<std::string>(); };
    record.name = text("name");
    record.track = text("track");
    record.date = text("date");
    record.what = text("what");
    record.systems_only = json.at("systems_only").get<bool>();
    record.race = json.value("class", "");
    record.record_before = text("record_before");
    record.target_loss = json.at("target_loss").get<double>();
    record.git_sha = text("git_sha");
    record.dirty = json.at("dirty").get<bool>();
    record.binary_sha256 = text("binary_sha256");
    record.hardware = object_in(json, "hardware");
    record.build = object_in(json, "build");
    for (const Json& shard : json.at("data"))
        record.data.push_back({shard.at("file").get<std::string>(), shard.at("split").get<std::string>(),
                               whole_number(shard.at("tokens")), shard.at("sha256").get<std::string>()});
    for (const ShardInfo& shard : record.data) {
        if (shard.split != "train" && shard.split != "val") throw_data("data: a split '{}'", shard.split);
    }
    record.config = object_in(json, "config");
    if (const Json& b = json.at("baseline"); !b.is_null()) {
        const Json& folder = b.at("record");
        record.baseline = {b.at("name").get<std::string>(), folder.is_null() ? "" : folder.get<std::string>(),
                           object_in(b, "config")};
        if (b.contains("program")) record.baseline->program = program_from(b.at("program"));
    }
    std::set<std::pair<std::string, int64_t>> seen;
    for (const Json& run : json.at("runs")) {
        record.runs.push_back(run_from(run));
        const RecordRun& r = record.runs.back();
        if (r.side == kBaseline && !record.baseline) throw_data("runs of a baseline, but no baseline");
        if (!seen.insert({r.side, r.seed}).second)
            throw_data("two runs of the {} with seed {}", r.side, r.seed);
    }
    for (const Json& run : json.at("interrupted"))
        record.interrupted.push_back(
            {run.at("side").get<std::string>(), whole_number(run.at("seed")), whole_number(run.at("steps"))});
    return record;
}

std::string hash_of(const Json& json) {
    const std::string text = json.dump(2);
    Sha256 hash;
    hash.update(text.data(), text.size());
    return hash.hex();
}

}  // namespace

std::string record_to_json(const Record& record) {
    Json data = Json::array(), changes = Json::array(), runs = Json::array(), interrupted = Json::array(),
         rules = Json::array();
    for (const ShardInfo& s : record.data)
        data.push_back({{"file", s.file}, {"split", s.split}, {"tokens", s.tokens}, {"sha256", s.sha256}});
    for (const KeyDifference& d : record.changes)
        changes.push_back({{"key", d.key}, {"baseline", d.before}, {"candidate", d.after}});
    for (const RecordRun& run : record.runs) runs.push_back(to_json(run));
    for (const InterruptedRun& run : record.interrupted)
        interrupted.push_back({{"side", run.side}, {"seed", run.seed}, {"steps", run.steps}});
    for (const RuleResult& rule : record.rules)
        rules.push_back({{"rule", rule.rule}, {"met", rule.met}, {"why", rule.why}});
    Json json = {{"schema", kRecordSchema},
                 {"name", record.name},
                 {"track", record.track},
                 {"date", record.date},
                 {"what", record.what},
                 {"systems_only", record.systems_only},
                 {"record_before", record.record_before},
                 {"target_loss", record.target_loss},
                 {"git_sha", record.git_sha},
                 {"dirty", record.dirty},
                 {"binary_sha256", record.binary_sha256},
                 {"statistics", to_json(record.statistics)},
                 {"verdict", {{"is_record", record.is_record}, {"rules", rules}}},
                 {"runs", runs},
                 {"interrupted", interrupted},
                 {"baseline", baseline_json(record)},
                 {"changes", changes},
                 {"hardware", parse_json<Json>(record.hardware)},
                 {"build", parse_json<Json>(record.build)},
                 {"data", data},
                 {"config", parse_json<Json>(record.config)}};
    if (!record.race.empty()) json["class"] = record.race;
    json["sha256"] = hash_of(json);
    return json.dump(2) + "\n";
}

Record record_from_json(const std::string& text, const std::string& origin) {
    try {
        return record_of(parse_json<Json>(text));
    } catch (const std::exception& error) {
        throw_data("{}: {}", origin, error.what());
    }
}

bool has_its_hash(const std::string& text) {
    Json json = parse_json<Json>(text);
    // Reading would drop digits beyond a double's precision.
    if (text != json.dump(2) + "\n") return false;
    const std::string stored = json.value("sha256", "");
    json.erase("sha256");
    return stored == hash_of(json);
}

}  // namespace speedrun
