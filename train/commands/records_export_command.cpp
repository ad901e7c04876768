#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <map>
#include <vector>

#include "data/dataset.h"
#include "data/durable_file.h"
#include "data/text_file.h"
#include "kernels/device/error.h"
#include "train/commands/records_export.h"
#include "train/records/gzip.h"
#include "train/records/mlperf_log.h"
#include "train/records/record_folder.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;

constexpr const char* kExportFooter =
    "--mlperf writes OUT/candidate/result_N.txt and OUT/baseline/result_N.txt, one for each run. Their lines\n"
    ":::MLLOG follow MLPerf's rules for training 6.1.0, open division. Sources of the values:\n"
    "  time_ms         init_start: began_utc (whole seconds); run_start: startup_ms later; everything else:\n"
    "                  train_ms after run_start. So run_stop - run_start is the run's training time.\n"
    "  evaluations     step, loss and train_ms of `validations`. A record has no durations of validations:\n"
    "                  start and stop have one time.\n"
    "  eval_accuracy   exp(-loss), the geometric mean of the right token's probability, because the rules ask\n"
    "                  for a value below 1; the loss in nats is in the metadata\n"
    "  samples         are tokens: of the shards in `data`, of the track's validation, of metrics.jsonl\n"
    "  precision, batch, parallelism   config, of the last stage; `hardware` for the compute type and platform\n"
    "  status          success: done with the last loss at or below the target; else aborted\n"
    "submission_benchmark is llama31_8b, the nearest that the rules list; this is no submission to MLPerf.\n"
    "To check: python3 -m mlperf_logging.compliance_checker OUT/candidate/result_0.txt  (pip install mlperf-logging)\n"
    "Exit codes: 0 written; 2 bad usage, or a file is there; 3 the record is damaged.";

using Files = std::vector<std::pair<std::string, std::string>>;

std::string metrics_of(const std::string& folder, const RecordRun& run) {
    const std::string path = (fs::path(folder) / run.file).string();
    if (const std::string found = sha256_file(path); found != run.sha256)
        throw_data("{}: SHA-256 {}, record.json says {}", path, found, run.sha256);
    return gunzip(read_text_file(path), path);
}

Files mlperf_files(const Record& record, const RecordExportOptions& options) {
    const fs::path folder = fs::weakly_canonical(options.record);
    const MlperfFacts facts{.organisation = options.organisation,
                            .validation_tokens = read_track(folder.parent_path().string()).validation_tokens,
                            .folder = options.record};
    Files files;
    std::map<std::string, int> made;  // runs by side
    for (const RecordRun& run : record.runs) {
        const std::string name = fmt::format("{}/result_{}.txt", run.side, made[run.side]++);
        files.emplace_back(name, mlperf_log(record, run, metrics_of(options.record, run), facts));
    }
    return files;
}

}  // namespace

CLI::App* add_record_export(CLI::App& records, RecordExportOptions& options) {
    CLI::App* command = records.add_subcommand("export", "write a record's runs in another program's format");
    command->add_option("record", options.record, "record's folder")->required();
    command->add_flag("--mlperf", options.mlperf, "as logs for MLPerf's compliance checker");
    command->add_option("--out", options.out, "folder to write; default: logs/mlperf/ and the record's name");
    command->add_option("--org", options.organisation, "submission_org, which a record does not have")
        ->capture_default_str();
    command->footer(kExportFooter);
    return command;
}

int run_record_export(const RecordExportOptions& options) {
    if (!options.mlperf) throw_usage("say the format: --mlperf");
    if (options.organisation.empty()) throw_usage("--org is empty: the rules ask for a name");
    if (!is_record_folder(options.record)) throw_usage("{}: no record: no record.json in it", options.record);
    const Record record = read_record(options.record);
    const Files files = mlperf_files(record, options);
    const fs::path out =
        options.out.empty() ? fs::path("logs/mlperf") / record.folder_name() : fs::path(options.out);
    for (const auto& [name, text] : files) {
        if (fs::exists(out / name))
            throw_usage("{} is there and is not overwritten: remove it, or name another --out",
                        (out / name).string());
    }
    for (const auto& [name, text] : files) {
        std::error_code error;
        fs::create_directories((out / name).parent_path(), error);
        if (error) throw_usage("{}: cannot be made: {}", out.string(), error.message());
        write_file((out / name).string(), text);
    }
    std::printf("%zu runs of %s in %s\n", files.size(), record.name.c_str(), out.string().c_str());
    return 0;
}

}  // namespace speedrun
