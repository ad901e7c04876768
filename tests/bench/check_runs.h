// Figures of a `speedrun` run in a check on a GPU, and whether they are as expected.
#pragma once

#include <string>

#include "tests/bench/check_results.h"

namespace speedrun::bench {

struct RunCheck {
    std::string folder{};  // run folder
    double floor_ms = 0;   // roofline bound of a step; 0: unknown
    std::string losses{};  // file {"losses": […]} that the run's first losses must match; empty: none
    double tolerance = 0;  // relative tolerance of a loss
    std::string
        same_as{};  // metrics.jsonl of a run with bitwise equal losses and gradient norms; empty: none
    bool must_reach_target = false;
    std::string
        plan{};  // output of plan --gpu --json for the same step; empty or unreadable: no modelled figures
};

struct Checked {
    Json figures = Json::object();
    std::string failure;  // empty: as expected
};

// {steps, tokens_per_step, tokens_per_s and step_ms (medians of all steps but the first three), startup_ms,
// optimizer_ms, losses, tflops, share_of_product, share_of_floor, memory_mib, val_loss, …}; with a plan modelled_ms and
// modelled_optimizer_ms; notes of the run that name a library, NCCL or an option of cuda. Never throws:
// unreadable files are a failure.
Checked check_run(const RunCheck& check);

// Checks the JSON written by compare_peers.sh, which must report success.
Checked check_peers(const std::string& path);

}  // namespace speedrun::bench
