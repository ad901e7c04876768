// The folder of a run, logs/<name>/: config.json, data.json, environment.json, metrics.jsonl, summary.json, run.log,
// checkpoints/. A folder that exists is never written into. The first rank writes it, locked against other processes
// (FolderLock) for the life of this object; the others have it silent.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "train/runlog/line_file.h"
#include "train/runlog/metrics.h"

namespace spdlog {
class logger;
}

namespace speedrun {

class FolderLock;

class RunFolder {
  public:
    // Creates out/name. Throws a usage error that says what to do if it exists or cannot be made.
    RunFolder(const std::string& out, const std::string& name);

    // The lock of a run's folder that is there; null if it is not. Usage error if another process writes it.
    static std::shared_ptr<FolderLock> lock(const std::string& out, const std::string& name);
    // A run's folder that is there, to continue the run; keep_steps_before() is called before the first metrics. Takes the
    // lock, unless it is given.
    static RunFolder reopen(const std::string& out, const std::string& name,
                            std::shared_ptr<FolderLock> lock = nullptr);
    struct Kept {
        bool any = false;             // false: a new folder, or another rank's
        std::vector<double> step_ms;  // from step 0 on
        std::vector<Validation> validations;
    };
    // Cuts metrics.jsonl back to the lines of steps before this one, which it returns. A line that was cut short by the
    // end of its process goes too.
    Kept keep_steps_before(int64_t step);

    // The folder at this path as another rank has it: creates nothing and writes nothing.
    static RunFolder silent(const std::string& path);

    const std::string& path() const { return path_; }
    void write_config(const std::string& json);
    void write_data(const std::string& json);  // data.json: identity of the shards
    // environment.json, or, if a run is continued, environment_from_step_<N>.json beside it.
    void write_environment(const std::string& json, int64_t first_step = 0);
    void write_step(const StepMetrics& metrics);
    void write_validation(const Validation& validation);
    void write_summary(const RunSummary& summary);
    void log(const std::string& line);  // run.log, with the time
    // The first failure to write metrics, summary or log, with how many lines are missing; a run goes on without them. Empty:
    // none.
    std::string problem() const;

  private:
    RunFolder() = default;
    bool is_silent() const { return !log_; }
    void write_line(const std::string& line);  // of metrics.jsonl
    // Returns why it could not be written, or nothing.
    std::string write_file(const std::string& name, const std::string& text);
    void open_log();
    void open_metrics(LineFile::Begin begin);
    std::string failure(const std::string& name, const std::string& reason) const;
    void note_problem(const std::string& text);
    void warn(const std::string& text);

    std::string path_, problem_;
    std::shared_ptr<FolderLock> lock_;
    std::unique_ptr<LineFile> metrics_;
    std::shared_ptr<LineFile> log_file_;  // the logger's
    std::shared_ptr<spdlog::logger> log_;
};

}  // namespace speedrun
