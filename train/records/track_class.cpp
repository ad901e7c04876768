#include "train/records/track_class.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>

#include "data/json_text.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

using ClassJson = nlohmann::json;

int64_t number_of(const ClassJson& value, const std::string& what, int64_t least) {
    const int64_t number = whole_number(value);
    if (number < least) throw_data("{}: {}, at least {} is expected", what, number, least);
    return number;
}

double positive_number(const ClassJson& value, const std::string& what) {
    if (!value.is_number() || !(value.get<double>() > 0))
        throw_data("{}: {}, a number above 0 is expected", what, shown(value));
    return value.get<double>();
}

std::string reason_in(const ClassJson& value, const std::string& what) {
    if (!value.is_string() || value.get<std::string>().empty())
        throw_data("{}: {}, a reason in words is expected", what, shown(value));
    return value.get<std::string>();
}

std::string date_of(const ClassJson& value, const std::string& what) {
    static const std::regex form("[0-9]{4}-[0-9]{2}-[0-9]{2}");
    if (!value.is_string() || !std::regex_match(value.get<std::string>(), form))
        throw_data("{}: {}, a date YYYY-MM-DD is expected", what, shown(value));
    return value.get<std::string>();
}

PastTarget parse_past(const ClassJson& json, const std::string& where) {
    PastTarget past;
    for (const auto& [key, value] : json.items()) {
        if (key == "target_loss")
            past.target_loss = positive_number(value, where + ".target_loss");
        else if (key == "until")
            past.until = date_of(value, where + ".until");
        else if (key == "reason")
            past.reason = reason_in(value, where + ".reason");
        else
            throw_data("{}: no such key: {}", where, key);
    }
    if (past.target_loss == 0 || past.until.empty() || past.reason.empty())
        throw_data("{}: target_loss, until and reason are expected, found {}", where, shown(json));
    return past;
}

std::vector<PastTarget> parse_history(const ClassJson& list, const std::string& where) {
    if (!list.is_array()) throw_data("{}: expected a list of objects, found {}", where, shown(list));
    std::vector<PastTarget> history;
    for (const ClassJson& json : list) history.push_back(parse_past(json, where));
    return history;
}

void read_rule(TrackClass& c, const std::string& key, const ClassJson& value) {
    const std::string where = "class " + c.name + ": " + key;
    if (key == "max_parameters")
        c.max_parameters = number_of(value, where, 1);
    else if (key == "gpus")
        c.gpus = number_of(value, where, 0);
    else if (key == "gpu")
        c.gpu = value.get<std::string>();
    else if (key == "dense")
        c.dense = value.get<bool>();
    else if (key == "budget_s")
        c.budget_s = positive_number(value, where);
    else if (key == "budget_tokens")
        c.budget_tokens = number_of(value, where, 1);
    else if (key == "target_loss")
        c.target_loss = positive_number(value, where);
    else if (key == "history")
        c.history = parse_history(value, where);
    else if (key == "ended")
        c.ended = reason_in(value, where);
    else if (key == "ended_on")
        c.ended_on = date_of(value, where);
    else
        throw_data("class {}: no such rule: {}", c.name, key);
}

TrackClass parse_class(const ClassJson& json) {
    TrackClass result;
    result.name = json.at("name").get<std::string>();
    if (result.name.empty()) throw_data("classes: a class without a name");
    for (const auto& [key, value] : json.items()) {
        if (key != "name" && key != "text") read_rule(result, key, value);
    }
    result.own_target = result.target_loss.has_value();
    const std::string where = "class " + result.name;
    if (result.by_loss() && (result.own_target || !result.history.empty()))
        throw_data("{}: a budget has no target: leave out target_loss and history, or the budget", where);
    if (result.ended.empty() != result.ended_on.empty())
        throw_data("{}: {} is missing: ended is the reason, ended_on the date", where,
                   result.ended.empty() ? "ended" : "ended_on");
    return result;
}

}  // namespace

bool TrackClass::had_target(double target, const std::string& date) const {
    if (by_loss()) return target == 0;
    if (target_loss && *target_loss == target) return true;
    return std::any_of(history.begin(), history.end(), [&](const PastTarget& past) {
        return past.target_loss == target && !date.empty() && date <= past.until;
    });
}

std::string TrackClass::rules_text() const {
    std::vector<std::string> rules;
    if (dense) rules.push_back("a transformer from its weights alone");
    if (max_parameters) rules.push_back(fmt::format("at most {} parameters", *max_parameters));
    if (gpus) rules.push_back(*gpus == 0 ? "no GPU" : fmt::format("{} GPU{}", *gpus, *gpus > 1 ? "s" : ""));
    if (!gpu.empty()) rules.push_back(gpu);
    if (budget_s) rules.push_back(fmt::format("at most {} s of training", *budget_s));
    if (budget_tokens) rules.push_back(fmt::format("at most {} tokens", *budget_tokens));
    if (by_loss()) rules.push_back("the lowest loss leads");
    return rules.empty() ? "any model, any hardware" : fmt::format("{}", fmt::join(rules, ", "));
}

std::string TrackClass::problem(const ClassFacts& facts) const {
    if (dense && !facts.not_dense) return "dense, and nobody looked at the model's tables";
    if (dense && !facts.not_dense->empty()) return *facts.not_dense;
    if (max_parameters && !facts.parameters)
        return fmt::format("at most {} parameters, and nobody counted them", *max_parameters);
    if (max_parameters && *facts.parameters > *max_parameters)
        return fmt::format("{} parameters, at most {}", *facts.parameters, *max_parameters);
    if (gpus && facts.hardware.gpus != *gpus)
        return fmt::format("made with {} GPUs, {} wanted", facts.hardware.gpus, *gpus);
    if (facts.hardware.gpu.find(gpu) == std::string::npos)
        return fmt::format("made on {}, a GPU called {} is wanted", facts.hardware.text(), gpu);
    if (budget_tokens && !facts.tokens)
        return fmt::format("at most {} tokens, and nobody counted them", *budget_tokens);
    if (budget_tokens && *facts.tokens > *budget_tokens)
        return fmt::format("schedule.steps x batch.tokens_per_step: {} tokens, at most {}", *facts.tokens,
                           *budget_tokens);
    if (budget_s && facts.longest_run_ms > *budget_s * 1e3)
        return fmt::format("a run trained for {:.2f} s, at most {}", facts.longest_run_ms * 1e-3, *budget_s);
    if (!ended_on.empty() && facts.date > ended_on)
        return fmt::format("begun on {}, the class ended on {}", facts.date, ended_on);
    // Runs for a target within a budget have a loss too; budget runs have no target.
    if (!by_loss() && facts.target_loss && !had_target(*facts.target_loss, facts.date))
        return fmt::format("made for target {}, this class has {}", *facts.target_loss,
                           target_loss.value_or(0));
    return "";
}

std::vector<TrackClass> parse_classes(const nlohmann::json& list) {
    if (!list.is_array() || list.empty())
        throw_data("classes: expected a list of objects, found {}", shown(list));
    std::vector<TrackClass> classes;
    for (const nlohmann::json& json : list) {
        TrackClass next = parse_class(json);
        for (const TrackClass& other : classes) {
            if (other.name == next.name) throw_data("classes: {} is there twice", next.name);
        }
        classes.push_back(std::move(next));
    }
    return classes;
}

}  // namespace speedrun
