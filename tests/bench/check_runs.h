// What a run of `speedrun` in a check on a GPU has left: its figures, and whether they are what they must be.
#pragma once

#include <string>

#include "tests/bench/check_results.h"

namespace speedrun::bench {

struct RunCheck {
    std::string folder{};  // of the run
    double floor_ms = 0;   // of a step; 0: none known
    std::string losses{};  // file {"losses": […]} that the run's first losses agree with; empty: none
    double tolerance = 0;  // of a loss, relative
    std::string
        same_as{};  // metrics.jsonl of a run of the same losses and gradient norms, bit for bit; empty: none
    bool must_reach_target = false;
};

struct Checked {
    Json figures = Json::object();
    std::string failure;  // empty: as it must be
};

// {steps, tokens_per_step, tokens_per_s and step_ms (medians of all steps but the first three), startup_ms,
// optimizer_ms, losses, tflops, share_of_product, share_of_floor, memory_mib, val_loss, …}. Throws nothing:
// what cannot be read is a failure.
Checked check_run(const RunCheck& check);

// The JSON that compare_peers.sh has written, which must say that all went well.
Checked check_peers(const std::string& path);

}  // namespace speedrun::bench
