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
    // Of the first rank: time in collectives, beside computing or not, and the bytes that it sent, by kind.
    double comm_ms = 0;
    std::map<std::string, int64_t> bytes;
    int64_t tokens = 0;  // seen so far, this step included
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
    double tokens_per_s = 0, flops_per_s = 0, ceiling_flops_per_s = 0;       // of all ranks together
    double data_ms = 0, optimizer_ms = 0, comm_exposed_ms = 0, comm_ms = 0;  // of the first rank
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

    // The folder at this path as another rank has it: creates nothing and writes nothing.
    static RunFolder silent(const std::string& path);

    const std::string& path() const { return path_; }
    void write_config(const std::string& json);
    void write_environment(const std::string& json);
    void write_step(const StepMetrics& metrics);
    void write_validation(int64_t step, double loss, double train_ms);
    void write_summary(const RunSummary& summary);
    void log(const std::string& line);  // run.log, with the time

  private:
    RunFolder() = default;
    bool is_silent() const { return !log_; }
    void write_line(const std::string& line);  // of metrics.jsonl
    void write_file(const std::string& name, const std::string& text);
    void check(const std::ofstream& stream, const char* name);

    std::string path_;
    std::ofstream metrics_;
    std::shared_ptr<spdlog::logger> log_;
};

}  // namespace speedrun
