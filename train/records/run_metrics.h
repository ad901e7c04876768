// What metrics.jsonl of a run says about its result, and how it is stored in a record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "data/damaged_lines.h"
#include "train/runlog/metrics.h"

namespace speedrun {

struct RunMetrics {
    int64_t steps = 0;                    // made
    double train_ms = 0;                  // at the last line
    std::vector<Validation> validations;  // in order
    bool validated_at_end = false;        // the last line is a validation after the last step
    DamagedLines damaged;                 // left out
};

// Reads the text of a metrics.jsonl. Throws a data error that names origin and line if a line is not one of a
// run's, or if steps go backwards.
RunMetrics read_metrics(const std::string& text, const std::string& origin);
// Reads metrics of a run that may have been killed, or have run on a full disk: a line that is no JSON is left out, and steps
// may be missing. The last line without a newline is not yet written and no damage.
RunMetrics read_unfinished_metrics(const std::string& text, const std::string& origin);

struct StepLines {
    int64_t steps = 0;    // one run
    size_t num_runs = 1;  // one record
};
// Returns n: the record keeps every n-th line of a step.
int64_t step_lines_kept(const StepLines& lines);
// The lines of every `every`-th step, of the first and the last, and all that are not of a step; unchanged.
std::string thin_metrics(const std::string& text, int64_t every);

}  // namespace speedrun
