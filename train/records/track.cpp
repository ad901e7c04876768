#include "train/records/track.h"

#include <algorithm>
#include <filesystem>

#include "data/json_text.h"
#include "data/shard.h"
#include "data/shard_lock.h"
#include "data/text_file.h"
#include "kernels/device/error.h"

namespace speedrun {

namespace {

using SortedJson = nlohmann::json;
namespace fs = std::filesystem;

std::string tracks_in(const fs::path& folder) {
    std::string names;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
        if (fs::exists(entry.path() / "track.json"))
            names += (names.empty() ? "" : ", ") + entry.path().filename().string();
    }
    return names.empty() ? "none" : names;
}

std::vector<ShardInfo> shards_of(const Track& track, const std::string& split) {
    std::vector<ShardInfo> found;
    for (const ShardInfo& shard : track.shards) {
        if (shard.split == split) found.push_back(shard);
    }
    return found;
}

// Returns the error for a missing shard list, or "".
std::string missing_lock(const Track& track) {
    if (track.lock.empty() || !track.shards.empty()) return "";
    return fmt::format("{} is missing or empty, which lists the shards of track {}: {} makes it", track.lock,
                       track.name, track.prepare);
}

// Returns message text with the hash of the track's shard that has the file's name, or "".
std::string expected_of(const Track& track, const std::string& file) {
    for (const ShardInfo& shard : track.shards)
        if (shard.file == fs::path(file).filename())
            return fmt::format(", whose {} has {}", shard.file, shard.sha256);
    return "";
}

}  // namespace

const TrackClass* Track::find_class(const std::string& class_name) const {
    const auto found = std::find_if(classes.begin(), classes.end(),
                                    [&](const TrackClass& c) { return c.name == class_name; });
    return found == classes.end() ? nullptr : &*found;
}

const TrackClass& Track::class_named(const std::string& class_name) const {
    const TrackClass* found = class_name.empty() ? &classes.front() : find_class(class_name);
    if (!found) throw_usage("no class {}: track {} has {}", class_name, name, class_names());
    if (!found->ended.empty())
        throw_usage("class {} of track {} ended on {}: {} Open classes: {}", found->name, name,
                    found->ended_on, found->ended, class_names(true));
    return *found;
}

const std::string& Track::class_of_record(const std::string& class_name) const {
    if (!class_name.empty()) return class_name;
    return unclassed.empty() ? classes.front().name : unclassed;
}

std::string Track::class_names(bool open_alone) const {
    std::string names;
    for (const TrackClass& c : classes) {
        if (!open_alone || c.ended.empty()) names += (names.empty() ? "" : ", ") + c.name;
    }
    return names.empty() ? "none" : names;
}

bool Track::limits_parameters() const {
    return std::any_of(classes.begin(), classes.end(), [](const TrackClass& c) { return c.max_parameters; });
}

bool Track::reads_configs() const {
    return std::any_of(classes.begin(), classes.end(),
                       [](const TrackClass& c) { return c.max_parameters || c.dense || c.by_loss(); });
}

Track parse_track(const std::string& text, const std::string& origin) {
    try {
        const SortedJson json = parse_json<SortedJson>(text);
        Track track;
        track.name = json.at("name").get<std::string>();
        const SortedJson& dataset = json.at("dataset");
        track.prepare = dataset.value("prepare", "");
        track.lock = dataset.value("lock", "");
        // Error messages quote lines, so arbitrary files must not be read.
        if (!track.lock.empty() && fs::path(track.lock).filename() != kShardLock)
            throw_data("dataset.lock: expected a path to a {}, found {}", kShardLock,
                       shown(SortedJson(track.lock)));
        for (const SortedJson& shard : track.lock.empty() ? dataset.at("shards") : SortedJson::array())
            track.shards.push_back({shard.at("file").get<std::string>(), shard.at("split").get<std::string>(),
                                    whole_number(shard.at("tokens")), shard.at("sha256").get<std::string>()});
        track.validation_tokens = whole_number(json.at("validation").at("tokens"));
        track.target_loss = json.at("target_loss");
        track.hardware_class = json.at("hardware_class").get<std::string>();
        const SortedJson& rules = json.at("rules");
        track.rules.min_runs = whole_number(rules.at("min_runs"));
        track.rules.max_loss_p = rules.at("max_loss_p");
        track.rules.max_time_p = rules.at("max_time_p");
        track.rules.loss_margin = rules.at("systems_only").at("loss_margin");
        track.rules.max_margin_p = rules.at("systems_only").at("max_p");
        if (json.contains("classes")) track.classes = parse_classes(json.at("classes"));
        for (TrackClass& c : track.classes) {
            if (!c.by_loss() && !c.own_target) c.target_loss = track.target_loss;
        }
        track.unclassed = json.value("unclassed", "");
        if (!track.unclassed.empty() && !track.find_class(track.unclassed))
            throw_data("unclassed: no class {}: the track has {}", track.unclassed, track.class_names());
        return track;
    } catch (const SortedJson::exception& error) {
        throw_data("{}: {}", origin, error.what());
    } catch (const JsonError& error) {
        throw_data("{}: not valid JSON: {}", origin, error.what());
    } catch (const Error& error) {
        throw_data("{}: {}", origin, error.what());
    }
}

Track read_track(const std::string& folder) {
    const std::string path = (fs::path(folder) / "track.json").string();
    if (!fs::exists(path)) {
        const fs::path parent = fs::path(folder).parent_path();
        throw_usage("{}: no such track; {} has {}", path, parent.string(), tracks_in(parent));
    }
    Track track = parse_track(read_text_file(path), path);
    if (track.lock.empty()) return track;
    track.lock = (fs::path(folder) / track.lock).lexically_normal().string();
    if (fs::exists(track.lock)) track.shards = read_shard_lock(track.lock);
    return track;
}

std::string data_problem(const Track& track, const std::vector<ShardInfo>& shards) {
    if (std::string missing = missing_lock(track); !missing.empty()) return missing;
    const std::vector<ShardInfo> train = shards_of(track, "train"), val = shards_of(track, "val");
    size_t next_val = 0;
    for (const ShardInfo& shard : shards) {
        const auto same = [&](const ShardInfo& s) { return s.sha256 == shard.sha256; };
        if (shard.split == "train") {
            if (std::none_of(train.begin(), train.end(), same))
                return fmt::format("{}: SHA-256 {} is no training shard of track {}{}", shard.file,
                                   shard.sha256, track.name, expected_of(track, shard.file));
            continue;
        }
        // Validation tokens are counted from the start, so the order matters.
        if (next_val >= val.size() || !same(val[next_val])) {
            return fmt::format("{}: SHA-256 {} is not validation shard {} of track {}, {}", shard.file,
                               shard.sha256, next_val, track.name,
                               next_val < val.size() ? val[next_val].sha256 : "which has no more");
        }
        ++next_val;
    }
    int64_t tokens = 0;
    for (size_t i = 0; i < next_val; ++i) tokens += val[i].tokens;
    if (tokens <= track.validation_tokens)
        return fmt::format("{} validation tokens, track {} scores {}", tokens, track.name,
                           track.validation_tokens);
    return "";
}

std::vector<ShardInfo> expect_data_of_track(const Track& track, const TrackClass& track_class,
                                            const TrackClaim& claim) {
    if (track_class.target_loss && claim.target_loss != *track_class.target_loss) {
        throw_usage("record.target_loss is {}, the target of {} is {}", claim.target_loss,
                    track_class.own_target ? fmt::format("class {} of track {}", track_class.name, track.name)
                                           : "track " + track.name,
                    *track_class.target_loss);
    }
    if (const std::string missing = missing_lock(track); !missing.empty()) throw_data("{}", missing);
    std::vector<ShardInfo> shards;
    int64_t val_tokens = 0;
    for (const auto& [files, split] :
         {std::pair{&claim.train_files, "train"}, std::pair{&claim.val_files, "val"}}) {
        for (const std::string& file : *files) {
            shards.push_back({file, split, Shard(file).size(), sha256_file(file)});
            if (split == std::string("val")) val_tokens += shards.back().tokens;
        }
    }
    if (const std::string problem = data_problem(track, shards); !problem.empty()) {
        throw_data("{}: {}; the track's data is prepared as its track.json says", track.name, problem);
    }
    // The first token of the stream is not a target.
    const int64_t scored = claim.val_tokens == 0 ? val_tokens - 1 : claim.val_tokens;
    if (scored != track.validation_tokens) {
        throw_usage("data.val_tokens: {} validation tokens are scored, track {} requires {}", scored,
                    track.name, track.validation_tokens);
    }
    return shards;
}

}  // namespace speedrun
