#include "train/record/run_folder.h"

#include <fmt/format.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/spdlog.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/device/error.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

Json optional_number(const std::optional<double>& value) {
    return value ? Json(*value) : Json(nullptr);
}

}  // namespace

RunFolder::RunFolder(const std::string& out, const std::string& name) {
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos) {
        throw_usage("--name {}: a run's name is one folder name without '/'", name);
    }
    const std::filesystem::path folder = std::filesystem::path(out) / name;
    std::error_code error;
    std::filesystem::create_directories(out, error);
    if (error) throw_usage("--out {}: the folder cannot be made: {}", out, error.message());
    const bool created = std::filesystem::create_directory(folder, error);
    if (error) throw_usage("run folder {}: cannot be made: {}", folder.string(), error.message());
    if (!created) {
        throw_usage(
            "run folder {} exists and is not overwritten: give the run another name with --name, or remove "
            "the folder",
            folder.string());
    }
    path_ = folder.string();
    metrics_.open(folder / "metrics.jsonl");
    check(metrics_, "metrics.jsonl");
    // Not registered by name: several runs of one process (tests) must not share a log.
    log_ = std::make_shared<spdlog::logger>(
        "run", std::make_shared<spdlog::sinks::basic_file_sink_mt>((folder / "run.log").string()));
    log_->set_pattern("%Y-%m-%d %H:%M:%S.%e %v");
    log_->flush_on(spdlog::level::info);
}

RunFolder RunFolder::silent(const std::string& path) {
    RunFolder folder;
    folder.path_ = path;
    return folder;
}

void RunFolder::check(const std::ofstream& stream, const char* name) {
    if (!stream)
        throw Error(ExitCode::failure, fmt::format("{}/{}: writing failed (disk full?)", path_, name));
}

void RunFolder::write_file(const std::string& name, const std::string& text) {
    if (is_silent()) return;
    std::ofstream file(path_ + "/" + name);
    file << text;
    file.close();
    check(file, name.c_str());
}

void RunFolder::write_config(const std::string& json) {
    write_file("config.json", json);
}

void RunFolder::write_environment(const std::string& json) {
    write_file("environment.json", json);
}

void RunFolder::write_step(const StepMetrics& m) {
    const Json line = {{"event", "step"},
                       {"step", m.step},
                       {"loss", m.loss},
                       {"grad_norm", m.grad_norm},
                       {"lr", m.lr},
                       {"step_ms", m.step_ms},
                       {"train_ms", m.train_ms},
                       {"tokens", m.tokens},
                       {"tokens_per_s", m.tokens_per_s},
                       {"optimizer_ms", m.optimizer_ms},
                       {"data_ms", m.data_ms},
                       {"comm_exposed_ms", m.comm_exposed_ms},
                       {"comm_ms", m.comm_ms},
                       {"bytes", Json(m.bytes)}};
    write_line(line.dump());
}

void RunFolder::write_line(const std::string& line) {
    if (is_silent()) return;
    metrics_ << line << '\n' << std::flush;  // a reader, or a crash, finds every finished step
    check(metrics_, "metrics.jsonl");
}

void RunFolder::write_validation(int64_t step, double loss, double train_ms) {
    write_line(Json({{"event", "val"}, {"step", step}, {"loss", loss}, {"train_ms", train_ms}}).dump());
}

void RunFolder::write_summary(const RunSummary& s) {
    const Json json = {{"status", s.status},
                       {"message", s.message},
                       {"steps", s.steps},
                       {"tokens", s.tokens},
                       {"parameters", s.parameters},
                       {"ranks", s.ranks},
                       {"mesh", s.mesh},
                       {"strategy", s.strategy},
                       {"startup_ms", s.startup_ms},
                       {"train_ms", s.train_ms},
                       {"train_loss", optional_number(s.train_loss)},
                       {"val_loss", optional_number(s.val_loss)},
                       {"target_loss", optional_number(s.target_loss)},
                       {"target_reached", s.target_reached()},
                       {"time_to_target_ms", optional_number(s.time_to_target_ms)},
                       {"step_ms",
                        {{"p50", s.step_p50_ms},
                         {"p99", s.step_p99_ms},
                         {"max", s.step_max_ms},
                         {"max_at_step", s.step_max_at}}},
                       {"tokens_per_s", s.tokens_per_s},
                       {"flops_per_s", s.flops_per_s},
                       {"ceiling_flops_per_s", s.ceiling_flops_per_s},
                       {"data_ms", s.data_ms},
                       {"optimizer_ms", s.optimizer_ms},
                       {"comm_exposed_ms", s.comm_exposed_ms},
                       {"comm_ms", s.comm_ms},
                       {"bytes", Json(s.bytes)},
                       {"memory_bytes", s.memory_bytes},
                       {"peak_rss_bytes", s.peak_rss_bytes}};
    write_file("summary.json", json.dump(2) + "\n");
}

void RunFolder::log(const std::string& line) {
    if (!is_silent()) log_->info(line);
}

}  // namespace speedrun
