// All metrics of a run, each declared once. One line of the lists below defines the member of the struct and the key in
// metrics.jsonl or summary.json. It also defines the row of docs/metrics.md and the heading in scripts/speedrun_report.
//
// A line is X(type, key, roll-up, unit, title, meaning). The roll-up defines the summary's value: `none`, the `sum` over the
// steps, or the `last` step's value. A metric with a roll-up is in both files, so its line is in a list used by both.
// To add a metric: its line, and the code that measures it. Then run scripts/regenerate.sh for the rows of docs/metrics.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "data/source_use.h"
#include "train/runlog/run_origin.h"

namespace speedrun {

enum class RollUp { none, sum, last };

struct MetricField {
    const char* key;
    RollUp roll_up;
    const char* unit;     // as in a heading; empty: none
    const char* title;    // column title
    const char* meaning;  // one sentence without its full stop
};

using BytesByKind = std::map<std::string, int64_t>;  // key: kind of collective
using OptionalNumber = std::optional<double>;        // null in the file if there is no value

// clang-format off
#define SPEEDRUN_TOKENS_METRIC(X)                                                                            \
    X(int64_t, tokens, last, "", "tokens", "tokens trained on so far")
#define SPEEDRUN_OPTIMIZER_METRIC(X)                                                                         \
    X(double, optimizer_ms, sum, "ms", "optimizer after backward",                                           \
      "time in which compute waited for optimizer steps or event latency; excludes comm_exposed_ms")
#define SPEEDRUN_DATA_METRIC(X)                                                                              \
    X(double, data_ms, sum, "ms", "host waited for data",                                                    \
      "time in which the host waited for batches; the device may have been busy")
// Order in both files; the three metrics above have separate positions.
#define SPEEDRUN_SUMMED_METRICS(X)                                                                           \
    X(double, comm_exposed_ms, sum, "ms", "communication exposed",                                           \
      "time in which compute waited, a collective ran and the optimizer was idle")                           \
    X(double, comm_ms, sum, "ms", "communication in all",                                                    \
      "sum of all collectives within the step, exposed or hidden; at least comm_exposed_ms")                 \
    X(BytesByKind, bytes, sum, "bytes", "bytes sent", "bytes sent by the first rank, by kind of collective") \
    X(double, checkpoint_stall_ms, sum, "ms", "waited for checkpoints",                                      \
      "time in which the step waited for the previous step's checkpoint")

// Lines of metrics.jsonl with the event "step".
#define SPEEDRUN_STEP_METRICS(X)                                                                             \
    X(int64_t, step, none, "", "step", "index from 0")                                                       \
    X(double, loss, none, "nats/token", "loss", "mean over the step's targets")                              \
    X(double, grad_norm, none, "", "gradient norm",                                                          \
      "norm over the gradients of all groups that are not frozen, before clipping")                                 \
    X(double, lr, none, "", "learning rate", "learning rate of the first optimizer group")                   \
    X(double, step_ms, none, "ms", "step time",                                                              \
      "the sum of forward and backward, optimizer_ms and comm_exposed_ms")                                   \
    X(double, train_ms, none, "ms", "training time", "the training clock at the step's end")                 \
    SPEEDRUN_TOKENS_METRIC(X)                                                                                \
    X(double, tokens_per_s, none, "tokens/s", "tokens/s", "tokens of the step, of all ranks, by its time")   \
    SPEEDRUN_OPTIMIZER_METRIC(X)                                                                             \
    SPEEDRUN_DATA_METRIC(X)                                                                                  \
    SPEEDRUN_SUMMED_METRICS(X)

// Lines of metrics.jsonl with the event "val".
#define SPEEDRUN_VALIDATION_METRICS(X)                                                                       \
    X(int64_t, step, none, "", "step", "steps that had been made")                                           \
    X(double, loss, none, "nats/token", "validation loss", "mean over the scored tokens; null: not finite")  \
    X(double, train_ms, none, "ms", "training time", "the training clock, which is stopped during validation")

#define SPEEDRUN_STEP_TIME_METRICS(X)                                                                        \
    X(double, p50, none, "ms", "step median", "median of the step times")                                    \
    X(double, p99, none, "ms", "99%", "time that 99% of the steps do not exceed")                            \
    X(double, max, none, "ms", "largest", "time of the slowest step")                                        \
    X(int64_t, max_at_step, none, "", "slowest step", "index of the slowest step; -1: no step was made")

#define SPEEDRUN_SUMMARY_METRICS(X)                                                                          \
    X(std::string, status, none, "", "status", "done, stopped, diverged or failed (no final weights written)")    \
    X(std::string, message, none, "", "message", "why it diverged or failed, or which shard could not be read") \
    X(int64_t, steps, none, "", "steps", "steps that were made")                                             \
    SPEEDRUN_TOKENS_METRIC(X)                                                                                \
    X(int64_t, epoch_tokens_seen, none, "", "seen of the data",                                              \
      "tokens of the training data that are in a row of the first epoch")                                    \
    X(int64_t, epoch_tokens_dropped, none, "", "dropped of the data",                                        \
      "tokens of the training data that are in no row of the first epoch")                                   \
    X(int64_t, parameters, none, "", "parameters", "number of trained values")                               \
    X(int64_t, ranks, none, "", "ranks", "processes of the run")                                             \
    X(std::string, mesh, none, "", "mesh", "the ranks as a grid")                                            \
    X(std::string, strategy, none, "", "strategy", "state that is sharded over ranks")                       \
    X(double, startup_ms, none, "ms", "start-up", "from the start of the process to the first step")         \
    X(double, train_ms, none, "ms", "training time", "the training clock at the end")                        \
    X(double, wall_s, none, "s", "wall clock",                                                               \
      "start of the process (of the run, where a process makes several) to its last validation, all included") \
    X(OptionalNumber, train_loss, none, "nats/token", "training loss", "training loss of the last step")     \
    X(OptionalNumber, val_loss, none, "nats/token", "validation loss", "loss of the last validation")        \
    X(OptionalNumber, target_loss, none, "nats/token", "target", "the config's, if it has one")              \
    X(bool, target_reached, none, "", "reached target", "the last validation is at or below it")             \
    X(OptionalNumber, time_to_target_ms, none, "ms", "time to target",                                       \
      "training time at the first validation at or below it")                                                \
    X(StepTimeSummary, step_ms, none, "ms", "step times", "")                                                \
    X(int64_t, ungraphed_steps, none, "", "steps without graph",                                             \
      "steps enqueued call by call although graphs were captured")                                           \
    X(double, tokens_per_s, none, "tokens/s", "tokens/s", "tokens by training time, of all ranks")           \
    X(double, flops_per_s, none, "FLOP/s", "FLOP/s", "the model's operations by training time, of all ranks")\
    X(double, ceiling_flops_per_s, none, "FLOP/s", "ceiling", "FLOP/s of a large matmul, of all ranks")      \
    SPEEDRUN_DATA_METRIC(X)                                                                                  \
    SPEEDRUN_OPTIMIZER_METRIC(X)                                                                             \
    SPEEDRUN_SUMMED_METRICS(X)                                                                               \
    X(int64_t, memory_bytes, none, "bytes", "device memory", "allocated on the first rank's device")         \
    X(int64_t, peak_rss_bytes, none, "bytes", "peak memory", "most that the first rank's process had resident")
// clang-format on

// Defines the members, and fields(visit), which calls visit(pointer to member, MetricField) for each in order.
#define SPEEDRUN_METRIC_MEMBER(type, key, ...) type key{};
#define SPEEDRUN_VISIT_METRIC(type, key, roll_up, ...) \
    visit(&Self::key, MetricField{#key, RollUp::roll_up, __VA_ARGS__});
#define SPEEDRUN_METRICS(Struct, LIST)       \
    LIST(SPEEDRUN_METRIC_MEMBER)             \
    using Self = Struct;                     \
    template <class Visit>                   \
    static void fields(const Visit& visit) { \
        LIST(SPEEDRUN_VISIT_METRIC)          \
    }

// Values of the first rank unless stated otherwise.
struct StepMetrics {
    SPEEDRUN_METRICS(StepMetrics, SPEEDRUN_STEP_METRICS)
};

struct Validation {
    SPEEDRUN_METRICS(Validation, SPEEDRUN_VALIDATION_METRICS)
};

struct StepTimeSummary {
    SPEEDRUN_METRICS(StepTimeSummary, SPEEDRUN_STEP_TIME_METRICS)
};

struct RunSummary {
    SPEEDRUN_METRICS(RunSummary, SPEEDRUN_SUMMARY_METRICS)
    std::optional<RunOrigin> origin;  // in the file only if the run did not start from random weights
    std::vector<SourceUse> sources;   // sources of a mixture; in the file only if there are any
    // Adds one step's values that the summary contains.
    void add(const StepMetrics& step);
};

#undef SPEEDRUN_METRICS
#undef SPEEDRUN_VISIT_METRIC
#undef SPEEDRUN_METRIC_MEMBER

// Returns the declaration of a member.
template <class Struct, class T>
MetricField field_of(T Struct::*member) {
    MetricField found{};
    Struct::fields([&](auto one, const MetricField& field) {
        if constexpr (std::is_same_v<decltype(one), T Struct::*>)
            if (one == member) found = field;
    });
    return found;
}

// Return a line of metrics.jsonl without its newline, and the text of summary.json.
std::string metrics_line(const StepMetrics& step);
std::string metrics_line(const Validation& validation);
std::string summary_text(const RunSummary& summary);

// Returns the declarations as JSON, for programs that read these files; the build writes
// scripts/speedrun_report/metric_fields.json.
std::string metric_fields();

}  // namespace speedrun
