#include "train/records/attempt.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <tuple>

#include "data/durable_file.h"
#include "data/json_text.h"
#include "data/sha256.h"
#include "data/text_file.h"
#include "kernels/device/error.h"
#include "train/records/gzip.h"
#include "train/records/record_text.h"
#include "train/runlog/metrics_json.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kInterrupted = ".interrupted-";
constexpr const char* kAttemptFile = "attempt.json";
constexpr const char* kMachineFile = "machine.json";

Json terms_json(const AttemptTerms& terms) {
    Json json = {{"name", terms.name},
                 {"track", terms.track},
                 {"class", terms.race},
                 {"systems_only", terms.systems_only},
                 {"seeds", terms.seeds},
                 {"git_sha", terms.git_sha},
                 {"binary_sha256", terms.binary_sha256},
                 {"machine", terms.machine},
                 {"config", parse_json<Json>(terms.config)},
                 {"baseline", nullptr},
                 {"baseline_binary_sha256", terms.baseline_binary_sha256}};
    if (terms.baseline)
        json["baseline"] = {{"name", terms.baseline->name},
                            {"record", terms.baseline->record},
                            {"config", parse_json<Json>(terms.baseline->config)}};
    return json;
}

Json read_json(const fs::path& path) {
    try {
        return parse_json<Json>(read_text_file(path.string()));
    } catch (const JsonError& error) {
        throw_data("{}: not valid JSON: {}", path.string(), error.what());
    }
}

// Errors name the file if a key is missing or of another type.
template <class T>
T value_in(const Json& json, const char* pointer, const fs::path& path) {
    try {
        return json.at(Json::json_pointer(pointer)).get<T>();
    } catch (const Json::exception& error) {
        throw_data("{}: {}", path.string(), error.what());
    }
}

// A run's summary.json. Single members are read, as summaries of older builds may lack others.
class SummaryFile {
  public:
    explicit SummaryFile(const fs::path& run_folder)
        : path_(run_folder / "summary.json"), json_(read_json(path_)) {}

    template <class T>
    auto value(T RunSummary::*member) const {
        try {
            return value_of(json_, member);
        } catch (const std::exception& error) {
            throw_data("{}: {}", path_.string(), error.what());
        }
    }
    template <class T>
    bool has(T RunSummary::*member) const {
        return json_.contains(field_of(member).key);
    }

  private:
    const fs::path path_;
    const Json json_;
};

// None: the run was stopped directly after its end, or belongs to an older attempt.
std::optional<MachineState> machine_in(const fs::path& run_folder) {
    const std::string path = (run_folder / kMachineFile).string();
    if (!fs::exists(path)) return std::nullopt;
    return machine_state_from_json(read_text_file(path), path);
}

void expect_same_terms(const fs::path& folder, const Json& before, const Json& now) {
    std::string text;
    for (const KeyDifference& d : key_differences(before.dump(), now.dump()))
        text += fmt::format("\n  {}: {} when it began, {} now", d.key, d.before, d.after);
    if (text.empty()) return;
    throw_usage(
        "{} holds an unfinished attempt that was begun otherwise:{}\n"
        "All runs of a record are made alike: put this back, or begin a new attempt with another --name, or "
        "remove the folder",
        folder.string(), text);
}

int64_t count_steps(const std::string& text) {
    int64_t count = 0;
    for (size_t at = 0; (at = text.find("\"event\":\"step\"", at)) != std::string::npos; ++at) ++count;
    return count;
}

// True if the folder has files that no new attempt has.
bool has_other_files(const fs::path& folder) {
    const auto is_other = [](const fs::directory_entry& entry) {
        const std::string name = entry.path().filename().string();
        return name != kFolderLock && name != kAttemptFile && name != std::string(kAttemptFile) + ".part";
    };
    return std::any_of(fs::directory_iterator(folder), {}, is_other);
}

std::string utc_date() {
    return fmt::format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr)));
}

// Splits a build's commit text into the commit and whether it ended in "-dirty".
std::pair<std::string, bool> commit_of(const std::string& text) {
    constexpr std::string_view kDirty = "-dirty";
    const bool dirty = text.ends_with(kDirty);
    return {text.substr(0, text.size() - (dirty ? kDirty.size() : 0)), dirty};
}

ProgramOfRecord program_of(const Json& environment, const fs::path& file, const std::string& binary_sha256) {
    ProgramOfRecord program{.git_sha = "", .dirty = false, .binary_sha256 = binary_sha256, .build = ""};
    std::tie(program.git_sha, program.dirty) =
        commit_of(value_in<std::string>(environment, "/git_sha", file));
    program.build = value_in<Json>(environment, "/build", file).dump();
    return program;
}

// Two builds read one config: keys known to both must have equal values, otherwise they trained different models.
void expect_config_of(const fs::path& file, const std::string& config) {
    for (const KeyDifference& d : key_differences(config, read_text_file(file.string()))) {
        if (d.key == "seed" || d.before == "nothing" || d.after == "nothing") continue;
        throw_data("{}: {} is {}, the attempt's is {}: these two builds do not read the config alike",
                   file.string(), d.key, d.after, d.before);
    }
}

}  // namespace

std::string AttemptRun::name() const {
    return fmt::format("{}-seed{}", side, seed);
}

std::vector<AttemptRun> runs_of(const AttemptTerms& terms) {
    std::vector<AttemptRun> runs;
    for (size_t round = 0; round < terms.seeds.size(); ++round) {
        std::vector<std::string> sides = {kCandidate};
        if (terms.baseline) sides.push_back(kBaseline);
        if (round % 2 == 1) std::reverse(sides.begin(), sides.end());
        for (const std::string& side : sides)
            runs.push_back({static_cast<int64_t>(runs.size()), side, terms.seeds[round]});
    }
    return runs;
}

AttemptFolder::AttemptFolder(const std::string& work, const AttemptTerms& terms)
    : terms_(terms), path_((fs::path(work) / terms.name).string()) {
    const fs::path file = fs::path(path_) / kAttemptFile;
    const Json json = terms_json(terms);
    std::error_code error;
    fs::create_directories(path_, error);
    if (error) throw_usage("--work {}: the folder cannot be made: {}", work, error.message());
    if (!fs::exists(file) && has_other_files(path_))
        throw_usage("{} is there and holds no attempt: take another --name", path_);
    lock_ = std::make_unique<FolderLock>(path_);
    if (fs::exists(file)) {
        const Json before = read_json(file);
        date_ = value_in<std::string>(before, "/date", file);
        expect_same_terms(path_, value_in<Json>(before, "/plan", file), json);
        return;
    }
    date_ = utc_date();
    write_file(file.string(), Json({{"date", date_}, {"plan", json}}).dump(2) + "\n");
}

bool AttemptFolder::is_finished(const AttemptRun& run) const {
    const fs::path folder = fs::path(path_) / run.name();
    if (!fs::exists(folder / "summary.json")) return false;
    const std::string status = SummaryFile(folder).value(&RunSummary::status);
    if (status == "diverged") return true;
    if (status != "done") return false;
    const std::string metrics = (folder / "metrics.jsonl").string();
    const RunMetrics made = read_unfinished_metrics(read_text_file(metrics), metrics);
    return made.validated_at_end && !made.damaged.any();  // lines may be missing after a full disk
}

std::vector<AttemptRun> AttemptFolder::remaining() {
    std::vector<AttemptRun> runs;
    for (const AttemptRun& run : runs_of(terms_)) {
        if (is_finished(run)) continue;
        runs.push_back(run);
        const std::string folder = (fs::path(path_) / run.name()).string();
        if (!fs::exists(folder)) continue;
        if (const std::string writer = FolderLock::writer(folder); !writer.empty())
            throw_usage("{} is still being written by {}: wait until it ends, or stop it", folder, writer);
        int number = 1;
        while (fs::exists(folder + kInterrupted + std::to_string(number))) ++number;
        fs::rename(folder, folder + kInterrupted + std::to_string(number));
    }
    return runs;
}

AttemptFolder::Outcome AttemptFolder::outcome(const AttemptRun& run) const {
    const SummaryFile summary(fs::path(path_) / run.name());
    Outcome outcome{.status = summary.value(&RunSummary::status), .loss = {}, .marked = ""};
    if (outcome.status == "done") outcome.loss = summary.value(&RunSummary::val_loss);
    outcome.startup_ms = summary.value(&RunSummary::startup_ms);
    outcome.train_ms = summary.value(&RunSummary::train_ms);
    if (const auto state = machine_in(fs::path(path_) / run.name())) outcome.marked = state->problem();
    return outcome;
}

void AttemptFolder::keep_machine(const AttemptRun& run, const MachineState& state) {
    const fs::path folder = fs::path(path_) / run.name();
    if (fs::exists(folder)) write_file((folder / kMachineFile).string(), machine_state_to_json(state));
}

double AttemptFolder::mean_run_ms(const std::string& side) const {
    double sum = 0;
    int count = 0;
    for (const AttemptRun& run : runs_of(terms_)) {
        if (run.side != side || !is_finished(run)) continue;
        const Outcome made = outcome(run);
        sum += made.startup_ms + made.train_ms;
        ++count;
    }
    return count > 0 ? sum / count : 0;
}

std::vector<InterruptedRun> AttemptFolder::interrupted() const {
    std::vector<std::string> folders;
    for (const auto& entry : fs::directory_iterator(path_)) folders.push_back(entry.path().string());
    std::sort(folders.begin(), folders.end());
    std::vector<InterruptedRun> runs;
    for (const AttemptRun& run : runs_of(terms_)) {
        const std::string prefix = (fs::path(path_) / run.name()).string() + kInterrupted;
        for (const std::string& folder : folders) {
            if (folder.rfind(prefix, 0) != 0) continue;
            const std::string metrics = folder + "/metrics.jsonl";
            const int64_t steps =
                fs::exists(metrics) ? read_unfinished_metrics(read_text_file(metrics), metrics).steps : 0;
            runs.push_back({run.side, run.seed, steps});
        }
    }
    return runs;
}

AttemptFolder::Result AttemptFolder::result() const {
    Result result;
    Record& record = result.record;
    record.name = terms_.name;
    record.track = terms_.track;
    record.race = terms_.race;
    record.date = date_;
    record.systems_only = terms_.systems_only;
    std::tie(record.git_sha, record.dirty) = commit_of(terms_.git_sha);
    record.binary_sha256 = terms_.binary_sha256;
    record.config = terms_.config;
    record.baseline = terms_.baseline;
    const std::vector<AttemptRun> runs = runs_of(terms_);
    for (const AttemptRun& run : runs) {
        const fs::path folder = fs::path(path_) / run.name(), environment_file = folder / "environment.json";
        const SummaryFile summary(folder);
        const Json environment = read_json(environment_file);
        const std::string text = read_text_file((folder / "metrics.jsonl").string());
        const RunMetrics metrics = read_metrics(text, (folder / "metrics.jsonl").string());
        RecordRun made;
        made.side = run.side;
        made.order = run.order;
        made.seed = run.seed;
        made.status = summary.value(&RunSummary::status);
        made.began_utc = value_in<std::string>(environment, "/time_utc", environment_file);
        made.startup_ms = summary.value(&RunSummary::startup_ms);
        if (summary.has(&RunSummary::wall_s)) made.wall_s = summary.value(&RunSummary::wall_s);
        made.machine = machine_in(folder);
        made.file = run.name() + ".jsonl.gz";
        made.every = step_lines_kept({.steps = count_steps(text), .num_runs = runs.size()});
        made.steps = metrics.steps;
        made.train_ms = metrics.train_ms;
        made.validations = metrics.validations;
        result.files.emplace_back(made.file, gzip(thin_metrics(text, made.every)));
        Sha256 hash;
        hash.update(result.files.back().second.data(), result.files.back().second.size());
        made.sha256 = hash.hex();
        record.runs.push_back(made);
        if (!terms_.baseline_binary_sha256.empty()) {
            expect_config_of(folder / "config.json", terms_.config);
            if (run.side == kBaseline && !record.baseline->program)
                record.baseline->program =
                    program_of(environment, environment_file, terms_.baseline_binary_sha256);
        }
        if (!record.hardware.empty()) continue;
        record.hardware = hardware_of(environment.dump());
        record.build = value_in<Json>(environment, "/build", environment_file).dump();
    }
    record.interrupted = interrupted();
    return result;
}

AttemptFolder::Result record_of_baseline(const AttemptFolder::Result& result, const std::string& name) {
    AttemptFolder::Result baseline = result;
    Record& record = baseline.record;
    record.name = name;
    record.config = result.record.baseline->config;
    record.baseline.reset();
    record.systems_only = false;
    record.what.clear();
    std::erase_if(record.runs, [](const RecordRun& run) { return run.side != kBaseline; });
    std::erase_if(record.interrupted, [](const InterruptedRun& run) { return run.side != kBaseline; });
    for (RecordRun& run : record.runs) run.side = kCandidate;
    for (InterruptedRun& run : record.interrupted) run.side = kCandidate;
    std::erase_if(baseline.files, [](const auto& file) { return !file.first.starts_with(kBaseline); });
    return baseline;
}

void expect_no_record(const std::string& out, const std::string& track, const std::string& folder_name) {
    const fs::path folder = fs::path(out) / track / folder_name;
    if (fs::exists(folder))
        throw_usage("{} is there, and no record is overwritten: take another --name, or remove it",
                    folder.string());
}

std::string write_record(const std::string& out, const AttemptFolder::Result& result) {
    const Record& record = result.record;
    expect_no_record(out, record.track, record.folder_name());
    const fs::path folder = fs::path(out) / record.track / record.folder_name(),
                   part = folder.string() + ".part";
    std::error_code error;
    fs::remove_all(part, error);
    fs::create_directories(part, error);
    if (error) throw_usage("--out {}: {} cannot be made: {}", out, part.string(), error.message());
    for (const auto& [name, bytes] : result.files) write_file((part / name).string(), bytes);
    write_file((part / "record.json").string(), record_to_json(record));
    write_file((part / "README.md").string(), record_readme(record));
    fs::rename(part, folder);
    return folder.string();
}

}  // namespace speedrun
