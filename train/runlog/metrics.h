// Every figure of a run, declared once: the member of its struct, its key in metrics.jsonl or summary.json,
// the row of docs/files.md and the heading in scripts/speedrun_report follow from one line of the lists below.
//
// A line is X(type, key, roll-up, unit, title, meaning). The roll-up says what the summary makes of a step's
// figure: `none`, `sum` over the steps, or that of the `last` step. A figure with one stands in both files, so
// its line is in a list that both contain.
// A new figure: its line, and the place that measures it. Then scripts/regenerate.sh, for the rows of docs/files.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>

namespace speedrun {

enum class RollUp { none, sum, last };

struct MetricField {
    const char* key;
    RollUp roll_up;
    const char* unit;     // as a heading shows it; empty: none
    const char* title;    // of a column
    const char* meaning;  // in one sentence without its full stop
};

using BytesByKind = std::map<std::string, int64_t>;  // by kind of collective
using OptionalNumber = std::optional<double>;        // null in the file where there is none

// clang-format off
#define SPEEDRUN_TOKENS_METRIC(X)                                                                            \
    X(int64_t, tokens, last, "", "tokens", "trained on so far")
#define SPEEDRUN_OPTIMIZER_METRIC(X)                                                                         \
    X(double, optimizer_ms, sum, "ms", "optimizer after backward",                                           \
      "compute waited, without comm_exposed_ms: for the optimizer's steps and the latency of events")
#define SPEEDRUN_DATA_METRIC(X)                                                                              \
    X(double, data_ms, sum, "ms", "host waited for data",                                                    \
      "what the host waited for batches, while the device may have been at work")
// Both files show these in this order; the three above have places of their own.
#define SPEEDRUN_SUMMED_METRICS(X)                                                                           \
    X(double, comm_exposed_ms, sum, "ms", "communication exposed",                                           \
      "compute waited while a collective ran and the optimizer did not work")                                \
    X(double, comm_ms, sum, "ms", "communication in all",                                                    \
      "sum of all collectives within the step, exposed or hidden; at least comm_exposed_ms")                 \
    X(BytesByKind, bytes, sum, "bytes", "bytes sent", "what the first rank sent, by kind of collective")     \
    X(double, checkpoint_stall_ms, sum, "ms", "waited for checkpoints",                                      \
      "what the step waited for the checkpoint of the one before")

// Lines of metrics.jsonl whose event is "step".
#define SPEEDRUN_STEP_METRICS(X)                                                                             \
    X(int64_t, step, none, "", "step", "which one, counted from 0")                                          \
    X(double, loss, none, "nats/token", "loss", "mean over the step's targets")                              \
    X(double, grad_norm, none, "", "gradient norm", "of all gradients together, before clipping")            \
    X(double, lr, none, "", "learning rate", "of the first optimizer group")                                 \
    X(double, step_ms, none, "ms", "step time",                                                              \
      "the sum of forward and backward, optimizer_ms and comm_exposed_ms")                                   \
    X(double, train_ms, none, "ms", "training time", "the training clock at the step's end")                 \
    SPEEDRUN_TOKENS_METRIC(X)                                                                                \
    X(double, tokens_per_s, none, "tokens/s", "tokens/s", "tokens of the step, of all ranks, by its time")   \
    SPEEDRUN_OPTIMIZER_METRIC(X)                                                                             \
    SPEEDRUN_DATA_METRIC(X)                                                                                  \
    SPEEDRUN_SUMMED_METRICS(X)

// Lines of metrics.jsonl whose event is "val".
#define SPEEDRUN_VALIDATION_METRICS(X)                                                                       \
    X(int64_t, step, none, "", "step", "steps that had been made")                                           \
    X(double, loss, none, "nats/token", "validation loss", "mean over the scored tokens; null: not finite")  \
    X(double, train_ms, none, "ms", "training time", "the training clock, which stands still meanwhile")

#define SPEEDRUN_STEP_TIME_METRICS(X)                                                                        \
    X(double, p50, none, "ms", "step median", "median of the step times")                                    \
    X(double, p99, none, "ms", "99%", "time that 99% of the steps do not exceed")                            \
    X(double, max, none, "ms", "largest", "time of the slowest step")                                        \
    X(int64_t, max_at_step, none, "", "slowest step", "which one that is; -1: no step was made")

#define SPEEDRUN_SUMMARY_METRICS(X)                                                                          \
    X(std::string, status, none, "", "status", "done, stopped or diverged")                                  \
    X(std::string, message, none, "", "message", "why it diverged, or which shard could not be read")        \
    X(int64_t, steps, none, "", "steps", "steps that were made")                                             \
    SPEEDRUN_TOKENS_METRIC(X)                                                                                \
    X(int64_t, epoch_tokens_seen, none, "", "seen of the data",                                              \
      "tokens of the training data that are in a row of the first epoch")                                    \
    X(int64_t, epoch_tokens_dropped, none, "", "dropped of the data",                                        \
      "tokens of the training data that are in none")                                                        \
    X(int64_t, parameters, none, "", "parameters", "numbers that are trained")                               \
    X(int64_t, ranks, none, "", "ranks", "processes of the run")                                             \
    X(std::string, mesh, none, "", "mesh", "the ranks as a grid")                                            \
    X(std::string, strategy, none, "", "strategy", "what a rank holds only its part of")                     \
    X(double, startup_ms, none, "ms", "start-up", "from the start of the process to the first step")         \
    X(double, train_ms, none, "ms", "training time", "the training clock at the end")                        \
    X(double, wall_s, none, "s", "wall clock",                                                               \
      "start of the process (of the run, where a process makes several) to its last validation, all included") \
    X(OptionalNumber, train_loss, none, "nats/token", "training loss", "of the last step")                   \
    X(OptionalNumber, val_loss, none, "nats/token", "validation loss", "of the last validation")             \
    X(OptionalNumber, target_loss, none, "nats/token", "target", "the config's, if it has one")              \
    X(bool, target_reached, none, "", "reached target", "the last validation is at or below it")             \
    X(OptionalNumber, time_to_target_ms, none, "ms", "time to target",                                       \
      "training time at the first validation at or below it")                                                \
    X(StepTimeSummary, step_ms, none, "ms", "step times", "")                                                \
    X(double, tokens_per_s, none, "tokens/s", "tokens/s", "tokens by training time, of all ranks")           \
    X(double, flops_per_s, none, "FLOP/s", "FLOP/s", "the model's operations by training time, of all ranks")\
    X(double, ceiling_flops_per_s, none, "FLOP/s", "ceiling", "FLOP/s of a large product, of all ranks")     \
    SPEEDRUN_DATA_METRIC(X)                                                                                  \
    SPEEDRUN_OPTIMIZER_METRIC(X)                                                                             \
    SPEEDRUN_SUMMED_METRICS(X)                                                                               \
    X(int64_t, memory_bytes, none, "bytes", "device memory", "allocated on the first rank's device")         \
    X(int64_t, peak_rss_bytes, none, "bytes", "peak memory", "most that the first rank's process had resident")
// clang-format on

// The members, and fields(visit), which calls visit(pointer to member, MetricField) for each, in their order.
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

// Figures of the first rank, where they do not say otherwise.
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
    // Rolls up one more step: what of its figures the summary has too.
    void add(const StepMetrics& step);
};

#undef SPEEDRUN_METRICS
#undef SPEEDRUN_VISIT_METRIC
#undef SPEEDRUN_METRIC_MEMBER

// What is declared of a member.
template <class Struct, class T>
MetricField field_of(T Struct::*member) {
    MetricField found{};
    Struct::fields([&](auto one, const MetricField& field) {
        if constexpr (std::is_same_v<decltype(one), T Struct::*>)
            if (one == member) found = field;
    });
    return found;
}

// A line of metrics.jsonl without its end, and the text of summary.json.
std::string metrics_line(const StepMetrics& step);
std::string metrics_line(const Validation& validation);
std::string summary_text(const RunSummary& summary);

// The declarations as JSON, for programs that read these files: the build writes scripts/speedrun_report/metric_fields.json.
std::string metric_fields();

}  // namespace speedrun
