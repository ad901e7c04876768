// The folder of a run, logs/<name>/: config.json, data.json, tokenizer/, environment.json, metrics.jsonl, summary.json, run.log,
// checkpoints/. An existing folder is never overwritten. Rank 0 writes it, locked against other processes (FolderLock) for the
// lifetime of this object; on the other ranks the object is silent.
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
struct DatasetInfo;

// Subfolder of a run: a dataset.json without shards, and the vocabulary.
inline constexpr const char* kTokenizerFolder = "tokenizer";

class RunFolder {
  public:
    // Creates out/name. Throws a usage error, with the remedy, if it exists or cannot be created.
    RunFolder(const std::string& out, const std::string& name);

    // Returns the lock of an existing run's folder; null if the folder does not exist. Usage error if another process writes
    // it.
    static std::shared_ptr<FolderLock> lock(const std::string& out, const std::string& name);
    // Opens an existing run's folder to continue the run; keep_steps_before() must be called before the first metrics. Takes
    // the lock unless it is passed.
    static RunFolder reopen(const std::string& out, const std::string& name,
                            std::shared_ptr<FolderLock> lock = nullptr);
    struct Kept {
        bool any = false;             // false: a new folder, or not on rank 0
        std::vector<double> step_ms;  // index: step
        std::vector<Validation> validations;
    };
    // Truncates metrics.jsonl to the lines of steps before this one, and returns these. An incomplete last line, cut short by
    // the end of its process, is removed as well.
    Kept keep_steps_before(int64_t step);

    // The folder at this path on another rank: creates and writes nothing.
    static RunFolder silent(const std::string& path);

    const std::string& path() const { return path_; }
    void write_config(const std::string& json);
    void write_data(const std::string& json);  // data.json: identity of the shards
    // Stores the tokenizer of the data and a copy of its vocabulary file (empty: none). An existing copy is kept.
    void write_tokenizer(const DatasetInfo& info, const std::string& vocabulary);
    // environment.json or, if a run is continued, environment_from_step_<N>.json in the same folder.
    void write_environment(const std::string& json, int64_t first_step = 0);
    void write_step(const StepMetrics& metrics);
    void write_validation(const Validation& validation);
    void write_summary(const RunSummary& summary);
    void log(const std::string& line);  // writes to run.log, with the time
    // Returns the first failure to write metrics, summary or log, with the number of missing lines; empty if none. A run
    // continues without these lines.
    std::string problem() const;

  private:
    RunFolder() = default;
    bool is_silent() const { return !log_; }
    void write_line(const std::string& line);  // to metrics.jsonl
    // Returns the reason if the file could not be written; empty on success.
    std::string write_file(const std::string& name, const std::string& text);
    void open_log();
    void open_metrics(LineFile::Begin begin);
    std::string failure(const std::string& name, const std::string& reason) const;
    void note_problem(const std::string& text);
    void warn(const std::string& text);

    std::string path_, problem_;
    std::shared_ptr<FolderLock> lock_;
    std::unique_ptr<LineFile> metrics_;
    std::shared_ptr<LineFile> log_file_;  // shared with the logger
    std::shared_ptr<spdlog::logger> log_;
};

}  // namespace speedrun
