#include "train/records/mlperf_log.h"

#include <cmath>
#include <map>
#include <sstream>

#include "data/json_text.h"
#include "kernels/device/error.h"
#include "train/records/record_text.h"
#include "train/records/recorded_config.h"
#include "train/records/timeline_checks.h"
#include "train/runlog/metrics_json.h"

namespace speedrun {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kPoint = "POINT_IN_TIME";
constexpr const char* kStart = "INTERVAL_START";
constexpr const char* kEnd = "INTERVAL_END";
constexpr const char* kTokens = "tokens";

// Returns the tokens trained before each number of steps, if the previous step is in the metrics.
std::map<int64_t, int64_t> tokens_before_steps(const std::string& metrics, const std::string& origin) {
    std::map<int64_t, int64_t> tokens = {{0, 0}};
    std::istringstream lines(metrics);
    int64_t number = 0;
    for (std::string line; std::getline(lines, line);) {
        ++number;
        try {
            const auto json = parse_json<Json>(line);
            if (json.at("event").get<std::string>() != "step") continue;
            tokens[value_of(json, &StepMetrics::step) + 1] = value_of(json, &StepMetrics::tokens);
        } catch (const std::exception& error) {
            throw_data("{}: line {}: {}", origin, number, error.what());
        }
    }
    return tokens;
}

// Returns MLPerf's word for a dtype.
std::string precision_word(const std::string& type) {
    if (type == "f32") return "fp32";
    if (type == "bf16") return "bfloat16";
    throw_data("hardware.ranks: computes in '{}', f32 or bf16 is expected", type);
}

class MlperfWriter {
  public:
    MlperfWriter(const Record& record, const RecordRun& run, const MlperfFacts& facts)
        : record_(record),
          run_(run),
          facts_(facts),
          config_(recorded_config(run.side == kCandidate ? record.config : record.baseline->config,
                                  fmt::format("{}: config of the {}", facts.folder, run.side))) {
        const auto began = seconds_of_utc(run.began_utc);
        if (!began) throw_data("{}: began_utc is '{}'", name(), run.began_utc);
        began_ms_ = static_cast<double>(*began) * 1e3;
    }

    std::string write(const std::string& metrics) {
        const auto tokens = tokens_before_steps(metrics, name());
        now_ms_ = began_ms_;
        point("cache_clear", false, {{"note", "caches are left as they are"}});
        event(kStart, "init_start", nullptr, {});
        say_submission();
        say_training();
        say_machine();
        now_ms_ = began_ms_ + run_.startup_ms;
        event(kEnd, "init_stop", nullptr, {});
        event(kStart, "run_start", nullptr, {});
        int64_t seen = 0;
        for (const Validation& validation : run_.validations) {
            start_block(seen);
            const auto found = tokens.find(validation.step);
            if (found == tokens.end())
                throw_data("{}: no line of step {}, which the validation after {} steps needs", name(),
                           validation.step - 1, validation.step);
            seen = found->second;
            say_validation(validation, seen);
        }
        if (run_.validations.empty() || run_.validations.back().step < run_.steps) {
            start_block(seen);
            seen = tokens.rbegin()->second;
            move_to(run_.train_ms);
            end_block(seen);
        }
        stop(seen);
        return text_;
    }

  private:
    std::string name() const {
        return fmt::format("{}: {} with seed {}", facts_.folder, run_.side, run_.seed);
    }
    void event(const char* type, const char* key, const Json& value, Json metadata) {
        if (metadata.is_null()) metadata = Json::object();
        const Json line = {{"namespace", ""},    {"time_ms", std::llround(now_ms_)},
                           {"event_type", type}, {"key", key},
                           {"value", value},     {"metadata", metadata}};
        text_ += ":::MLLOG " + line.dump() + "\n";
    }
    void point(const char* key, const Json& value, const Json& metadata = {}) {
        event(kPoint, key, value, metadata);
    }

    void say_submission() {
        const bool other = run_.side == kBaseline && record_.baseline->program;
        point("submission_benchmark", kMlperfBenchmark,
              {{"note", "names the rules; trained was the track's task"},
               {"track", record_.track},
               {"record", record_.name},
               {"side", run_.side}});
        point("submission_org", facts_.organisation);
        point("submission_division", "open");
        point("submission_platform", hardware_text(record_));
        point("config_filename", "record.json",
              {{"key", run_.side == kCandidate ? "config" : "baseline.config"},
               {"git_sha", other ? record_.baseline->program->git_sha : record_.git_sha}});
        point("seed", run_.seed);
    }
    // Reports values of the last stage if the schedule changes them.
    void say_training() {
        const Config last = config_.in_last_stage();
        int64_t train_tokens = 0;
        for (const ShardInfo& shard : record_.data) train_tokens += shard.split == "train" ? shard.tokens : 0;
        const Json tokens = {{"unit", kTokens}};
        point("train_samples", train_tokens, tokens);
        point("eval_samples", facts_.validation_tokens, tokens);
        point("global_batch_size", int64_t{last.batch.tokens_per_step}, tokens);
        point("micro_batch_size", int64_t{last.batch.microbatch_tokens}, tokens);
        point("max_sequence_length", config_.longest_sequence(), tokens);
        point("max_steps", config_.schedule.total_steps());
    }
    void say_machine() {
        const Json hardware = parse_json<Json>(record_.hardware);
        const Json ranks = hardware.value("ranks", Json::array());
        if (ranks.empty()) throw_data("{}: hardware.ranks is empty", facts_.folder);
        const std::string device = ranks.front().value("device", "");
        const std::string computes = precision_word(device.substr(0, device.find(' ')));
        const std::string reduces = precision_word(std::string(word_of(config_.parallel.reduce_dtype)));
        const bool one = ranks.size() == 1;
        point("lowest_numerical_precision_in_linear", config_.model.parts.uses_fp8() ? "fp8" : computes);
        point("lowest_numerical_precision_in_attn", computes);
        point("lowest_numerical_precision_in_comm", one || computes == "fp32" ? reduces : computes,
              one ? Json{{"note", "one rank sends nothing"}} : Json());
        point("tensor_parallelism", config_.parallel.tensor);
        point("context_parallelism", config_.parallel.context);
        point("pipeline_parallelism", 1);
        point("expert_parallelism", 1);
    }

    void start_block(int64_t seen) { event(kStart, "block_start", nullptr, {{"samples_count", seen}}); }
    void end_block(int64_t seen) { event(kEnd, "block_stop", nullptr, {{"samples_count", seen}}); }
    void move_to(double train_ms) { now_ms_ = began_ms_ + run_.startup_ms + train_ms; }
    void say_validation(const Validation& validation, int64_t seen) {
        move_to(validation.train_ms);
        end_block(seen);
        const Json place = {{"samples_count", seen}, {"step_num", validation.step}};
        Json measured = place;
        measured["loss"] = validation.loss;
        measured["metric"] = "exp(-loss)";
        event(kStart, "eval_start", nullptr, place);
        point("eval_accuracy", std::exp(-validation.loss), measured);
        event(kEnd, "eval_stop", nullptr, place);
    }
    void stop(int64_t seen) {
        move_to(run_.train_ms);
        const bool reached = run_.done() && run_.loss() <= record_.target_loss;
        event(kEnd, "run_stop", nullptr,
              {{"status", reached ? "success" : "aborted"},
               {"samples_count", seen},
               {"ended", run_.status},
               {"target_loss", record_.target_loss}});
    }

    const Record& record_;
    const RecordRun& run_;
    const MlperfFacts& facts_;
    const Config config_;
    double began_ms_ = 0, now_ms_ = 0;
    std::string text_;
};

}  // namespace

std::string mlperf_log(const Record& record, const RecordRun& run, const std::string& metrics,
                       const MlperfFacts& facts) {
    return MlperfWriter(record, run, facts).write(metrics);
}

}  // namespace speedrun
