// records counts: loss and time of an n-gram count model on a track, as a reference for its boards.
#include <fmt/ranges.h>

#include <cstdio>
#include <filesystem>

#include "data/durable_file.h"
#include "data/json_text.h"
#include "kernels/device/error.h"
#include "train/commands/commands.h"
#include "train/records/counts_reference.h"
#include "train/runlog/environment.h"

namespace speedrun {

namespace {

constexpr int kRepetitions = 5;

CountsReference reference_here(const Track& track, const TrackTokens& tokens, int64_t row_length) {
    const Environment environment = read_environment();
    CountsReference reference;
    reference.track = track.name;
    reference.row_length = row_length;
    reference.tokens = track.validation_tokens;
    reference.date = environment.time_utc.substr(0, 10);
    const std::string& commit = environment.git_sha;
    reference.dirty = commit.ends_with("-dirty");
    reference.git_sha = commit.substr(0, commit.rfind("-dirty"));
    reference.hardware = hardware_of(environment_to_json(environment));
    reference.hardware_class = hardware_class_of(reference.hardware);
    reference.data = tokens.shards;
    return reference;
}

void print_row(int64_t order, const CountsResult& result, double seconds) {
    std::printf("%5lld  %.6f  %8.3f  %8.3f  %7.3f  %9lld\n", static_cast<long long>(order), result.loss,
                seconds, result.counting_s, result.scoring_s, static_cast<long long>(result.contexts));
    std::fflush(stdout);
}

std::string folder_of_track(const std::string& track) {
    namespace fs = std::filesystem;
    const bool named = !fs::exists(track) && fs::exists(fs::path("records") / track / "track.json");
    return named ? "records/" + track : track;
}

}  // namespace

int run_record_counts(const RecordCountsOptions& options) {
    const std::vector<int> orders = options.orders.empty() ? std::vector{options.order} : options.orders;
    if (!options.out.empty() && orders.size() > 1)
        throw_usage("--out writes the reference of one order, --orders lists {}", fmt::join(orders, ","));
    const std::string track_folder = folder_of_track(options.track);
    const Track track = read_track(track_folder);
    const std::string folder = options.data.empty() ? data_folder(track, track_folder) : options.data;
    const TrackTokens tokens = read_track_tokens(track, folder);
    CountsReference reference = reference_here(track, tokens, options.row_length);
    size_t counted = 0;
    for (const auto& shard : tokens.train) counted += shard.size();
    std::printf("track %s: %zu tokens of %s counted, %lld scored in rows of %lld, vocabulary of %d\n",
                track.name.c_str(), counted, folder.c_str(), static_cast<long long>(track.validation_tokens),
                static_cast<long long>(options.row_length), tokens.vocab_size);
    std::printf("%s; reading and hashing the shards is not timed\n", reference.hardware_text().c_str());
    std::printf("order  loss      seconds   counting  scoring  contexts\n");
    for (const int order : orders) {
        CountsResult result = measure_counts(order, tokens, options.row_length);
        reference.order = order;
        reference.loss = result.loss;
        reference.repetitions = {result.seconds()};
        for (int i = 1; i < kRepetitions && !options.out.empty(); ++i) {
            result = measure_counts(order, tokens, options.row_length);
            reference.repetitions.push_back(result.seconds());
        }
        print_row(order, result, reference.seconds());
    }
    if (options.out.empty()) return 0;
    const std::string text = reference_to_json(reference);
    reference_from_json(text, options.out, track);  // checks the file before it is written
    write_file(options.out, text);
    std::printf("%s: seconds are the median of %d repetitions\n", options.out.c_str(), kRepetitions);
    return 0;
}

}  // namespace speedrun
