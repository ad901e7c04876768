#include "tests/train/recipe_fixture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "data/dataset.h"
#include "data/shard.h"
#include "kernels/device/philox.h"
#include "tests/distributed/rank_threads.h"
#include "train/config/config_json.h"
#include "train/engine/batch_sources.h"
#include "train/engine/memory_plan.h"
#include "train/engine/step_runner.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun::testing {

namespace {

// Same as starting_values() of fixtures/recipe_fixture.py.
double starting_value(int64_t element, uint32_t number, double mean, double deviation) {
    int64_t total = 0;
    for (const uint32_t word : philox4x32({static_cast<uint32_t>(element), number, 0, 0}, philox_key(89)))
        total += word >> 16;
    const double normal = static_cast<double>(total - 131070) / 37837.0;
    const auto hundredths = static_cast<int64_t>((mean + deviation * normal) * 100 + 1000.5) - 1000;
    return static_cast<float>(static_cast<double>(hundredths) / 100);
}

std::map<int, Values> by_step(const nlohmann::json& json) {
    std::map<int, Values> lists;
    for (const auto& [step, values] : json.items()) lists[std::stoi(step)] = values.get<Values>();
    return lists;
}

RecipeFixture load_recipe(const std::string& name) {
    const nlohmann::json json = load_json_fixture(name);
    RecipeFixture fixture{
        .train_tokens = json.at("train_tokens"),
        .val_tokens = json.at("val_tokens"),
        .prefixes = json.value("prefixes", std::vector<int32_t>{}),
        .token_losses = by_step(json.at("token_losses")),
        .step_losses = json.at("step_losses"),
        .step_losses_with_bf16_moments = json.value("step_losses_with_bf16_moments", Values{}),
        .validation_loss = json.at("validation_loss"),
        .parameters = {}};
    for (const auto& [parameter, entry] : json.at("parameters").items()) {
        RecipeParameter& p = fixture.parameters[parameter] = recipe_parameter(entry);
        p.gradients = by_step(entry.at("gradients"));
        p.changes = by_step(entry.at("changes"));
        p.change_norm = entry.at("change_norm");
    }
    return fixture;
}

}  // namespace

RecipeParameter recipe_parameter(const nlohmann::json& json) {
    RecipeParameter p{.shape = json.at("shape"), .start = {}, .gradients = {}, .changes = {}};
    int64_t count = 1;
    for (const int64_t size : p.shape) count *= size;
    const nlohmann::json& start = json.at("start");
    for (int64_t i = 0; i < count; ++i)
        p.start.push_back(starting_value(i, start[0].get<uint32_t>(), start[1], start[2]));
    return p;
}

Values sketch_of(const Values& x, const std::vector<int64_t>& shape) {
    constexpr size_t kWhole = 48, kGroups = 8;
    if (x.size() <= kWhole) return x;
    const auto cols = shape.size() > 1 ? static_cast<size_t>(shape[1]) : size_t{1};
    Values sketch(2 * kGroups);
    for (size_t i = 0; i < x.size(); ++i) {
        const double turns = static_cast<double>(i + 1) * 0.6180339887498949;
        const double weighted = x[i] * (0.5 + turns - std::floor(turns));
        sketch[i / cols % kGroups] += weighted;
        sketch[kGroups + i % cols % kGroups] += weighted;
    }
    return sketch;
}

RecipeTest::RecipeTest(const std::string& name, const RecipeTolerances& tolerances, const std::string& config,
                       Settings settings)
    : name_(name),
      fixture_(load_recipe(name)),
      tolerances_(tolerances),
      config_(config),
      settings_(std::move(settings)) {}

void RecipeTest::SetUp() {
    DatasetInfo info{.name = name_, .tokenizer = "bytes", .vocab_size = 61, .separator = 60, .shards = {}};
    for (const auto& [split, tokens] :
         {std::pair{"train", &fixture_.train_tokens}, std::pair{"val", &fixture_.val_tokens}}) {
        const std::string file = std::string(split) + ".bin";
        write_shard(dir_.file(file), *tokens);
        info.shards.push_back(
            {file, split, static_cast<int64_t>(tokens->size()), sha256_file(dir_.file(file))});
    }
    write_dataset_info(dir_.file("dataset.json"), info);
}

Config RecipeTest::config(const Settings& more) const {
    Settings all = settings_;
    for (const char* split : {"train", "val"})
        all.push_back(fmt::format("data.{}={}", split, dir_.file(fmt::format("{}.bin", split))));
    all.insert(all.end(), more.begin(), more.end());
    return read_config(config_, all);
}

// Uses the fixture's prefixes: its tokens have no tokenizer.
BatchLoaderOptions RecipeTest::loader(const Config& c, const Ranks& ranks) const {
    return loader_options(c, ranks, std::make_shared<const std::vector<int32_t>>(fixture_.prefixes));
}

void RecipeTest::expect_gradients() {
    const Config c = config();
    const TokenDataset train = open_dataset(c, c.data.train, "data.train");
    const BatchLoader batches(train, loader(c));
    for (const auto& [step, expected] : fixture_.token_losses) {
        SCOPED_TRACE(fmt::format("step {}", step));
        const StagePoint point = c.schedule.point_of(step);
        ASSERT_EQ(point.share, 0) << "the harness weighs losses as at the beginning of a stage";
        const Config stage = c.in_stage(point.stage);
        const int64_t length = stage.batch.sequence_length, rows = stage.batch.tokens_per_step / length;
        Batch batch;
        batches.fill(step, {0, rows}, batch);
        ModelHarness h(stage.model, rows * length, length);
        h.prefixes = fixture_.prefixes;
        ASSERT_EQ(static_cast<size_t>(h.table().size()), fixture_.parameters.size());
        for (const Parameter& p : h.table().all()) {
            ASSERT_TRUE(fixture_.parameters.count(p.name)) << p.name;
            ASSERT_EQ(p.shape, fixture_.parameters.at(p.name).shape) << p.name;
            h.set(p, fixture_.parameters.at(p.name).start);
        }
        h.tracker.begin_step();
        h.backward({batch.tokens, batch.targets, batch.positions, batch.first_key},
                   stage.model.parts.loss.gradient_scale(rows * length));
        const Values losses = h.read(h.model.losses());
        ASSERT_EQ(losses.size(), expected.size());
        for (size_t t = 0; t < losses.size(); ++t)
            EXPECT_NEAR(losses[t], expected[t], tolerances_.token_loss * expected[t]) << "token " << t;
        for (const Parameter& p : h.table().all()) {
            if (p.id == h.model.description().inactive) continue;
            const Values& gradient = fixture_.parameters.at(p.name).gradients.at(step);
            const Values error = difference_of(sketch_of(h.gradient(p), p.shape), gradient);
            EXPECT_LE(largest_of(error),
                      (is_of_stream(p.name) ? tolerances_.stream_gradient : tolerances_.gradient) *
                          largest_of(gradient))
                << p.name;
        }
    }
}

RecipeTest::Run RecipeTest::run_rank(const Config& c, World* world) const {
    const Ranks ranks = world ? resolve_ranks(c, *world) : Ranks{};
    const TokenDataset train = open_dataset(c, c.data.train, "data.train"),
                       val = open_dataset(c, c.data.val, "data.val");
    const BatchLoader batches_of(train, loader(c, ranks));
    Prefetcher prefetcher(batches_of, {.rows_per_microbatch = rows_per_microbatch(c),
                                       .rank = ranks.data_rank(),
                                       .num_ranks = ranks.num_data_ranks()});
    PrefetchedBatches batches(prefetcher);
    Runtime runtime(runtime_options(c, ranks));
    StepRunner runner(c, runtime, ranks);
    runner.state().initialize(1);
    std::vector<std::vector<float>> start;
    for (const Parameter& p : runner.state().table().all()) {
        const Values& values = fixture_.parameters.at(p.name).start;
        start.emplace_back(values.begin(), values.end());
    }
    runner.state().assign(start);
    Run run;
    const auto& stored = fixture_.parameters.begin()->second.changes;
    for (int step = 0; step < c.schedule.total_steps(); ++step) {
        runner.enqueue(step, batches);
        run.losses.push_back(runner.collect().loss);
        if (!stored.count(step + 1)) continue;
        for (const Parameter& p : runner.state().table().all()) {
            std::vector<float> now(start[p.id].size());
            runner.state().read_master(p, now.data());
            run.changes[step + 1][p.name] =
                difference_of({now.begin(), now.end()}, {start[p.id].begin(), start[p.id].end()});
        }
    }
    run.validation_loss = runner.validate({val, validation_options(c, ranks)});
    return run;
}

RecipeTest::Run RecipeTest::run(int num_ranks, const Settings& settings) const {
    const Config c = config(settings);
    if (num_ranks == 1) return run_rank(c, nullptr);
    Run first;
    run_ranks(num_ranks, [&](World& world) {
        Run run = run_rank(c, &world);
        if (world.rank() == 0) first = std::move(run);
    });
    return first;
}

void RecipeTest::expect_losses(const Values& losses, const Values& expected) const {
    ASSERT_EQ(losses.size(), expected.size());
    for (size_t step = 0; step < losses.size(); ++step)
        EXPECT_NEAR(losses[step], expected[step], tolerances_.mean_loss * expected[step]) << "step " << step;
}

void RecipeTest::expect_agreement(const Run& run) const {
    expect_losses(run.losses, fixture_.step_losses);
    const double validation = fixture_.validation_loss;
    EXPECT_NEAR(run.validation_loss, validation, tolerances_.mean_loss * validation);
    for (const auto& [name, entry] : fixture_.parameters) {
        const double tolerance = is_orthogonalised(name) ? tolerances_.polar
                                 : is_of_stream(name)
                                     ? std::max(tolerances_.adam, tolerances_.stream_gradient)
                                     : tolerances_.adam;
        const double rounding = 1.2e-7 * norm_of(entry.start);  // rounding of weights to f32 after each step
        for (const auto& [steps, expected] : entry.changes) {
            const Values error =
                difference_of(sketch_of(run.changes.at(steps).at(name), entry.shape), expected);
            // The expected change is 0 before Adam's first step.
            EXPECT_LE(norm_of(error), tolerance * norm_of(expected) + rounding) << name << " after " << steps;
        }
        EXPECT_NEAR(norm_of(run.changes.rbegin()->second.at(name)), entry.change_norm,
                    tolerance * entry.change_norm + rounding)
            << name;
    }
}

}  // namespace speedrun::testing
