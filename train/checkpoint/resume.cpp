#include "train/checkpoint/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <sstream>

#include "data/json_text.h"
#include "train/checkpoint/run_position.h"
#include "train/checkpoint/state_pieces.h"
#include "train/comm/joint_check.h"
#include "train/config/config_json.h"
#include "train/config/config_keys.h"
#include "train/config/extend_run.h"
#include "train/model/build_model.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;

// Keys that a resumed run may change: they do not affect training, or must follow the number of ranks
// (batch.microbatch_tokens).
constexpr std::array<const char*, 12> kFree = {"eval.",
                                               "checkpoint.",
                                               "parallel.",
                                               "record.",
                                               "cuda.",
                                               "memory.",
                                               "device",
                                               "threads",
                                               "data.val.",
                                               "data.val_tokens",
                                               "data.allow_overlap",
                                               "batch.microbatch_tokens"};

bool is_free(const std::string& key) {
    // Selects the collective for a table's gradients.
    if (key.rfind("model.tables.", 0) == 0 && key.ends_with(".exchange")) return true;
    return std::any_of(kFree.begin(), kFree.end(), [&](const std::string& free) {
        return free.back() == '.' ? key.rfind(free, 0) == 0 : key == free;
    });
}

Config config_of(const CheckpointReader& reader) {
    return parse_config(reader.info().config, reader.folder() + "/checkpoint.json: config", {});
}

// Copies the patterns of data.train, whose files are compared later. Weights of a mixture stay.
void take_patterns(DataConfig& there, const DataConfig& here) {
    if (there.sources.size() != here.sources.size()) return;
    there.train = here.train;
    for (size_t i = 0; i < here.sources.size(); ++i) there.sources[i].files = here.sources[i].files;
}

void check_config(const CheckpointReader& reader, const Config& config, const ResumeRules& rules) {
    Config there = config_of(reader);
    check_position(reader.info(), there, reader.folder() + "/checkpoint.json");
    if (rules.same_shards && !reader.info().data.empty()) take_patterns(there.data, config.data);
    if (rules.extends && there.schedule.total_steps() != config.schedule.total_steps()) {
        expect_extendable(there, config, reader.info().step, reader.folder());
        there = extend_config(there, config.schedule.total_steps());
    }
    const std::vector<std::string> differences = training_differences(there, config);
    if (differences.empty()) return;
    throw_usage(
        "{} belongs to another config: {}. A resumed run goes on as if it had never stopped: put these back, "
        "or start a new run with another --name and without --resume",
        reader.folder(), fmt::join(differences, "; "));
}

// Returns a note if the checkpoint has no data identity. Throws a data error if the data differ.
std::string check_data(const CheckpointReader& reader, const DataIdentity& data) {
    if (reader.info().data.empty())
        return fmt::format(
            "{} does not say what is in the shards that it was trained on (an older version wrote it): they are not compared",
            reader.folder());
    DataIdentity there;
    try {
        there = data_identity_from_json(reader.info().data);
    } catch (const JsonError& error) {
        throw_data("{}/checkpoint.json: data: {}", reader.folder(), error.what());
    }
    const std::vector<std::string> differences = data_differences(there, data);
    if (differences.empty()) return "";
    throw_data(
        "{} belongs to other data: {}. A resumed run reads the shards that it began with: put them back, or start a new "
        "run with another --name and without --resume",
        reader.folder(), fmt::join(differences, "; "));
}

// Returns a warning if the longer schedule differs from the checkpoint's before its step; empty if not.
std::string check_schedule(const CheckpointReader& reader, const Config& config) {
    const Config there = config_of(reader);
    const int64_t step = reader.info().step, same = first_difference(there, config, step);
    if (same == step) return "";
    std::string earlier;
    for (const std::string& folder :
         list_checkpoints(fs::path(reader.folder()).parent_path().parent_path().string()))
        if (earlier.empty() && step_of_checkpoint(fs::path(folder).filename().string()) <= same)
            earlier = fmt::format(", such as {},", folder);
    return fmt::format(
        "{} is inside of the cooldown: learning rate and momentum of the longer run are equal up to step {} only. The "
        "learning rate goes from {:.3g} to {:.3g} of the peak. A checkpoint of step {} or before{} avoids this",
        reader.folder(), same, learning_rate_factor(there.schedule, step - 1),
        learning_rate_factor(config.schedule, step), same, earlier);
}

// Folders to try in this order; in_place: the run's folder is continued.
struct Candidates {
    std::vector<std::string> folders;
    bool in_place = false;
};

Candidates automatic(const std::string& run) {
    Candidates result{list_checkpoints(run), fs::exists(run)};
    if (result.folders.empty() && fs::exists(run + "/summary.json")) {
        throw_usage(
            "--resume auto: {} has ended and left no checkpoint to continue; give the new run another --name",
            run);
    }
    return result;
}

Candidates named(const std::string& folder, const std::string& run) {
    Candidates result;
    result.folders = is_checkpoint(folder) ? std::vector{folder} : list_checkpoints(folder);
    if (result.folders.empty())
        throw_usage("--resume {}: neither a checkpoint nor a run's folder with checkpoints", folder);
    result.folders.resize(1);
    fs::path chosen = fs::weakly_canonical(result.folders.front());
    if (!chosen.has_filename()) chosen = chosen.parent_path();  // "…/step-00000012/"
    result.in_place = chosen.parent_path().parent_path() == fs::weakly_canonical(run);
    const std::vector<std::string> own = result.in_place ? list_checkpoints(run) : std::vector<std::string>{};
    if (!own.empty() && fs::weakly_canonical(own.front()) != chosen) {
        throw_usage(
            "--resume {}: the run has a newer checkpoint, {}. Remove what is newer to continue the run from "
            "here, or give a new run another --name",
            folder, own.front());
    }
    return result;
}

// Candidates found by rank 0.
Candidates find_candidates(World& world, const std::string& resume, const std::string& run) {
    Candidates found;
    check_together(world, [&] {
        if (world.rank() == 0) found = resume == "auto" ? automatic(run) : named(resume, run);
    });
    std::string text = found.in_place ? "1\n" : "0\n";
    for (const std::string& folder : found.folders) text += folder + "\n";
    std::istringstream lines(world.all_gather(text).front());
    Candidates all;
    std::string line;
    std::getline(lines, line);
    all.in_place = line == "1";
    while (std::getline(lines, line)) all.folders.push_back(line);
    return all;
}

// Each rank compares some of the files with their hashes and reads their headers.
void verify_and_index(World& world, CheckpointReader& reader) {
    const std::vector<CheckpointFile>& files = reader.info().files;
    std::string own;  // headers, one per line
    work_together(world, [&] {
        for (size_t i = static_cast<size_t>(world.rank()); i < files.size();
             i += static_cast<size_t>(world.size())) {
            reader.verify_file(files[i]);
            own += reader.header(i) + "\n";
        }
    });
    std::vector<std::string> headers;
    for (const std::string& lines : world.all_gather(own)) {
        std::istringstream stream(lines);
        for (std::string line; std::getline(stream, line);) headers.push_back(line);
    }
    check_together(world, [&] { reader.index(headers); });
}

}  // namespace

std::vector<std::string> training_differences(const Config& there, const Config& here) {
    std::vector<std::string> differences;
    for (const KeyDifference& d : key_differences(config_to_json(there), config_to_json(here))) {
        if (!is_free(d.key))
            differences.push_back(fmt::format("{}: {} there, {} here", d.key, d.before, d.after));
    }
    return differences;
}

bool same_validation(const Config& there, const Config& here) {
    const auto chooses = [](const KeyDifference& d) {
        const auto is = [&](const char* prefix) { return d.key.rfind(prefix, 0) == 0; };
        return is("data.val.") || is("data.val_tokens") || is("eval.sequence_length") || is("eval.windows");
    };
    const std::vector<KeyDifference> differences =
        key_differences(config_to_json(there), config_to_json(here));
    return std::none_of(differences.begin(), differences.end(), chooses);
}

std::unique_ptr<CheckpointReader> open_checkpoint(World& world, const std::string& folder,
                                                  const Config& config, const ResumeRules& rules) {
    std::unique_ptr<CheckpointReader> reader;
    check_together(world, [&] {
        reader = std::make_unique<CheckpointReader>(folder);
        check_config(*reader, config, rules);
    });
    verify_and_index(world, *reader);
    check_together(world, [&] {
        const ParameterTable table = parameters_of(config.model, config.longest_sequence());
        reader->expect_tensors(checkpoint_tensors(table, config.optimizers));
    });
    return reader;
}

std::unique_ptr<CheckpointReader> verify_checkpoint(World& world, const std::string& folder) {
    std::unique_ptr<CheckpointReader> reader;
    check_together(world, [&] { reader = std::make_unique<CheckpointReader>(folder); });
    verify_and_index(world, *reader);
    return reader;
}

ResumePoint find_resume_point(World& world, const std::string& resume, const std::string& run,
                              const Config& config, const DataIdentity* data, bool extends) {
    ResumePoint point;
    if (resume.empty()) return point;
    const Candidates candidates = find_candidates(world, resume, run);
    point.in_place = candidates.in_place;
    for (const std::string& folder : candidates.folders) {
        try {
            point.reader =
                open_checkpoint(world, folder, config, {.same_shards = data != nullptr, .extends = extends});
            break;
        } catch (const JointError& error) {
            if (resume != "auto" || error.code() != ExitCode::data) throw;
            point.messages.push_back(fmt::format("skipped a damaged checkpoint: {}", error.what()));
        }
    }
    if (!candidates.folders.empty() && !point.reader) {
        throw JointError(
            ExitCode::data,
            fmt::format("--resume auto: no checkpoint of {} is undamaged; remove them to start afresh.\n{}",
                        run, fmt::join(point.messages, "\n")));
    }
    if (extends && !point.reader)
        throw JointError(
            ExitCode::usage,
            fmt::format("--extend-to: {} has no checkpoint to extend; name one with --resume", run));
    if (extends) {
        std::string warning;
        check_together(world, [&] { warning = check_schedule(*point.reader, config); });
        if (!warning.empty()) point.messages.push_back(warning);
    }
    if (point.reader && data) {
        std::string note;
        check_together(world, [&] { note = check_data(*point.reader, *data); });
        if (!note.empty()) point.messages.push_back(note);
    }
    return point;
}

}  // namespace speedrun
