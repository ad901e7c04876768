// Runs of a record in MLPerf's log format, for the compliance checker of the package mlperf-logging.
#pragma once

#include <string>

#include "train/records/record.h"

namespace speedrun {

// MLPerf rules of the log: training, open division.
inline constexpr const char* kMlperfRules = "6.1.0";
// The benchmark in these rules that trains a language model from random weights.
inline constexpr const char* kMlperfBenchmark = "llama31_8b";

struct MlperfFacts {
    std::string organisation;
    int64_t validation_tokens = 0;  // scored per validation
    std::string folder;             // path of the record
};

// Returns the log of one run of the record, lines `:::MLLOG {...}` in order of time. `metrics` is the text of its metrics file.
// Clock: milliseconds since 1970, rounded. init_start is the run's began_utc; run_start is startup_ms later. All other times
// are run_start + train_ms, so run_stop - run_start is the training time. A record has no durations of validations: eval_start,
// eval_accuracy and eval_stop have equal times. Samples are tokens.
// eval_accuracy is exp(-loss), the geometric mean of the correct token's probability; the loss is in its metadata.
// status is success if the run is done with a last loss at or below the record's target.
// Throws a data error that names the run for an invalid start date, and if the metrics lack the step before a validation.
std::string mlperf_log(const Record& record, const RecordRun& run, const std::string& metrics,
                       const MlperfFacts& facts);

}  // namespace speedrun
