#include "train/runlog/run_folder.h"

#include <fmt/format.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <filesystem>

#include "data/folder_lock.h"
#include "data/json_text.h"
#include "kernels/device/error.h"
#include "train/runlog/metrics_json.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

void check_name(const std::string& name) {
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
        throw_usage("--name {}: a run's name is one folder name without '/'", name);
    }
}

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
    open_metrics(std::ios::trunc);
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
    folder.open_log();
    if (!folder.lock_->note().empty()) folder.log(folder.lock_->note());
    return folder;
}

std::vector<double> RunFolder::keep_steps_before(int64_t step) {
    std::vector<double> step_ms;
    if (is_silent() || metrics_.is_open()) return step_ms;  // another rank's, or a new one: nothing to cut
    const std::string path = path_ + "/metrics.jsonl", kept = path + ".part";
    {
        std::ifstream from(path);
        std::ofstream to(kept);
        for (std::string line; std::getline(from, line);) {
            try {
                const Json json = parse_json<Json>(line);
                if (value_of(json, &StepMetrics::step) >= step) continue;
                if (json.at("event").get<std::string>() == "step")
                    step_ms.push_back(value_of(json, &StepMetrics::step_ms));
                to << line << '\n';
            } catch (const Json::exception&) {  // cut short by the end of its process, or damaged since
            } catch (const JsonError&) {
            }
        }
        to.close();
        if (!to) throw Error(ExitCode::failure, failure("metrics.jsonl.part"));
    }
    fs::rename(kept, path);
    open_metrics(std::ios::app);
    return step_ms;
}

void RunFolder::open_metrics(std::ios::openmode mode) {
    metrics_.open(path_ + "/metrics.jsonl", std::ios::out | mode);
    if (!metrics_) throw Error(ExitCode::failure, failure("metrics.jsonl"));
}

void RunFolder::open_log() {
    // Not registered by name: several runs of one process (tests) must not share a log.
    log_ = std::make_shared<spdlog::logger>(
        "run", std::make_shared<spdlog::sinks::basic_file_sink_mt>(path_ + "/run.log"));
    log_->set_pattern("%Y-%m-%d %H:%M:%S.%e %v");
    log_->flush_on(spdlog::level::info);
}

RunFolder RunFolder::silent(const std::string& path) {
    RunFolder folder;
    folder.path_ = path;
    return folder;
}

std::string RunFolder::failure(const std::string& name) const {
    return fmt::format("{}/{}: writing failed (disk full?)", path_, name);
}

void RunFolder::note_problem(const std::string& text) {
    if (!problem_.empty()) return;  // said once; what fails now may fail at every step
    problem_ = text;
    std::fprintf(stderr, "warning: %s; training goes on\n", text.c_str());
}

bool RunFolder::write_file(const std::string& name, const std::string& text) {
    if (is_silent()) return true;
    const std::string path = path_ + "/" + name, unfinished = path + ".part";
    std::ofstream file(unfinished);
    file << text;
    file.close();
    std::error_code error;
    if (file) fs::rename(unfinished, path, error);  // at no moment is there half a file of this name
    return file && !error;
}

void RunFolder::write_config(const std::string& json) {
    if (!write_file("config.json", json)) throw Error(ExitCode::failure, failure("config.json"));
}

void RunFolder::write_environment(const std::string& json, int64_t first_step) {
    const std::string name =
        first_step > 0 ? fmt::format("environment_from_step_{}.json", first_step) : "environment.json";
    if (!write_file(name, json)) throw Error(ExitCode::failure, failure(name));
}

void RunFolder::write_step(const StepMetrics& metrics) {
    write_line(metrics_line(metrics));
}

void RunFolder::write_line(const std::string& line) {
    if (is_silent()) return;
    lock_->expect_held();
    metrics_ << line << '\n' << std::flush;  // a reader, or a crash, finds every finished step
    if (metrics_) return;
    note_problem(failure("metrics.jsonl"));
    metrics_.clear();  // the next line may fit again
}

void RunFolder::write_validation(const Validation& validation) {
    write_line(metrics_line(validation));
}

void RunFolder::write_summary(const RunSummary& summary) {
    if (!write_file("summary.json", summary_text(summary))) note_problem(failure("summary.json"));
}

void RunFolder::log(const std::string& line) {
    if (!is_silent()) log_->info(line);
}

}  // namespace speedrun
