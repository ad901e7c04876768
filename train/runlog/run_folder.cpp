#include "train/runlog/run_folder.h"

#include <fmt/format.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "data/damaged_lines.h"
#include "data/dataset.h"
#include "data/durable_file.h"
#include "data/folder_lock.h"
#include "data/json_text.h"
#include "data/open_file.h"
#include "data/sha256.h"
#include "data/text_file.h"
#include "kernels/device/error.h"
#include "train/runlog/metrics_json.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

void check_name(const std::string& name) {
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
        throw_usage("--name {}: a run's name is one folder name without '/'", shown_text(name));
    }
    // The name is printed and written to JSON.
    const bool control =
        std::any_of(name.begin(), name.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
    if (control || !is_utf8(name))
        throw_usage("--name {}: a run's name is UTF-8 without control characters", shown_text(name));
}

// A symbolic link would make the run write outside its folder.
void expect_no_links(const fs::path& folder) {
    for (const char* name :
         {"checkpoints", "checkpoints/final", "checkpoints/final/model.safetensors", "config.json",
          "config.json.part", "metrics.jsonl", "metrics.jsonl.part", "run.log", "summary.json",
          "summary.json.part", "tokenizer", "trace.json", "trace.json.part"}) {
        std::error_code error;
        const fs::path path = folder / name;
        if (fs::is_symlink(path, error))
            throw_usage(
                "{}: a symbolic link to {}; a run writes only inside of its folder: move its target there",
                path.string(), fs::read_symlink(path, error).string());
    }
}

// Log sink without spdlog's error handler, which prints to stderr.
class LineSink final : public spdlog::sinks::base_sink<std::mutex> {
  public:
    explicit LineSink(std::shared_ptr<LineFile> file) : file_(std::move(file)) {}

  private:
    void sink_it_(const spdlog::details::log_msg& message) override {
        spdlog::memory_buf_t line;
        formatter_->format(message, line);
        file_->write({line.data(), line.size()});
    }
    void flush_() override {}

    const std::shared_ptr<LineFile> file_;
};

}  // namespace

RunFolder::RunFolder(const std::string& out, const std::string& name) {
    check_name(name);
    const fs::path folder = fs::path(out) / name;
    std::error_code error;
    fs::create_directories(out, error);
    if (error) throw_usage("--out {}: the folder cannot be made: {}", out, error.message());
    const bool created = fs::create_directory(folder, error);
    if (error) throw_usage("run folder {}: cannot be made: {}", folder.string(), error.message());
    if (!created) {
        const std::string writer = FolderLock::writer(folder.string());
        throw_usage(
            "run folder {} exists and is not overwritten: {}, give the run "
            "another name with --name, or remove the folder",
            folder.string(),
            writer.empty() ? "continue it with --resume auto"
                           : "it is being written by " + writer + "; stop that");
    }
    path_ = folder.string();
    lock_ = std::make_shared<FolderLock>(path_);
    open_metrics(LineFile::Begin::empty);
    open_log();
}

std::shared_ptr<FolderLock> RunFolder::lock(const std::string& out, const std::string& name) {
    check_name(name);
    const fs::path folder = fs::path(out) / name;
    return fs::exists(folder) ? std::make_shared<FolderLock>(folder.string()) : nullptr;
}

RunFolder RunFolder::reopen(const std::string& out, const std::string& name,
                            std::shared_ptr<FolderLock> lock) {
    RunFolder folder;
    folder.lock_ = lock ? std::move(lock) : RunFolder::lock(out, name);
    if (!folder.lock_) throw_usage("run folder {}/{}: is not there", out, name);
    folder.path_ = (fs::path(out) / name).string();
    expect_no_links(folder.path_);
    folder.open_log();
    if (!folder.lock_->note().empty()) folder.log(folder.lock_->note());
    return folder;
}

RunFolder::Kept RunFolder::keep_steps_before(int64_t step) {
    Kept kept;
    if (is_silent() || metrics_) return kept;  // not rank 0, or a new folder: nothing to truncate
    kept.any = true;
    const std::string path = path_ + "/metrics.jsonl", unfinished = path + ".part";
    DamagedLines damaged;
    {
        expect_regular_file(path);
        std::ifstream from(path);
        std::string lines;
        int64_t number = 0;
        for (std::string line; std::getline(from, line);) {
            ++number;
            try {
                const Json json = parse_json<Json>(line);
                if (value_of(json, &StepMetrics::step) >= step) continue;
                if (json.at("event").get<std::string>() == "step")
                    kept.step_ms.push_back(value_of(json, &StepMetrics::step_ms));
                else if (!json.at("loss").is_null())
                    kept.validations.push_back({.step = value_of(json, &Validation::step),
                                                .loss = value_of(json, &Validation::loss),
                                                .train_ms = value_of(json, &Validation::train_ms)});
                lines += line + '\n';
            } catch (const Json::exception&) {
                damaged.add(number);
            } catch (const JsonError&) {
                if (!from.eof()) damaged.add(number);  // an incomplete last line is expected
            }
        }
        LineFile to(unfinished, LineFile::Begin::empty);
        if (!to.write(lines)) throw Error(ExitCode::failure, failure("metrics.jsonl.part", to.reason()));
    }
    fs::rename(unfinished, path);
    open_metrics(LineFile::Begin::at_the_end);
    if (damaged.any()) warn(fmt::format("{}: {}", path, damaged.text()));
    return kept;
}

void RunFolder::open_metrics(LineFile::Begin begin) {
    metrics_ = std::make_unique<LineFile>(path_ + "/metrics.jsonl", begin);
    if (!metrics_->is_open()) throw Error(ExitCode::failure, failure("metrics.jsonl", metrics_->reason()));
}

void RunFolder::open_log() {
    // Not registered by name: several runs in one process (tests) must not share a log.
    log_file_ = std::make_shared<LineFile>(path_ + "/run.log", LineFile::Begin::at_the_end);
    if (!log_file_->is_open()) throw Error(ExitCode::failure, failure("run.log", log_file_->reason()));
    log_ = std::make_shared<spdlog::logger>("run", std::make_shared<LineSink>(log_file_));
    log_->set_pattern("%Y-%m-%d %H:%M:%S.%e %v");
    log_->set_error_handler([](const std::string&) {});  // the default handler prints to stderr
}

RunFolder RunFolder::silent(const std::string& path) {
    RunFolder folder;
    folder.path_ = path;
    return folder;
}

std::string RunFolder::failure(const std::string& name, const std::string& reason) const {
    return fmt::format("{}/{}: writing failed: {}", path_, name, reason);
}

void RunFolder::note_problem(const std::string& text) {
    if (!problem_.empty()) return;  // reported once; the failure may repeat at every step
    problem_ = text;
    warn(text + "; training goes on");
}

void RunFolder::warn(const std::string& text) {
    std::fprintf(stderr, "warning: %s\n", text.c_str());
    if (log_) log_->info("warning: " + text);
}

std::string RunFolder::problem() const {
    if (problem_.empty()) return problem_;
    std::string lost;
    for (const auto& [file, name] :
         {std::pair{metrics_.get(), "metrics.jsonl"}, std::pair{log_file_.get(), "run.log"}})
        if (file && file->num_dropped() > 0)
            lost += fmt::format("{}{} lines of {}", lost.empty() ? "" : ", ", file->num_dropped(), name);
    return lost.empty() ? problem_ : fmt::format("{}; missing: {}", problem_, lost);
}

std::string RunFolder::write_file(const std::string& name, const std::string& text) {
    if (is_silent()) return "";
    try {
        speedrun::write_file(path_ + "/" + name, text, OutputFile::Path::own);
        return "";
    } catch (const Error& error) {
        return error.what();
    }
}

void RunFolder::write_config(const std::string& json) {
    if (const std::string reason = write_file("config.json", json); !reason.empty())
        throw Error(ExitCode::failure, failure("config.json", reason));
}

void RunFolder::write_data(const std::string& json) {
    if (const std::string reason = write_file("data.json", json + "\n"); !reason.empty())
        throw Error(ExitCode::failure, failure("data.json", reason));
}

void RunFolder::write_tokenizer(const DatasetInfo& info, const std::string& vocabulary) {
    const fs::path folder = fs::path(path_) / kTokenizerFolder, description = folder / "dataset.json";
    if (is_silent() || fs::exists(description)) return;
    DatasetInfo stored = info;
    stored.shards.clear();
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) throw Error(ExitCode::failure, failure(kTokenizerFolder, error.message()));
    if (!vocabulary.empty()) {
        const std::string text = read_text_file(vocabulary);
        Sha256 hash;
        hash.update(text.data(), text.size());
        stored.vocabulary_sha256 = hash.hex();
        const std::string name = std::string(kTokenizerFolder) + "/" + kVocabularyFile;
        if (const std::string reason = write_file(name, text); !reason.empty())
            throw Error(ExitCode::failure, failure(name, reason));
    }
    write_dataset_info(description.string(), stored);  // last: it marks a complete copy
}

void RunFolder::write_environment(const std::string& json, int64_t first_step) {
    const std::string name =
        first_step > 0 ? fmt::format("environment_from_step_{}.json", first_step) : "environment.json";
    if (const std::string reason = write_file(name, json); !reason.empty())
        throw Error(ExitCode::failure, failure(name, reason));
}

void RunFolder::write_step(const StepMetrics& metrics) {
    write_line(metrics_line(metrics));
}

void RunFolder::write_line(const std::string& line) {
    if (is_silent()) return;
    lock_->expect_held();
    // One write per line: after a crash the file has every finished step.
    if (!metrics_->write(line + '\n')) note_problem(failure("metrics.jsonl", metrics_->reason()));
}

void RunFolder::write_validation(const Validation& validation) {
    write_line(metrics_line(validation));
}

void RunFolder::write_summary(const RunSummary& summary) {
    if (const std::string reason = write_file("summary.json", summary_text(summary)); !reason.empty())
        note_problem(failure("summary.json", reason));
}

void RunFolder::log(const std::string& line) {
    if (is_silent()) return;
    log_->info(line);
    if (log_file_->num_dropped() > 0) note_problem(failure("run.log", log_file_->reason()));
}

}  // namespace speedrun
