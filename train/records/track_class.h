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

// Properties of a record that rules of classes compare. An absent one is not compared, except parameters, tables and tokens.
struct ClassFacts {
    std::optional<int64_t>
        parameters;  // of the config's model, tables of any kind among them; none: not counted
    HardwareClass hardware;
    std::optional<std::string> not_dense = {};  // dense_problem() of the model; none: not looked at
    std::optional<int64_t> tokens = {};         // number in a run's training
    double longest_run_ms = 0;                  // training time of the longest run
    std::string date = {};                      // on which the attempt began
    std::optional<double> target_loss = {};     // target of the runs; 0: a budget
};

// A target that records were made for until another took its place.
struct PastTarget {
    double target_loss = 0;
    std::string until, reason;  // until: the last day, YYYY-MM-DD
};

struct TrackClass {
    std::string name;
    std::optional<int64_t> max_parameters;
    std::optional<int64_t> gpus;  // exactly so many; 0: on the CPU
    std::string gpu;              // in the name of their model: "H100"; empty: any
    bool dense = false;           // dense_rule.h
    // Training of a run ends within these; the result of a record is then its loss, and nothing is a target.
    std::optional<double> budget_s = {};
    std::optional<int64_t> budget_tokens = {};
    std::optional<double> target_loss = {};  // its own, or the track's; none: of a budget
    bool own_target = false;
    std::vector<PastTarget> history = {};
    std::string ended = {},
                ended_on = {};  // why no attempt is made any more, and the last day of its records

    // Is the result of a record the loss? Else it is the time.
    bool by_loss() const { return budget_s || budget_tokens; }
    // Was this the target on that day? Of a budget 0 is.
    bool had_target(double target, const std::string& date) const;

    // "at most 4000000 parameters", "8 GPUs, H100"; "any model, any hardware" without rules.
    std::string rules_text() const;
    // The first rule that is broken, with both values, or "".
    std::string problem(const ClassFacts& facts) const;
};

// The list `classes` of a track.json. Throws a data error that names the class and what is wrong, also for a rule that this
// build does not know.
std::vector<TrackClass> parse_classes(const nlohmann::json& list);

}  // namespace speedrun
