// Lines of a record's metrics file, for run_checks.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace speedrun {

struct RunLine {
    int64_t number = 0;  // line number in the file, from 1
    bool is_step = false;
    int64_t step = 0;  // from 0; for a validation the number of steps before it
    double loss = 0, train_ms = 0;
    // 0 for a validation.
    double grad_norm = 0, lr = 0, step_ms = 0, tokens_per_s = 0, optimizer_ms = 0;
    int64_t tokens = 0;
};

// Throws a data error that names origin and line if a value is missing or has another type.
std::vector<RunLine> read_run_lines(const std::string& text, const std::string& origin);

}  // namespace speedrun
