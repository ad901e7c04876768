#include "train/records/track_class.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/json_text.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

int64_t number_of(const nlohmann::json& value, const std::string& what, int64_t least) {
    const int64_t number = whole_number(value);
    if (number < least) throw_data("{}: {}, at least {} is expected", what, number, least);
    return number;
}

TrackClass parse_class(const nlohmann::json& json) {
    TrackClass result;
    result.name = json.at("name").get<std::string>();
    if (result.name.empty()) throw_data("classes: a class without a name");
    const std::string where = "class " + result.name;
    for (const auto& [key, value] : json.items()) {
        if (key == "name" || key == "text") continue;
        if (key == "max_parameters")
            result.max_parameters = number_of(value, where + ": max_parameters", 1);
        else if (key == "gpus")
            result.gpus = number_of(value, where + ": gpus", 0);
        else if (key == "gpu")
            result.gpu = value.get<std::string>();
        else
            throw_data("{}: no such rule: {}", where, key);
    }
    return result;
}

}  // namespace

std::string TrackClass::rules_text() const {
    std::vector<std::string> rules;
    if (max_parameters) rules.push_back(fmt::format("at most {} parameters", *max_parameters));
    if (gpus) rules.push_back(*gpus == 0 ? "no GPU" : fmt::format("{} GPU{}", *gpus, *gpus > 1 ? "s" : ""));
    if (!gpu.empty()) rules.push_back(gpu);
    return rules.empty() ? "any model, any hardware" : fmt::format("{}", fmt::join(rules, ", "));
}

std::string TrackClass::problem(const ClassFacts& facts) const {
    if (max_parameters && !facts.parameters)
        return fmt::format("at most {} parameters, and nobody counted them", *max_parameters);
    if (max_parameters && *facts.parameters > *max_parameters)
        return fmt::format("{} parameters, at most {}", *facts.parameters, *max_parameters);
    if (gpus && facts.hardware.gpus != *gpus)
        return fmt::format("made with {} GPUs, {} wanted", facts.hardware.gpus, *gpus);
    if (facts.hardware.gpu.find(gpu) == std::string::npos)
        return fmt::format("made on {}, a GPU called {} is wanted", facts.hardware.text(), gpu);
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
