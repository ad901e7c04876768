// Merges the records of one or more calls into one report.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "tests/bench/check_results.h"

namespace speedrun::bench {

namespace {

// Records so far, without replaced ones.
struct Records {
    Json device = Json::object(), calls = Json::array(), steps = Json::array();

    // Throws if `record` is not a record.
    void add(const Json& record) {
        const auto kind = record.at("kind").get<std::string>();
        if (kind == "device") {
            device.update(record);
            calls.push_back(
                {{"date", record.value("date", "")}, {"nvidia_smi", record.value("nvidia_smi", "")}});
        } else if (kind == "again") {
            forget(record.at("stage").get<std::string>());
        } else if (kind == "step" && is_printable(record)) {
            put(record);
        } else {
            throw std::runtime_error("no record");
        }
    }

    void forget(const std::string& stage) {
        Json kept = Json::array();
        for (const Json& step : steps) {
            const std::string status = step.value("status", "");
            if (step.value("stage", "") != stage || (status != "failed" && status != "skipped"))
                kept.push_back(step);
        }
        steps = kept;
    }

    void put(const Json& record) {
        for (Json& old : steps) {
            if (old.at("stage") != record.at("stage") || old.at("step") != record.at("step")) continue;
            old = record;
            return;
        }
        steps.push_back(record);
    }
};

// Moves operations and peaks out of the steps. If two steps time the same case, the later one counts.
void collect_operations(Json& steps, Json& ops, Json& peaks) {
    constexpr std::array kKeys = {"name", "dtype", "products", "attention"};
    const auto same = [&](const Json& a, const Json& b) {
        return std::all_of(kKeys.begin(), kKeys.end(),
                           [&](const char* key) { return a.value(key, "") == b.value(key, ""); });
    };
    for (Json& step : steps) {
        for (const Json& op : step.value("ops", Json::array())) {
            const auto old = std::find_if(ops.begin(), ops.end(), [&](const Json& o) { return same(o, op); });
            if (old == ops.end()) {
                ops.push_back(op);
            } else {
                *old = op;
            }
        }
        for (const Json& peak : step.value("ceilings", Json::array())) peaks.push_back(peak);
        step.erase("ops");
        step.erase("ceilings");
    }
}

// State of a stage, from the states of its steps.
std::string stage_status(const std::vector<std::string>& states) {
    const auto has = [&](const char* state) { return std::count(states.begin(), states.end(), state) > 0; };
    if (states.empty()) return "not run";
    if (has("failed")) return "failed";
    if (!has("passed")) return has("skipped") ? "skipped" : "not run";
    return has("not run") ? "incomplete" : "passed";
}

}  // namespace

Json merge_records(const std::vector<std::string>& lines, const std::vector<std::string>& expected) {
    Records records;
    int num_damaged = 0;
    for (const std::string& line : lines) {
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        try {
            records.add(Json::parse(line));
        } catch (const std::exception&) {
            ++num_damaged;  // for example the last line of a killed process
        }
    }
    records.device.erase("kind");

    std::vector<std::string> stages = {"device", "tests", "step",     "ops",
                                       "train",  "ranks", "sanitize", "peer"};
    for (const std::string& stage : expected) stages.push_back(stage);
    for (const Json& step : records.steps) stages.push_back(step.value("stage", ""));
    Json states = Json::object(), ops = Json::array(), peaks = Json::array();
    bool failed = false, complete = true;
    for (const std::string& stage : stages) {
        if (states.contains(stage)) continue;
        std::vector<std::string> of_steps;
        for (const Json& step : records.steps) {
            if (step.value("stage", "") == stage) of_steps.push_back(step.value("status", ""));
        }
        states[stage] = stage_status(of_steps);
        failed |= states[stage] == "failed";
        const bool requested = std::count(expected.begin(), expected.end(), stage) > 0 || !of_steps.empty();
        complete &= states[stage] == "passed" || !requested;
    }
    collect_operations(records.steps, ops, peaks);
    return {{"result", failed     ? "failed"
                       : complete ? "passed"
                                  : "incomplete"},
            {"device", records.device},
            {"calls", records.calls},
            {"stages", states},
            {"steps", records.steps},
            {"ceilings", peaks},
            {"ops", ops},
            {"damaged_lines", num_damaged}};
}

std::string other_origin(const Json& device, const Json& facts) {
    const auto of = [](const Json& object, const char* key) { return object.value(key, std::string()); };
    const bool same_programs = of(device, "programs") == of(facts, "programs");
    const bool same_card =
        of(device, "card") == of(facts, "card") || of(device, "card").empty() || of(facts, "card").empty();
    if (same_programs && same_card) return "";
    std::string out;
    for (const char* key : {"git_sha", "programs", "card"}) {
        if (of(device, key) == of(facts, key)) continue;
        out += fmt::format("{}{}: recorded '{}', now '{}'", out.empty() ? "" : "; ", key, of(device, key),
                           of(facts, key));
    }
    return out;
}

bool is_printable(const Json& record) {
    try {
        const bool is_step = record.at("kind") == "step";
        const std::string status = is_step || record.at("kind") == "op" ? record.at("status") : "";
        Json report = {{"device", Json::object()},
                       {"stages", Json::object()},
                       {"steps", Json::array()},
                       {"ceilings", Json::array()},
                       {"ops", Json::array()}};
        if (is_step) {
            const std::string stage = record.at("stage"), name = record.at("step");
            report["stages"][stage] = "";
            report["steps"].push_back(record);
            collect_operations(report["steps"], report["ops"], report["ceilings"]);
        } else {
            report[record.at("kind") == "op" ? "ops" : "ceilings"].push_back(record);
        }
        return !print_report(report).empty();
    } catch (const std::exception&) {
        return false;
    }
}

}  // namespace speedrun::bench
