// Results of a run read from its metrics.jsonl, and the form in which a record stores them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "data/damaged_lines.h"
#include "train/runlog/metrics.h"

namespace speedrun {

struct RunMetrics {
    int64_t steps = 0;                    // completed steps
    double train_ms = 0;                  // at the last line
    std::vector<Validation> validations;  // in order
    bool validated_at_end = false;        // the last line is a validation after the last step
    DamagedLines damaged;                 // skipped lines
};

// Reads the text of a metrics.jsonl. Throws a data error that names origin and line for an invalid line, and if step numbers
// decrease.
RunMetrics read_metrics(const std::string& text, const std::string& origin);
// Reads metrics of a run that may have been killed, or have filled the disk: a line that is not JSON is skipped, and steps may
// be missing. A last line without a newline is incomplete and does not count as damage.
RunMetrics read_unfinished_metrics(const std::string& text, const std::string& origin);

struct StepLines {
    int64_t steps = 0;    // per run
    size_t num_runs = 1;  // per record
};
// Returns n: the record stores every n-th step line.
int64_t step_lines_kept(const StepLines& lines);
// Returns, unchanged, every `every`-th step line, the first and the last one, and all other lines.
std::string thin_metrics(const std::string& text, int64_t every);

}  // namespace speedrun
