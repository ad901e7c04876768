#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "data/json_text.h"
#include "kernels/device/error.h"
#include "train/commands/commands.h"
#include "train/records/leaderboard.h"
#include "train/records/record_verify.h"
#include "train/records/run_set.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;

bool is_track_folder(const fs::path& folder) {
    return fs::exists(folder / "track.json");
}

// Returns the folder itself if it is a track, else the tracks in it.
std::vector<std::string> tracks_of(const std::string& folder) {
    if (is_track_folder(folder)) return {folder};
    std::vector<std::string> tracks;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
        if (is_track_folder(entry.path())) tracks.push_back(entry.path().string());
    }
    if (error) throw_usage("{}: cannot be listed: {}", folder, error.message());
    if (tracks.empty()) throw_usage("{}: no track (a folder with track.json) is there", folder);
    std::sort(tracks.begin(), tracks.end());
    return tracks;
}

std::vector<std::string> records_of(const std::string& folder) {
    if (is_record_folder(folder)) return {folder};
    std::vector<std::string> records;
    for (const std::string& track : tracks_of(folder)) {
        const std::vector<std::string> found = record_folders(track);
        records.insert(records.end(), found.begin(), found.end());
    }
    return records;
}

// Returns the checks of the references of these tracks. Folders of records have no references.
std::vector<ReferenceCheck> references_in(const std::vector<std::string>& folders) {
    std::vector<ReferenceCheck> checks;
    for (const std::string& folder : folders.empty() ? std::vector<std::string>{"records"} : folders) {
        if (is_record_folder(folder)) continue;
        for (const std::string& track : tracks_of(folder))
            for (ReferenceCheck& check : verify_references(track)) checks.push_back(std::move(check));
    }
    return checks;
}

}  // namespace

int run_record_list(const RecordListOptions& options) {
    if (options.json && options.markdown) throw_usage("--json or --markdown, not both");
    const bool named = !fs::exists(options.folder) && is_track_folder(fs::path("records") / options.folder);
    std::vector<Record> all;
    std::vector<CountsReference> all_references;
    for (const std::string& track : tracks_of(named ? "records/" + options.folder : options.folder)) {
        std::vector<Record> records;
        for (const std::string& folder : record_folders(track)) records.push_back(read_record(folder));
        all.insert(all.end(), records.begin(), records.end());
        const Track read = read_track(track);
        const std::vector<CountsReference> references = read_references(track, read);
        all_references.insert(all_references.end(), references.begin(), references.end());
        if (options.json) continue;
        if (!options.markdown)
            std::printf("track %s, target %g nats per token\n", read.name.c_str(), read.target_loss);
        for (const BoardOfRecords& board : boards_of(records, read))
            std::printf("\n%s", board_text(board, options.markdown ? TableStyle::markdown : TableStyle::text,
                                           references)
                                    .c_str());
    }
    if (options.json) std::printf("%s", records_json(all, all_references).c_str());
    return 0;
}

int run_record_compare(const RecordCompareOptions& options) {
    const Comparison comparison = compare_run_sets(options.a, options.b);
    std::printf("%s", (options.json ? comparison_json(comparison) : comparison_text(comparison)).c_str());
    return 0;
}

int run_record_verify(const RecordVerifyOptions& options) {
    std::vector<std::string> folders;
    for (const std::string& source :
         options.folders.empty() ? std::vector<std::string>{"records"} : options.folders) {
        const std::vector<std::string> found = records_of(source);
        folders.insert(folders.end(), found.begin(), found.end());
    }
    nlohmann::ordered_json json = nlohmann::ordered_json::array();
    bool good = true;
    for (const ReferenceCheck& check : references_in(options.folders)) {
        good = good && check.problems.empty();
        json.push_back(
            {{"reference", check.path}, {"recomputed", check.recomputed}, {"problems", check.problems}});
        if (options.json) continue;
        if (check.problems.empty())
            std::printf("%s: %s\n", check.path.c_str(),
                        check.recomputed ? "its loss is that of the track's shards"
                                         : "has its form; the track's shards are not here");
        for (const std::string& problem : check.problems) std::printf("%s\n", problem.c_str());
    }
    for (const std::string& folder : folders) {
        const RecordCheck check = verify_record(folder, options.strict);
        good = good && check.problems.empty();
        json.push_back({{"folder", folder},
                        {"figures", check.num_figures},
                        {"classes", check.classes},
                        {"problems", check.problems}});
        if (options.json) continue;
        if (check.problems.empty())
            std::printf("%s: %lld figures are those of its runs; of class %s\n", folder.c_str(),
                        static_cast<long long>(check.num_figures),
                        fmt::format("{}", fmt::join(check.classes, ", ")).c_str());
        for (const std::string& problem : check.problems)
            std::printf("%s: %s\n", folder.c_str(), problem.c_str());
    }
    if (options.json) std::printf("%s\n", json.dump(2).c_str());
    if (folders.empty() && !options.json) std::printf("no records\n");
    return good ? 0 : static_cast<int>(ExitCode::data);
}

}  // namespace speedrun
