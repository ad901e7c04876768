// Classes of a track: each has its own rules and boards. A record belongs to every class of which it meets all rules.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "train/records/hardware_class.h"

namespace speedrun {

// Properties of a record that class rules compare. Absent ones are not compared, except parameters, tables and tokens.
struct ClassFacts {
    std::optional<int64_t> parameters;  // parameters of the model, including all tables; none: not counted
    HardwareClass hardware;
    std::optional<std::string> not_dense = {};  // dense_problem() of the model; none: not checked
    std::optional<int64_t> tokens = {};         // tokens per training run
    double longest_run_ms = 0;                  // training time of the longest run
    std::string date = {};                      // start of the attempt
    std::optional<double> target_loss = {};     // target of the runs; 0: budget class
};

// A previous target of records.
struct PastTarget {
    double target_loss = 0;
    std::string until, reason;  // until: the last day, YYYY-MM-DD
};

struct TrackClass {
    std::string name;
    std::optional<int64_t> max_parameters;
    std::optional<int64_t> gpus;  // exact number; 0: CPU
    std::string gpu;              // substring of the model's name: "H100"; empty: any
    bool dense = false;           // dense_rule.h
    // Upper limits of a run's training; the result of a record is then its loss, without a target.
    std::optional<double> budget_s = {};
    std::optional<int64_t> budget_tokens = {};
    std::optional<double> target_loss = {};  // its own or the track's; none: budget class
    bool own_target = false;
    std::vector<PastTarget> history = {};
    std::string ended = {},
                ended_on = {};  // reason why it accepts no attempts, and the last day of its records

    // True if the result of a record is its loss; else it is its time.
    bool by_loss() const { return budget_s || budget_tokens; }
    // True if this was the target on that day. A budget class has the target 0.
    bool had_target(double target, const std::string& date) const;

    // "at most 4000000 parameters", "8 GPUs, H100"; "any model, any hardware" without rules.
    std::string rules_text() const;
    // Returns the first broken rule, with both values, or "".
    std::string problem(const ClassFacts& facts) const;
};

// Parses the list `classes` of a track.json. Throws a data error that names the class and the problem, also for a rule unknown
// to this build.
std::vector<TrackClass> parse_classes(const nlohmann::json& list);

}  // namespace speedrun
