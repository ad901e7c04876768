// A metrics.jsonl of a run that may have been killed. One more damaged line changes only the count of damaged lines.
#include <cstdlib>

#include "tests/fuzz/fuzz_input.h"
#include "train/records/run_metrics.h"

void speedrun::fuzz::parse(std::string_view input) {
    const std::string text(input);
    const RunMetrics metrics = read_unfinished_metrics(text, "fuzz");
    if (metrics.steps < 0 || !(metrics.train_ms >= 0)) std::abort();
    const auto again = read_unfinished_metrics("damaged\n" + text, "fuzz");
    if (again.damaged.count != metrics.damaged.count + 1 || again.steps != metrics.steps) std::abort();
}
