#include "train/records/counts_reference.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <regex>
#include <set>

#include "data/json_text.h"
#include "data/text_file.h"
#include "data/token_dataset.h"
#include "kernels/device/error.h"
#include "train/records/kneser_ney.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr int kReferenceSchema = 1;
constexpr double kSameLoss = 1e-9;  // compilers and libms may round logarithms differently
constexpr double kMaxLoss = 11.1;   // nats; above the uniform distribution over 65,536 tokens

double seconds_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median_of(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::vector<std::string> files_of(const std::string& folder, const Track& track, const std::string& split) {
    std::vector<std::string> files;
    for (const ShardInfo& shard : track.shards)
        if (shard.split == split) files.push_back((fs::path(folder) / shard.file).string());
    return files;
}

void expect_keys(const Json& json, const std::string& where, const std::set<std::string>& known) {
    if (!json.is_object()) throw_data("{}: expected an object, found {}", where, shown(json));
    for (const auto& [key, value] : json.items())
        if (!known.count(key)) throw_data("unknown key {}{}", where, shown_key<Json>(key));
    for (const std::string& key : known)
        if (!json.contains(key)) throw_data("key {}{} is missing", where, key);
}

double number_in(const Json& json, const char* key, double least, double most) {
    const Json& value = json.at(key);
    const double number = value.is_number() ? value.get<double>() : std::nan("");
    if (!(number > least && number <= most))
        throw_data("{}: {}, expected a number above {} and at most {}", key, shown(value), least, most);
    return number;
}

int64_t whole_in(const Json& json, const char* key, int64_t least, int64_t most) {
    const int64_t number = whole_number(json.at(key));
    if (number < least || number > most) throw_data("{}: {}, expected {} to {}", key, number, least, most);
    return number;
}

std::string matching(const Json& json, const char* key, const char* pattern) {
    const Json& value = json.at(key);
    if (!value.is_string() || !std::regex_match(value.get<std::string>(), std::regex(pattern)))
        throw_data("{}: {}, expected the form {}", key, shown(value), pattern);
    return value.get<std::string>();
}

void expect_shards_of(const Track& track, const std::vector<ShardInfo>& shards) {
    if (const std::string problem = data_problem(track, shards); !problem.empty())
        throw_data("data: {}", problem);
    for (const ShardInfo& requested : track.shards) {
        const bool there = std::any_of(shards.begin(), shards.end(), [&](const ShardInfo& s) {
            return s.sha256 == requested.sha256 && s.split == requested.split && s.tokens == requested.tokens;
        });
        if (!there)
            throw_data("data: {} of track {} ({} tokens, SHA-256 {}) is missing", requested.file, track.name,
                       requested.tokens, requested.sha256);
    }
}

CountsReference reference_of(const Json& json, const Track& track) {
    expect_keys(json, "",
                {"schema", "name", "track", "order", "row_length", "tokens", "loss", "seconds", "repetitions",
                 "date", "git_sha", "dirty", "hardware", "data"});
    whole_in(json, "schema", kReferenceSchema, kReferenceSchema);
    matching(json, "name", "counts");
    CountsReference r;
    r.track = json.at("track").get<std::string>();
    if (r.track != track.name) throw_data("track: {}, the folder's is {}", r.track, track.name);
    r.order = whole_in(json, "order", 1, kMaxContextTokens);
    r.row_length = whole_in(json, "row_length", 1, track.validation_tokens);
    r.tokens = whole_in(json, "tokens", track.validation_tokens, track.validation_tokens);
    r.loss = number_in(json, "loss", 0, kMaxLoss);
    if (!json.at("repetitions").is_array() || json.at("repetitions").empty())
        throw_data("repetitions: {}, expected a list of seconds", shown(json.at("repetitions")));
    for (const Json& seconds : json.at("repetitions"))
        r.repetitions.push_back(number_in({{"repetitions", seconds}}, "repetitions", 0, 1e6));
    if (const double seconds = number_in(json, "seconds", 0, 1e6); seconds != r.seconds())
        throw_data("seconds: {}, the median of the repetitions is {}", seconds, r.seconds());
    r.date = matching(json, "date", "[0-9]{4}-[0-9]{2}-[0-9]{2}");
    r.git_sha = matching(json, "git_sha", "[0-9a-f]{40}|unknown");
    r.dirty = json.at("dirty").get<bool>();
    const Json& hardware = json.at("hardware");
    if (!hardware.is_object()) throw_data("hardware: expected an object, found {}", shown(hardware));
    r.hardware = hardware.dump();
    r.hardware_class = hardware_class_of(r.hardware);
    if (r.hardware_class.gpus > 0 || r.hardware_class.cores < 1 || r.hardware_class.level.empty())
        throw_data("hardware: '{}', expected the cores and level of a processor", r.hardware_class.text());
    for (const Json& shard : json.at("data")) {
        expect_keys(shard, "data: ", {"file", "split", "tokens", "sha256"});
        r.data.push_back({shard.at("file").get<std::string>(), shard.at("split").get<std::string>(),
                          whole_number(shard.at("tokens")), shard.at("sha256").get<std::string>()});
    }
    expect_shards_of(track, r.data);
    return r;
}

// The folder may contain other data, for example of a test.
bool hashes_fit(const Track& track, const std::string& folder) {
    return std::all_of(track.shards.begin(), track.shards.end(), [&](const ShardInfo& s) {
        return sha256_file((fs::path(folder) / s.file).string()) == s.sha256;
    });
}

std::vector<std::string> reference_files(const std::string& track_folder) {
    std::vector<std::string> files;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(fs::path(track_folder) / "references", error))
        if (entry.path().extension() == ".json") files.push_back(entry.path().string());
    std::sort(files.begin(), files.end());
    return files;
}

}  // namespace

std::string data_folder(const Track& track, const std::string& track_folder) {
    if (!track.lock.empty()) return fs::path(track.lock).parent_path().string();
    if (track.prepare.empty())
        throw_usage("track {} names no program that prepares its data: say --data FOLDER", track.name);
    const fs::path folder = fs::path(track.prepare).parent_path();
    const fs::path beside = (fs::path(track_folder) / ".." / ".." / folder).lexically_normal();
    return has_shards(track, folder.string()) || !has_shards(track, beside.string()) ? folder.string()
                                                                                     : beside.string();
}

bool has_shards(const Track& track, const std::string& folder) {
    return !track.shards.empty() &&
           std::all_of(track.shards.begin(), track.shards.end(),
                       [&](const ShardInfo& s) { return fs::is_regular_file(fs::path(folder) / s.file); });
}

TrackTokens read_track_tokens(const Track& track, const std::string& folder) {
    const std::vector<std::string> train = files_of(folder, track, "train"),
                                   val = files_of(folder, track, "val");
    for (const auto* files : {&train, &val}) {
        for (const std::string& file : *files) {
            if (fs::exists(file)) continue;
            const std::string program = fs::read_symlink("/proc/self/exe").string();
            if (track.prepare.empty()) throw_data("{}: no such shard of track {}", file, track.name);
            throw_data("{}: no such shard; prepare track {}: {} {}", file, track.name, track.prepare,
                       program);
        }
    }
    TrackTokens result;
    const TrackClass& any = track.classes.front();  // all classes have the same data
    result.shards = expect_data_of_track(
        track, any, {train, val, track.validation_tokens, any.target_loss.value_or(track.target_loss)});
    const DatasetInfo info = find_dataset_info(train).value_or(DatasetInfo{});
    result.vocab_size = info.vocab_size;
    const TokenDataset counted(train, info.vocab_size, info.separator),
        scored(val, info.vocab_size, info.separator);
    for (int64_t i = 0; i < counted.num_shards(); ++i) {
        result.train.emplace_back(static_cast<size_t>(counted.shard(i).size()));
        counted.read(counted.first_token(i), result.train.back());
    }
    result.val.resize(static_cast<size_t>(track.validation_tokens) + 1);
    scored.read(0, result.val);
    return result;
}

CountsResult measure_counts(int order, const TrackTokens& tokens, int64_t row_length) {
    CountsResult result;
    const auto begin = std::chrono::steady_clock::now();
    const KneserNey counts(order, {tokens.train.begin(), tokens.train.end()}, tokens.vocab_size);
    result.counting_s = seconds_since(begin);
    const auto counted = std::chrono::steady_clock::now();
    const std::span<const uint16_t> val = tokens.val;
    const size_t targets = val.size() - 1;
    double sum = 0;
    // A row and the target of its last token, the next row's first token.
    for (size_t first = 0; first < targets; first += static_cast<size_t>(row_length))
        sum += counts.loss_sum(
            val.subspan(first, std::min(static_cast<size_t>(row_length), targets - first) + 1));
    result.loss = sum / static_cast<double>(targets);
    result.scoring_s = seconds_since(counted);
    result.contexts = counts.num_contexts();
    return result;
}

double CountsReference::seconds() const {
    return median_of(repetitions);
}

std::string CountsReference::hardware_text() const {
    const Json cpu = parse_json<Json>(hardware).at("cpu");
    return fmt::format("1 of {} cores of {}, {}", hardware_class.cores, cpu.value("model", "CPU"),
                       hardware_class.level);
}

std::string CountsReference::file_name() const {
    return fmt::format("counts_{}.json", hardware_class.level);
}

std::string reference_to_json(const CountsReference& r) {
    Json data = Json::array();
    for (const ShardInfo& s : r.data)
        data.push_back({{"file", s.file}, {"split", s.split}, {"tokens", s.tokens}, {"sha256", s.sha256}});
    const Json json = {{"schema", kReferenceSchema},
                       {"name", "counts"},
                       {"track", r.track},
                       {"order", r.order},
                       {"row_length", r.row_length},
                       {"tokens", r.tokens},
                       {"loss", r.loss},
                       {"seconds", r.seconds()},
                       {"repetitions", r.repetitions},
                       {"date", r.date},
                       {"git_sha", r.git_sha},
                       {"dirty", r.dirty},
                       {"hardware", parse_json<Json>(r.hardware)},
                       {"data", data}};
    return json.dump(2) + "\n";
}

CountsReference reference_from_json(const std::string& text, const std::string& origin, const Track& track) {
    try {
        CountsReference reference = reference_of(parse_json<Json>(text), track);
        reference.path = origin;
        return reference;
    } catch (const std::exception& error) {
        throw_data("{}: {}", origin, error.what());
    }
}

std::vector<CountsReference> read_references(const std::string& track_folder, const Track& track) {
    std::vector<CountsReference> references;
    for (const std::string& file : reference_files(track_folder))
        references.push_back(reference_from_json(read_text_file(file), file, track));
    return references;
}

std::vector<ReferenceCheck> verify_references(const std::string& track_folder) {
    std::vector<ReferenceCheck> checks;
    const std::vector<std::string> files = reference_files(track_folder);
    if (files.empty()) return checks;
    const Track track = read_track(track_folder);
    for (const std::string& file : files) {
        ReferenceCheck check{.path = file, .problems = {}};
        try {
            const CountsReference r = reference_from_json(read_text_file(file), file, track);
            const std::string folder =
                track.lock.empty() && track.prepare.empty() ? "" : data_folder(track, track_folder);
            check.recomputed = !folder.empty() && has_shards(track, folder) && hashes_fit(track, folder);
            if (check.recomputed) {
                const double loss =
                    measure_counts(static_cast<int>(r.order), read_track_tokens(track, folder), r.row_length)
                        .loss;
                if (!(std::abs(loss - r.loss) <= kSameLoss))
                    check.problems.push_back(fmt::format(
                        "{}: loss: {}, computed again {} from the shards in {}", file, r.loss, loss, folder));
            }
        } catch (const std::exception& error) {
            check.problems.push_back(error.what());
        }
        checks.push_back(std::move(check));
    }
    return checks;
}

}  // namespace speedrun
