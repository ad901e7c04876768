// Runs of a record in the log format of MLPerf, for the compliance checker of the package mlperf-logging.
#pragma once

#include <string>

#include "train/records/record.h"

namespace speedrun {

// The rules that the log follows: training, open division.
inline constexpr const char* kMlperfRules = "6.1.0";
// The benchmark of these rules that trains a language model from random weights.
inline constexpr const char* kMlperfBenchmark = "llama31_8b";

struct MlperfFacts {
    std::string organisation;
    int64_t validation_tokens = 0;  // scored by each validation
    std::string folder;             // path of the record
};

// The log of one run of the record, lines `:::MLLOG {...}` in the order of their times. `metrics` is the text of its metrics file.
// Clock: milliseconds since 1970, rounded. init_start is the run's began_utc; run_start follows startup_ms later; all else is
// train_ms after run_start, so run_stop - run_start is the run's training time. A record holds no duration of validations:
// eval_start, eval_accuracy and eval_stop have one time. Samples are tokens.
// eval_accuracy is exp(-loss), the geometric mean of the probability of the right token; the loss is in its metadata.
// status is success for a run that is done with a last loss at or below the record's target.
// Throws a data error that names the run for a start that is no date, and where the metrics lack the step before a validation.
std::string mlperf_log(const Record& record, const RecordRun& run, const std::string& metrics,
                       const MlperfFacts& facts);

}  // namespace speedrun
