// Classes of a track: records under rules of their own, each class with a board of its own. A record is of every class whose
// rules it meets.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "train/records/hardware_class.h"

namespace speedrun {

// What the rules of classes are about.
struct ClassFacts {
    std::optional<int64_t>
        parameters;  // of the config's model, tables of any kind among them; none: not counted
    HardwareClass hardware;
};

struct TrackClass {
    std::string name;
    std::optional<int64_t> max_parameters;
    std::optional<int64_t> gpus;  // exactly so many; 0: on the CPU
    std::string gpu;              // in the name of their model: "H100"; empty: any

    // "at most 4000000 parameters", "8 GPUs, H100"; "any model, any hardware" without rules.
    std::string rules_text() const;
    // The first rule that is broken, with both values, or "".
    std::string problem(const ClassFacts& facts) const;
};

// The list `classes` of a track.json. Throws a data error that names the class and what is wrong, also for a rule that this
// build does not know.
std::vector<TrackClass> parse_classes(const nlohmann::json& list);

}  // namespace speedrun
