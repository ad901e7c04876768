#include "tests/distributed/engine.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <random>
#include <sstream>

#include "kernels/device/error.h"
#include "tests/distributed/engine_models.h"
#include "tests/distributed/rank_threads.h"
#include "train/comm/simulated_world.h"
#include "train/config/choices.h"
#include "train/config/config_json.h"
#include "train/engine/run_stages.h"
#include "train/model/build_model.h"
#include "train/sharding/resolve_ranks.h"
#include "train/sharding/step_collectives.h"

namespace speedrun::testing {

namespace {

// Settings of a word, or of the key of a word with a value.
const std::map<std::string, std::string> kSettings = {
    {"muon", "optimizers.groups.0.type=muon"},
    {"after_backward", "parallel.launch=after_backward"},
    {"in_backward", "parallel.optimizer_step=in_backward"},
    {"bf16", "precision=bf16"},
    {"reduce_bf16", "parallel.reduce_dtype=bf16"},
    {"forward", "parallel.step_order=forward"},
    {"full", "memory.activation_checkpointing=full"},
    {"selective", "memory.activation_checkpointing=selective"},
    {"sequence", "parallel.sequence=true"},
    {"clip", "optimizers.clip"},
    {"norm", "optimizers.clip_norm"},
    {"accumulate", "parallel.accumulate"},
    {"reshard", "parallel.reshard_after_forward"},
    {"every", "optimizers.groups.1.every"},
    {"context", "parallel.context"},
    {"tensor", "parallel.tensor"},
    {"heads", "model.layers.each.attention.heads"},
    {"heads_per_matrix", "optimizers.groups.0.heads_per_matrix"},
    {"bucket_bytes", "parallel.bucket_bytes"}};

// Biases of keys have a gradient of rounding errors only, which AdamW would amplify to whole steps without this epsilon.
constexpr const char* kBase = R"({
    "model": {"model_dim": 48, "vocab_size": 257, "windows": {"window": 0},
              "layers": {"count": 3, "each": {"attention": {"window": "window"}}}},
    "batch": {"sequence_length": 16},
    "optimizers": {"groups": [{"params": ["blocks.*.weight"], "epsilon": 1e-5}, {"params": ["*"], "epsilon": 1e-5}]},
    "schedule": {"cooldown_fraction": 0.5},
    "device": "cpu", "precision": "f32", "threads": 1})";

std::vector<std::string> split(const std::string& words) {
    std::istringstream stream(words);
    return {std::istream_iterator<std::string>(stream), {}};
}

}  // namespace

Mode mode_of(const std::string& words) {
    Mode mode{.words = words, .config = {}};
    std::string model = "recipe";
    std::vector<std::string> settings;
    int64_t replicate = 1, shard = 1, accumulation = 1;
    for (const std::string& word : split(words)) {
        const std::string key = word.substr(0, word.find('='));
        if (find_word<Strategy>(word)) {
            settings.push_back("parallel.strategy=" + word);
        } else if (std::isdigit(word.front())) {
            replicate = std::stoi(word);
            shard = std::stoi(word.substr(word.find('x') + 1));
        } else if (word.front() == '/') {
            accumulation = std::stoi(word.substr(1));
        } else if (key == "model") {
            model = word.substr(key.size() + 1);
        } else if (const auto setting = kSettings.find(key); setting != kSettings.end()) {
            settings.push_back(setting->second + word.substr(key.size()));
        } else if (word != "stages" && word != "graphs" && word != "unmasked") {
            throw_internal("'{}' is no word of a mode, in '{}'", word, words);
        }
    }
    mode.graphs = mode.has("graphs");
    mode.masked = !mode.has("unmasked");
    const bool muon = mode.has("muon");
    // Few distinct row counts: each needs its own run on one rank.
    int64_t rows = 24;
    while (rows % (replicate * shard * accumulation) != 0) rows += 6;
    // At a higher rate, GPT-2's gradient norms differ by 6e-5 between one microbatch and two by the eighth step: too
    // much for the tolerances.
    const double lr = model == "gpt2" ? 0.001 : 0.003;
    std::vector<std::string> all = model_settings(model);
    for (const std::string& setting :
         {std::string("model.layers.each.attention.heads=3"),
          fmt::format("batch.tokens_per_step={}", rows * kSequence),
          fmt::format("batch.microbatch_tokens={}", rows * kSequence / (replicate * shard * accumulation)),
          fmt::format("parallel.replicate={}", replicate), fmt::format("parallel.shard={}", shard),
          fmt::format("schedule.steps={}", kSteps),
          fmt::format("optimizers.groups.0.lr={}", muon ? 0.02 : lr),
          fmt::format("optimizers.groups.1.lr={}", lr)})
        all.push_back(setting);
    if (words.find("heads_per_matrix") != std::string::npos)
        all.push_back("optimizers.groups.0.normuon=true");
    if (mode.has("stages")) {
        all.push_back(
            fmt::format("schedule.stages=[{}, {}, {}]", kSanitized ? 1 : 3, kSanitized ? 2 : 6, kSteps));
        all.push_back("schedule.lr_factor=[1, [1, 0.5], 0.8]");
        if (muon) all.push_back("optimizers.groups.0.momentum=[0.9, [0.9, 0.95], 0.95]");
        for (const std::string& setting : stage_settings(model)) all.push_back(setting);
    }
    all.insert(all.end(), settings.begin(), settings.end());
    mode.config = parse_config(kBase, words, all);
    return mode;
}

std::vector<Mode> modes_of(const std::vector<std::string>& strategies,
                           const std::vector<std::string>& words) {
    std::vector<Mode> modes;
    for (const std::string& strategy : strategies)
        for (const std::string& of : words) modes.push_back(mode_of(strategy + " " + of));
    return modes;
}

bool Mode::has(const std::string& word) const {
    const std::vector<std::string> all = split(words);
    return std::find(all.begin(), all.end(), word) != all.end();
}

Mesh Mode::mesh() const {
    const ParallelConfig& p = config.parallel;
    return Mesh({static_cast<int>(p.replicate), std::stoi(p.shard), static_cast<int>(p.context),
                 static_cast<int>(p.tensor)});
}

Ranks Mode::ranks(World* world) const {
    return world ? resolve_ranks(config, *world) : plan_ranks(config, num_ranks());
}

void PrintTo(const Mode& mode, std::ostream* out) {
    *out << mode.words;
}

void exchange_rows(Mode& mode) {
    for (auto& [name, table] : mode.config.model.parts.tables) table.exchange = TableExchange::rows;
}

std::string name_of(const std::string& words) {
    std::vector<std::string> all = split(words);
    std::erase(all, "/1");
    for (std::string& word : all)
        if (word.front() == '/') word.replace(0, 1, "microbatches");
    std::sort(all.begin() + 1, all.end());
    std::string name = fmt::format("{}", fmt::join(all, "_"));
    for (char& c : name)
        if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
    return name;
}

Layout::Layout(const Mode& mode)
    : ranks(mode.ranks()),
      table(parameters_of(mode.config.model, mode.config.batch.sequence_length, ranks.tensor())),
      buckets(table, bucket_rules(ranks, table, mode.config.optimizers, rank_tokens(mode.config, ranks))) {}

namespace {

// Row `row` of a step, as row `at` of the batch.
struct RowPlace {
    int64_t step, row, at;
};
void add_row(Batch& batch, const RowPlace& place, bool masks) {
    std::mt19937_64 random(static_cast<uint64_t>(place.step * 1000 + place.row));
    const int64_t begin = place.at * kSequence;
    auto first = static_cast<int32_t>(begin);
    for (int64_t t = 0; t < kSequence; ++t) {
        if (random() % 5 == 0) first = static_cast<int32_t>(begin + t);
        batch.tokens.push_back(static_cast<int32_t>(random() % 257));
        const uint64_t below = 1 + random() % 257;
        const auto low = static_cast<int32_t>(random() % below);
        batch.targets.push_back(random() % 8 == 0 && masks ? -1 : low);
        batch.valid_targets += batch.targets.back() != -1;
        batch.positions.push_back(static_cast<int32_t>(t));
        batch.first_key.push_back(first);
    }
}

// Rows of a step do not depend on the ranks. Documents end anywhere; one target in eight is masked in masked modes. Low targets
// are frequent, which a model can learn.
class RowSource final : public BatchSource {
  public:
    RowSource(const Mode& mode, const Ranks& ranks)
        : rows_of_step_(mode.rows()),
          rows_(mode.config.batch.microbatch_tokens / kSequence),
          accumulation_(mode.accumulation()),
          masks_(mode.masked && !mode.graphs),
          config_(mode.config),
          ranks_(ranks) {}

    const Batch& next() override {
        const int64_t step = made_ / accumulation_, microbatch = made_ % accumulation_;
        ++made_;
        Batch whole;
        for (int64_t row = 0; row < rows_of_step_; ++row) add_row(whole, {step, row, row}, masks_);
        batch_ = {};
        for (int64_t i = 0; i < rows_; ++i)
            add_row(batch_,
                    {step, (microbatch * ranks_.num_data_ranks() + ranks_.data_rank()) * rows_ + i, i},
                    masks_);
        batch_.step_targets = whole.valid_targets;
        const Config stage = config_.in_stage(config_.schedule.stage_of(step));
        std::vector<int32_t> prefixes;
        for (int32_t token = 0; token < 257; ++token) prefixes.push_back(token % 3 == 0 ? -1 : token / 3);
        complete(batch_, columns_of(run_stages(stage, ranks_).shapes.front()),
                 {.sequence_length = kSequence,
                  .part = ranks_.part(),
                  .prefixes = std::make_shared<const std::vector<int32_t>>(prefixes)});
        return batch_;
    }

  private:
    const int64_t rows_of_step_, rows_, accumulation_;
    const bool masks_;
    const Config config_;
    const Ranks& ranks_;
    int64_t made_ = 0;
    Batch batch_;
};

}  // namespace

std::unique_ptr<BatchSource> batches_of(const Mode& mode, const Ranks& ranks) {
    return std::make_unique<RowSource>(mode, ranks);
}

std::vector<int32_t> first_keys_of_step(const Mode& mode, int64_t step) {
    Batch batch;
    for (int64_t row = 0; row < mode.rows(); ++row) add_row(batch, {step, row, row}, false);
    return batch.first_key;
}

namespace {

RuntimeOptions runtime_of(const Mode& mode) {
    return {.device = DeviceKind::cpu,
            .precision = *mode.config.precision,
            .threads = 1,
            .communicates = mode.num_ranks() > 1};
}

}  // namespace

Curve train(const Mode& mode, World* world, const Watch& watch, CpuClock* clock) {
    const Ranks ranks = mode.ranks(world);
    Runtime runtime(runtime_of(mode));
    auto& device = static_cast<CpuDevice&>(runtime.device());
    device.allow_graphs(mode.graphs);
    if (clock) device.set_clock(*clock);
    StepRunner runner(mode.config, runtime, ranks);
    runner.warm_up();
    EXPECT_EQ(runner.has_graphs(), mode.graphs);
    runner.state().initialize(3);
    RowSource source(mode, ranks);
    Curve curve;
    const auto read_masters = [&](std::vector<std::vector<float>>& masters) {
        for (const Parameter& p : runner.state().model().table().all()) {
            masters.emplace_back(p.whole_numel());
            runner.state().read_master(p, masters.back().data());
        }
    };
    for (const Parameter& p : runner.state().model().table().all()) curve.names.push_back(p.name);
    read_masters(curve.start);
    if (watch) watch(runner, runtime);
    runner.start_clock();
    const int64_t held = runtime.device().memory().total();
    const int64_t sent_before = runner.state().bytes_sent();
    const auto collect = [&] {
        // An event may be early in virtual time and still incomplete in real time.
        if (clock) runtime.synchronize();
        curve.steps.push_back(runner.collect());
        curve.losses.push_back(curve.steps.back().loss);
        curve.norms.push_back(curve.steps.back().grad_norm);
    };
    for (int64_t step = 0; step < kSteps; ++step) {
        runner.use_graphs(step % 5 != 3);
        runner.enqueue(step, source);
        if (runner.uncollected() == 2) collect();
    }
    collect();
    runtime.synchronize();
    device.set_trace(nullptr);
    curve.bytes_sent = runner.state().bytes_sent() - sent_before;
    EXPECT_EQ(runtime.device().memory().total(), held) << "a step allocated memory";
    read_masters(curve.masters);
    const ScaleStore& scales = runner.state().schedule.state().scales();
    for (size_t i = 0; i < scales.all().size(); ++i)
        curve.scales.push_back(*scales.scale(static_cast<int>(i)).as<float>());
    EXPECT_EQ(runtime.device().memory().total(), held) << "a step allocated memory";
    for (int i = 0; i < kNumMemoryCategories; ++i) {
        const auto category = static_cast<MemoryCategory>(i);
        curve.memory[std::string(name_of(category))] = runtime.device().memory().total(category);
    }
    return curve;
}

Curve train_ranks(const Mode& mode, const Delays& delays) {
    if (mode.num_ranks() == 1) return train(mode, nullptr);
    std::vector<Curve> curves(static_cast<size_t>(mode.num_ranks()));
    run_ranks(mode.num_ranks(), [&](World& world) {
        Curve& curve = curves[static_cast<size_t>(world.rank())];
        if (delays.jitter_s == 0) {
            curve = train(mode, &world);
        } else {
            const auto slow =
                make_simulated_world(world, {.model = {},
                                             .jitter_s = delays.jitter_s,
                                             .seed = delays.seed + static_cast<uint64_t>(world.rank())});
            curve = train(mode, slow.get());
        }
    });
    int64_t bytes_sent = 0;
    for (const Curve& curve : curves) {
        bytes_sent += curve.bytes_sent;
        EXPECT_EQ(curve.losses, curves[0].losses);
        EXPECT_EQ(curve.norms, curves[0].norms);
        EXPECT_EQ(curve.masters, curves[0].masters);
        EXPECT_EQ(curve.scales, curves[0].scales);
    }
    curves[0].bytes_sent = bytes_sent;
    return curves[0];
}

const Curve& one_rank(const Mode& mode) {
    Mode alone = mode;
    alone.config.parallel = {};
    alone.config.parallel.shard = "1";
    alone.config.batch.microbatch_tokens = mode.config.batch.tokens_per_step;
    alone.config.memory = {};
    alone.masked = mode.masked && !mode.graphs;
    alone.graphs = false;
    static std::map<std::string, Curve> known;
    const std::string key = config_to_json(alone.config) + (alone.masked ? "masked" : "");
    if (!known.count(key)) known[key] = train(alone, nullptr);
    return known[key];
}

std::vector<double> master_deviations(const Curve& actual, const Curve& expected) {
    std::vector<double> deviations;
    for (size_t p = 0; p < expected.masters.size(); ++p) {
        double distance = 0, movement = 0;
        for (size_t i = 0; i < expected.masters[p].size(); ++i) {
            distance += std::pow(double{actual.masters[p][i]} - expected.masters[p][i], 2);
            movement += std::pow(double{expected.masters[p][i]} - expected.start[p][i], 2);
        }
        EXPECT_GT(movement, 0) << expected.names[p] << " has not changed";
        deviations.push_back(std::sqrt(distance / movement));
    }
    return deviations;
}

}  // namespace speedrun::testing
