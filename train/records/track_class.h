// Classes of a track, each with its rules and boards. A record that meets all rules of a class belongs to it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "train/records/hardware_class.h"

namespace speedrun {

// Properties of a record that class rules check. A rule on an absent value is broken; an absent target is not checked.
struct ClassFacts {
    std::optional<int64_t> parameters;  // all tables included; none: not counted
    HardwareClass hardware;
    std::optional<std::string> not_dense = {};  // dense_problem() of the model; none: not checked
    std::optional<int64_t> tokens = {};         // tokens per training run
    double longest_run_ms = 0;                  // training time of the longest run
    std::string date = {};                      // start of the attempt; empty: not checked
    std::optional<double> target_loss = {};     // target of the runs; 0: budget class
};

// A previous target of a class.
struct PastTarget {
    double target_loss = 0;
    std::string until, reason;  // until: the last day, YYYY-MM-DD
};

struct TrackClass {
    std::string name;
    std::optional<int64_t> max_parameters;
    std::optional<int64_t> gpus;  // exact number; 0: CPU
    std::string gpu;              // substring of the GPU's name, such as "H100"; empty: any
    bool dense = false;           // rule of dense_rule.h
    // Upper limits of each run's training. With one of them (a budget class), records compete by loss and have no target.
    std::optional<double> budget_s = {};
    std::optional<int64_t> budget_tokens = {};
    std::optional<double> target_loss = {};  // its own or the track's; none: budget class
    bool own_target = false;
    std::vector<PastTarget> history = {};
    // Reason why no attempts are accepted (empty: open), and the last day on which one could start, YYYY-MM-DD.
    std::string ended = {}, ended_on = {};

    // True if records compete by loss, false: by time.
    bool by_loss() const { return budget_s || budget_tokens; }
    // True for the current target, and for a previous one up to its last day. A budget class has the target 0.
    bool had_target(double target, const std::string& date) const;

    // "at most 4000000 parameters", "8 GPUs, H100"; "any model, any hardware" without rules.
    std::string rules_text() const;
    // Returns the first broken rule, with both values, or "".
    std::string problem(const ClassFacts& facts) const;
};

// Parses the list `classes` of a track.json. Throws a data error that names the class and the problem, also for a rule unknown
// to this build. Throws a JSON error for a value of another type.
std::vector<TrackClass> parse_classes(const nlohmann::json& list);

}  // namespace speedrun
