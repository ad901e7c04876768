#include "train/engine/weight_source.h"

#include <filesystem>
#include <vector>

#include "data/json_text.h"
#include "data/text_file.h"
#include "kernels/device/error.h"
#include "train/checkpoint/checkpoint_info.h"
#include "train/runlog/metrics_json.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;

using Kind = WeightSource::Kind;

// Returns the steps in summary.json; -1 without this file, and for status "failed": the final weights are older.
int64_t steps_of_summary(const std::string& run) {
    const std::string path = run + "/summary.json";
    if (!fs::is_regular_file(path)) return -1;
    try {
        const auto summary = parse_json<nlohmann::json>(read_text_file(path));
        return value_of(summary, &RunSummary::status) == "failed" ? -1
                                                                  : value_of(summary, &RunSummary::steps);
    } catch (const JsonError& error) {
        throw_data("{}: {}", path, error.what());
    } catch (const nlohmann::json::exception& error) {
        throw_data("{}: {}", path, error.what());
    }
}

WeightSource final_weights_of(const std::string& run) {
    return {Kind::final_weights, run + "/checkpoints/final", run, steps_of_summary(run)};
}

WeightSource checkpoint_at(const std::string& folder) {
    fs::path path = fs::absolute(folder).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();
    const fs::path parent = path.parent_path();
    const std::string run = parent.filename() == "checkpoints" ? parent.parent_path().string() : "";
    return {Kind::checkpoint, folder, run, step_of_checkpoint(path.filename().string())};
}

WeightSource last_weights_of(const std::string& run) {
    const std::vector<std::string> saved = list_checkpoints(run);
    const bool ended = fs::exists(run + "/checkpoints/final/model.safetensors");
    if (saved.empty() && !ended)
        throw_usage("{}: the run has no checkpoint and has not ended: it has no weights yet", run);
    const WeightSource last = final_weights_of(run);
    if (saved.empty()) return last;
    const int64_t newest = step_of_checkpoint(fs::path(saved.front()).filename().string());
    if (ended && last.step > newest) return last;
    return {Kind::checkpoint, saved.front(), run, newest};
}

}  // namespace

WeightSource find_weights(const std::string& path) {
    if (is_checkpoint(path)) return checkpoint_at(path);
    fs::path folder(path);
    if (!folder.has_filename()) folder = folder.parent_path();  // "logs/a/"
    if (folder.filename() == "final" && folder.parent_path().filename() == "checkpoints")
        return final_weights_of(folder.parent_path().parent_path().string());
    if (fs::is_directory(folder / "checkpoints") || fs::exists(folder / "data.json"))
        return last_weights_of(folder.string());
    if (!fs::is_regular_file(folder / "config.json"))
        throw_usage(
            "{}: not a run folder (it has no config.json), not a checkpoint, not final weights and not a folder of the "
            "transformers library; runs are in logs/, or where --out said",
            path);
    return {Kind::transformers, path};
}

}  // namespace speedrun
