#include "train/records/record_folder.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "data/text_file.h"
#include "kernels/device/error.h"
#include "train/model/build_model.h"
#include "train/records/dense_rule.h"
#include "train/records/recorded_config.h"
#include "train/records/replication.h"

namespace speedrun {

namespace fs = std::filesystem;

void count_parameters(Record& record, const Track& track, const std::string& origin) {
    if (!track.reads_configs()) return;
    const Config config = recorded_config(record.config, origin + ": config");
    if (track.limits_parameters())
        record.parameters = parameters_of(config.model, config.longest_sequence()).whole_numel();
    record.not_dense = dense_problem(config.model, config.longest_sequence());
    record.tokens = config.tokens_before(config.schedule.total_steps());
}

Record read_record(const std::string& folder) {
    const std::string path = (fs::path(folder) / "record.json").string();
    const std::string text = read_text_file(path);
    Record record = record_from_json(text, path);
    if (!has_its_hash(text))
        throw_data("{}: changed since it was written; `speedrun records verify {}` says where", path, folder);
    const Track track = read_track(fs::weakly_canonical(fs::path(folder)).parent_path().string());
    count_parameters(record, track, path);
    evaluate(record, track);
    record.replications = count_replications(folder);
    return record;
}

bool is_record_folder(const std::string& folder) {
    return fs::exists(fs::path(folder) / "record.json");
}

std::vector<std::string> record_folders(const std::string& track_folder) {
    std::vector<std::string> folders;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(track_folder, error)) {
        if (is_record_folder(entry.path().string())) folders.push_back(entry.path().string());
    }
    std::sort(folders.begin(), folders.end());
    return folders;
}

Board board_of(const TrackClass& track_class, const HardwareClass& hardware) {
    return {.track_class = track_class.name,
            .hardware = hardware,
            .target_loss = track_class.target_loss,
            .by_loss = track_class.by_loss()};
}

std::string leading_record(const std::string& track_folder, const Board& board) {
    std::vector<Record> records;
    std::set<std::string> beaten;
    for (const std::string& folder : record_folders(track_folder)) {
        Record record = read_record(folder);
        if (!record.is_record || !board.has(record)) continue;
        // A faster run does not imply a lower loss.
        if (record.baseline && record.by_loss == board.by_loss) beaten.insert(record.baseline->record);
        records.push_back(std::move(record));
    }
    std::erase_if(records, [&](const Record& record) { return beaten.count(record.folder_name()) > 0; });
    const auto result = [&](const Record& record) {
        const SideStatistics& ours = record.statistics.candidate;
        return board.by_loss ? ours.loss.mean : ours.train_ms.mean;
    };
    const auto best = std::min_element(records.begin(), records.end(), [&](const Record& a, const Record& b) {
        return result(a) < result(b);
    });
    return best == records.end() ? "" : best->folder_name();
}

}  // namespace speedrun
