#include "train/records/input_checks.h"

#include <fmt/core.h>
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <regex>

#include "data/json_text.h"
#include "train/config/config_json.h"
#include "train/config/config_keys.h"
#include "train/records/recorded_config.h"

namespace speedrun {

namespace {

namespace fs = std::filesystem;

// As expand_globs() of data/dataset.h, but the files need not exist. Braces match any text.
bool matches(const std::string& pattern, const std::string& file) {
    static const std::regex braces("\\{[^{}]*\\}|^~[^/]*");
    const std::string plain = std::regex_replace(pattern, braces, "*");
    return pattern == file || ::fnmatch(plain.c_str(), file.c_str(), FNM_PATHNAME | FNM_PERIOD) == 0;
}

void check_patterns(const std::string& key, const std::vector<std::string>& patterns,
                    const std::string& split, const Record& record, std::vector<std::string>& problems) {
    std::vector<bool> used(patterns.size());
    for (const ShardInfo& shard : record.data) {
        if (shard.split != split) continue;
        bool found = false;
        for (size_t i = 0; i < patterns.size(); ++i) {
            const bool match = matches(patterns[i], shard.file);
            used[i] = used[i] || match;
            found = found || match;
        }
        if (!found)
            problems.push_back(fmt::format("{}: no pattern matches {}, a {} shard", key, shard.file, split));
    }
    for (size_t i = 0; i < patterns.size(); ++i) {
        if (!used[i])
            problems.push_back(
                fmt::format("{}: '{}' matches none of the record's {} shards", key, patterns[i], split));
    }
}

// Number of steps with losses that identify a run. Builds and processors differ by rounding, which grows with the steps.
constexpr size_t kFirstSteps = 4;

// Returns the largest relative difference of loss and gradient norm in the first steps.
double distance_of_first_steps(const std::vector<RunLine>& a, const std::vector<RunLine>& b) {
    double most = 0;
    for (size_t i = 0; i < kFirstSteps; ++i) {
        if (i >= a.size() || i >= b.size() || !a[i].is_step || !b[i].is_step || a[i].step != b[i].step)
            return std::numeric_limits<double>::infinity();
        most = std::max(most, std::abs(a[i].loss - b[i].loss) / std::abs(b[i].loss));
        most = std::max(most, std::abs(a[i].grad_norm - b[i].grad_norm) / std::abs(b[i].grad_norm));
    }
    return most;
}

}  // namespace

std::vector<std::string> config_problems(const std::string& name, const Config& config, const Record& record,
                                         const Track& track) {
    std::vector<std::string> problems;
    check_patterns(name + ".data.train", config.data.train, "train", record, problems);
    check_patterns(name + ".data.val", config.data.val, "val", record, problems);
    if (config.record.track != track.name)
        problems.push_back(
            fmt::format("{}.record.track: '{}', the record is of {}", name, config.record.track, track.name));
    // The rule `data` checks that the record's target is its class's.
    if (!record.by_loss && config.record.target_loss != record.target_loss)
        problems.push_back(fmt::format("{}.record.target_loss: {}, the record's is {}", name,
                                       config.record.target_loss, record.target_loss));
    if (config.data.val_tokens != 0 && config.data.val_tokens != track.validation_tokens)
        problems.push_back(fmt::format("{}.data.val_tokens: {}, the track scores {}", name,
                                       config.data.val_tokens, track.validation_tokens));
    if (!config.model.init_from.empty())
        problems.push_back(
            fmt::format("{}.model.init_from: starts from the weights in '{}'", name, config.model.init_from));
    if (config.parallel.simulates()) problems.push_back(name + ".parallel: a simulated network");
    return problems;
}

std::string threads_problem(const Config& config, const Record& record) {
    static const std::regex with_threads(".* on ([0-9]+) threads?(, .*)?");
    const auto hardware = parse_json<nlohmann::ordered_json>(record.hardware);
    for (const auto& rank : hardware.value("ranks", nlohmann::ordered_json::array())) {
        const std::string device = rank.value("device", "");
        std::smatch match;
        if (!std::regex_match(device, match, with_threads)) continue;
        const int64_t threads = std::strtoll(match[1].str().c_str(), nullptr, 10),
                      cores = record.hardware_class.cores;
        if (config.threads > 0 ? threads != config.threads : cores > 0 && threads > cores)
            return fmt::format("hardware.ranks: '{}', config.threads is {} on {} cores", device,
                               config.threads, cores);
    }
    return "";
}

std::vector<std::string> baseline_problems(const std::string& config, const std::string& predecessor,
                                           const std::string& origin) {
    const auto whole = [](const std::string& text) {
        return config_to_json(recorded_config(text, "config"));
    };
    const auto ours = flat_keys(whole(config)), theirs = flat_keys(whole(predecessor));
    std::vector<std::string> problems;
    for (const KeyDifference& d : key_differences(predecessor, config)) {
        if (d.key == "seed") continue;
        const auto before = theirs.find(d.key), after = ours.find(d.key);
        const bool both = d.before != "nothing" && d.after != "nothing";
        if (!both && before != theirs.end() && after != ours.end() && before->second == after->second)
            continue;
        // memory.logits_at_once is now 0, which has the effect of its old default on the CPU.
        if (!both && (before == theirs.end() || after == ours.end() || d.key == "memory.logits_at_once"))
            continue;
        problems.push_back(fmt::format("baseline.config.{}: {}, in {} it is {}", d.key,
                                       both ? d.after : after->second, origin,
                                       both ? d.before : before->second));
    }
    return problems;
}

std::vector<std::string> shard_problems(const Record& record, const Track& track) {
    std::vector<std::string> problems;
    for (size_t i = 0; i < record.data.size(); ++i) {
        const ShardInfo& shard = record.data[i];
        for (size_t j = 0; j < i; ++j) {
            if (record.data[j].sha256 == shard.sha256)
                problems.push_back(
                    fmt::format("data.{}: {} and {} are one shard", i, record.data[j].file, shard.file));
        }
        const auto known = std::find_if(track.shards.begin(), track.shards.end(), [&](const ShardInfo& s) {
            return s.sha256 == shard.sha256 && s.split == shard.split;
        });
        if (known == track.shards.end()) continue;  // the rule `data` reports it
        const std::string name = fs::path(shard.file).filename().string();
        if (name != fs::path(known->file).filename())
            problems.push_back(
                fmt::format("data.{}.file: {}, the track's is called {}", i, name, known->file));
        if (shard.tokens != known->tokens && known->tokens > 0)
            problems.push_back(fmt::format("data.{}.tokens: {}, the track's {} has {}", i, shard.tokens,
                                           known->file, known->tokens));
    }
    return problems;
}

std::string seed_problem(const SeedRun& run, const std::vector<SeedRun>& others) {
    const SeedRun* nearest = nullptr;
    double least = std::numeric_limits<double>::infinity(), second = least;
    for (const SeedRun& other : others) {
        const double d = distance_of_first_steps(run.lines, other.lines);
        if (d < least) {
            second = least;
            least = d;
            nearest = &other;
        } else {
            second = std::min(second, d);
        }
    }
    // One run is far closer than all others: both have its seed.
    if (!nearest || nearest->seed == run.seed || least > 0.3 * second) return "";
    return fmt::format("seed {}, but its first steps are those of seed {}", run.seed, nearest->seed);
}

}  // namespace speedrun
