// The folder of a run, logs/<name>/: config.json, environment.json, metrics.jsonl, summary.json, run.log,
// checkpoints/. A folder that exists is never written into. The first rank writes it; the others have it
// silent.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace spdlog {
class logger;
}

namespace speedrun {

struct StepMetrics {
    int64_t step = 0;
    double loss = 0, grad_norm = 0, lr = 0;
    double step_ms = 0, train_ms = 0;
    double optimizer_ms = 0;     // after backward had ended
    double data_ms = 0;          // the host waited for batches
    double comm_exposed_ms = 0;  // the device waited for communication
    // Figures of the first rank: time in collectives, beside computing or not, and the bytes that it sent, by
    // kind.
    double comm_ms = 0;
    std::map<std::string, int64_t> bytes;
    double checkpoint_stall_ms = 0;  // training waited for the checkpoint of the step before
    int64_t tokens = 0;              // seen so far, this step included
    double tokens_per_s = 0;
};

struct RunSummary {
    std::string status;  // "done", "stopped", "diverged"
    std::string message;
    int64_t steps = 0, tokens = 0, parameters = 0;
    double startup_ms = 0, train_ms = 0;
    std::optional<double> train_loss, val_loss, target_loss, time_to_target_ms;
    double step_p50_ms = 0, step_p99_ms = 0, step_max_ms = 0;
    int64_t step_max_at = -1;
    double tokens_per_s = 0, flops_per_s = 0, ceiling_flops_per_s = 0;  // of all ranks together
    double data_ms = 0, optimizer_ms = 0, comm_exposed_ms = 0, comm_ms = 0,
           checkpoint_stall_ms = 0;                // of the first rank
    std::map<std::string, int64_t> bytes;          // that the first rank sent, by kind of collective
    int64_t memory_bytes = 0, peak_rss_bytes = 0;  // of the first rank
    int ranks = 1;
    std::string mesh, strategy;
    bool target_reached() const { return target_loss && val_loss && *val_loss <= *target_loss; }
};

class RunFolder {
  public:
    // Creates out/name. Throws a usage error that says what to do if it exists or cannot be made.
    RunFolder(const std::string& out, const std::string& name);

    // A run's folder that is there, to continue the run; keep_steps_before() comes before the first metrics.
    static RunFolder reopen(const std::string& out, const std::string& name);
    // Cuts metrics.jsonl back to what a run had written when it came to this step. Returns the step times of
    // what stays, from step 0 on. A line that was cut short by the end of its process goes too.
    std::vector<double> keep_steps_before(int64_t step);

    // The folder at this path as another rank has it: creates nothing and writes nothing.
    static RunFolder silent(const std::string& path);

    const std::string& path() const { return path_; }
    void write_config(const std::string& json);
    // environment.json, or, if a run is continued, environment_from_step_<N>.json beside it.
    void write_environment(const std::string& json, int64_t first_step = 0);
    void write_step(const StepMetrics& metrics);
    void write_validation(int64_t step, double loss, double train_ms);
    void write_summary(const RunSummary& summary);
    void log(const std::string& line);  // run.log, with the time
    // The first of metrics and summary that could not be written; a run goes on without them. Empty: none.
    const std::string& problem() const { return problem_; }

  private:
    RunFolder() = default;
    bool is_silent() const { return !log_; }
    void write_line(const std::string& line);  // of metrics.jsonl
    bool write_file(const std::string& name, const std::string& text);
    void open_log();
    void open_metrics(std::ios::openmode mode);
    std::string failure(const std::string& name) const;
    void note_problem(const std::string& text);

    std::string path_, problem_;
    std::ofstream metrics_;
    std::shared_ptr<spdlog::logger> log_;
};

}  // namespace speedrun
