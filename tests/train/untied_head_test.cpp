// A head tied to the embedding until the end of a stage, then separate. References: a tied model, float64 formulas of
// model and AdamW, and runs on several ranks under every strategy.
// Covers: train/engine/untied_copies.cpp
#include <cmath>

#include "tests/distributed/rank_threads.h"
#include "tests/errors.h"
#include "tests/train/model_harness.h"
#include "tests/train/twin_model.h"
#include "train/config/config_json.h"
#include "train/engine/batch_sources.h"
#include "train/engine/memory_plan.h"
#include "train/engine/step_runner.h"
#include "train/sharding/resolve_ranks.h"

namespace speedrun::testing::untied_head_test {

using Settings = std::vector<std::string>;
constexpr int64_t kWidth = 8, kVocabulary = 12, kTokens = 48, kTied = 3, kSteps = 7;

Config config_of(const Settings& more = {}) {
    return parse_config(R"({
        "model": {
            "preset": "none", "model_dim": 8, "vocab_size": 12,
            "tables": {"embed": {"init": {"type": "normal", "value": 0.5}}},
            "input": [{"type": "table", "table": "embed"}],
            "layers": {"count": 1, "each": {"attention": null, "mlp": {"ratio": 2, "down_init": {"type": "normal", "value": 0.3}}}},
            "output": [{"type": "norm"}],
            "head": {"tied_to": "embed", "untied_after": 0, "softcap": 15, "init": {"type": "normal", "value": 3}}},
        "batch": {"sequence_length": 8, "microbatch_tokens": 48, "tokens_per_step": 48},
        "optimizers": {"groups": [{"params": ["*"], "lr": 0.01, "epsilon": 0.001, "weight_decay": 0}]},
        "schedule": {"steps": 7, "stages": [3, 7], "decay": "constant", "cooldown_fraction": 0},
        "precision": "f32", "device": "cpu", "threads": 1})",
                        "test", more);
}

// Rows of each step; every rank returns its share.
class Source final : public BatchSource {
  public:
    Source(const Config& config, const Ranks& ranks)
        : whole_(config_of({"batch.microbatch_tokens=" + std::to_string(kTokens)}).in_stage(0)),
          config_(config),
          ranks_(ranks),
          columns_(columns_of(run_stages(config, ranks).shapes.front())) {}
    const Batch& next() override {
        const int64_t count = config_.in_stage(0).batch.microbatch_tokens, parts = kTokens / count;
        if (at_ == 0) all_ = whole_.next();
        const int64_t mine = parts / ranks_.num_data_ranks();
        const int64_t first = (at_ * ranks_.num_data_ranks() + ranks_.data_rank()) * count;
        const auto cut = [&](const std::vector<int32_t>& v) {
            return std::vector<int32_t>(v.begin() + first, v.begin() + first + count);
        };
        batch_ = {.tokens = cut(all_.tokens),
                  .targets = cut(all_.targets),
                  .positions = cut(all_.positions),
                  .first_key = cut(all_.first_key)};
        for (int32_t& key : batch_.first_key) key -= static_cast<int32_t>(first);
        complete(batch_, columns_, {.sequence_length = config_.batch.sequence_length});
        batch_.step_targets = kTokens;
        at_ = (at_ + 1) % mine;
        return batch_;
    }

  private:
    SyntheticBatches whole_;
    const Config config_;
    const Ranks& ranks_;
    const std::vector<Column> columns_;
    Batch all_, batch_;
    int64_t at_ = 0;
};

struct Curve {
    std::vector<double> losses;
    std::vector<std::map<std::string, Values>> masters;  // before the first step and after each step
};

Curve train(const Config& config, World* world = nullptr, bool look = true) {
    const Ranks ranks = world ? resolve_ranks(config, *world) : Ranks{};
    Runtime runtime(runtime_options(config, ranks));
    StepRunner runner(config, runtime, ranks);
    runner.warm_up();
    runner.state().initialize(4);
    Source source(config, ranks);
    Curve run;
    const auto note = [&] {
        run.masters.emplace_back();
        for (const Parameter& p : runner.state().table().all()) {
            std::vector<float> values(static_cast<size_t>(p.whole_numel()));
            runner.state().read_master(p, values.data());
            run.masters.back()[p.name] = {values.begin(), values.end()};
        }
    };
    note();
    runner.start_clock();
    for (int64_t step = 0; step < kSteps; ++step) {
        runner.enqueue(step, source);
        run.losses.push_back(runner.collect().loss);
        if (look || step + 1 == kSteps) note();
    }
    return run;
}

TEST(UntiedHeadTest, EqualsTiedModelUntilStageEnd) {
    const Curve apart = train(config_of()), tied = train(config_of({"model.head.untied_after=-1"}));
    for (size_t step = 0; step <= kSteps; ++step) {
        const auto& values = apart.masters[step];
        const bool before = step <= kTied;
        EXPECT_EQ(values.at("embed.weight") == tied.masters[step].at("embed.weight"), before) << step;
        EXPECT_EQ(values.at("head.weight") == values.at("embed.weight"), before) << step;
        // A step's loss is computed before its update.
        if (step < kSteps) {
            EXPECT_EQ(apart.losses[step] == tied.losses[step], before) << step;
        }
    }
    // Reading the head while it is tied changes nothing.
    EXPECT_EQ(train(config_of(), nullptr, false).masters.back(), apart.masters.back());
}

// ---- model and AdamW in float64, gradients by finite differences

using Parameters = std::map<std::string, Values>;

double mean_loss(const Parameters& p, const std::string& head, const Batch& batch) {
    double total = 0;
    for (size_t t = 0; t < batch.tokens.size(); ++t) {
        const auto row = p.at("embed.weight").begin() + batch.tokens[t] * kWidth;
        Values x(row, row + kWidth), hidden = product(p.at("blocks.0.mlp.up.weight"), normed(x));
        for (double& v : hidden) v = v > 0 ? v * v : 0;
        const Values delta = product(p.at("blocks.0.mlp.down.weight"), hidden);
        for (size_t i = 0; i < x.size(); ++i) x[i] += delta[i];
        Values z = product(p.at(head), normed(x));
        double sum = 0;
        for (size_t v = 0; v < kVocabulary; ++v) sum += std::exp(z[v] = 15 * std::tanh(z[v] / 15));
        total += std::log(sum) - z[static_cast<size_t>(batch.targets[t])];
    }
    return total / static_cast<double>(batch.tokens.size());
}

TEST(UntiedHeadTest, ContinuesFromCopyWithOptimizerState) {
    const Curve run = train(config_of());
    Parameters p = run.masters.front(), first, second;
    p.erase("head.weight");
    for (const auto& [name, values] : p) first[name] = second[name] = Values(values.size());
    SyntheticBatches batches(config_of().in_stage(0));
    for (int step = 0; step < kSteps; ++step) {
        if (step == kTied)
            for (Parameters* all : {&p, &first, &second}) (*all)["head.weight"] = all->at("embed.weight");
        const Batch& batch = batches.next();
        const std::string head = step < kTied ? "embed.weight" : "head.weight";
        EXPECT_NEAR(run.losses[static_cast<size_t>(step)], mean_loss(p, head, batch), 2e-6) << step;
        Parameters gradient;
        for (auto& [name, values] : p) {
            for (double& value : values) {
                const double start = value, h = 1e-5;
                value = start + h;
                const double above = mean_loss(p, head, batch);
                value = start - h;
                gradient[name].push_back((above - mean_loss(p, head, batch)) / (2 * h));
                value = start;
            }
        }
        for (auto& [name, values] : p) {
            for (size_t i = 0; i < values.size(); ++i) {
                const double g = gradient[name][i];
                double &m = first[name][i], &v = second[name][i];
                m = 0.9 * m + 0.1 * g;
                v = 0.95 * v + 0.05 * g * g;
                const double unbiased = v / (1 - std::pow(0.95, step + 1));
                values[i] -= 0.01 * m / (1 - std::pow(0.9, step + 1)) / (std::sqrt(unbiased) + 1e-3);
            }
        }
    }
    for (const auto& [name, values] : p) {
        const Values moved = difference_of(values, run.masters.front().at(name));
        // f32 gradients err by 1e-7. With an epsilon of 1e-3 this is at most 1e-4 of a step.
        EXPECT_LT(norm_of(difference_of(run.masters.back().at(name), values)), 2e-4 * norm_of(moved)) << name;
    }
}

// ---- ranks

TEST(UntiedHeadTest, SeveralRanksMatchOneRank) {
    const Curve one = train(config_of());
    struct Case {
        int ranks;
        Settings settings;
    };
    std::vector<Case> cases;
    for (const char* strategy : {"ddp", "zero1", "zero2", "zero3"}) {
        const std::string of = fmt::format("parallel.strategy={}", strategy);
        cases.push_back({2, {of, "batch.microbatch_tokens=24"}});
        cases.push_back({3, {of, "batch.microbatch_tokens=8"}});  // two microbatches
        cases.push_back({2, {of, "parallel.tensor=2", "parallel.sequence=true"}});
    }
    cases.push_back({2, {"batch.microbatch_tokens=24", "parallel.optimizer_step=in_backward"}});
    cases.push_back(
        {2, {"batch.microbatch_tokens=24", "parallel.launch=after_backward", "optimizers.clip=10"}});
    for (const Case& c : cases) {
        const Config config = config_of(c.settings);
        std::vector<Curve> runs(static_cast<size_t>(c.ranks));
        run_ranks(c.ranks,
                  [&](World& world) { runs[static_cast<size_t>(world.rank())] = train(config, &world); });
        const std::string name =
            c.settings.front() + " on " + std::to_string(c.ranks) + ", " + c.settings.back();
        for (const Curve& run : runs) EXPECT_EQ(run.masters, runs.front().masters) << name;
        const Curve& run = runs.front();
        for (size_t step = 0; step <= kSteps; ++step) {
            EXPECT_EQ(run.masters[step].at("head.weight") == run.masters[step].at("embed.weight"),
                      step <= kTied)
                << name << " after " << step;
            if (step == kSteps) break;
            EXPECT_NEAR(run.losses[step], one.losses[step], 1e-5) << name;
        }
        for (const auto& [parameter, values] : one.masters.back()) {
            const Values moved = difference_of(values, one.masters.front().at(parameter));
            EXPECT_LT(norm_of(difference_of(run.masters.back().at(parameter), values)), 1e-3 * norm_of(moved))
                << name << ", " << parameter;
        }
    }
}

// ---- refused configs

void expect_refused(const Settings& settings, const std::string& text) {
    expect_error(ExitCode::usage, {text}, [&] {
        const Config config = config_of(settings);
        Runtime runtime(runtime_options(config, {}));
        const StepRunner runner(config, runtime, {});
    });
}

TEST(UntiedHeadTest, RejectsInvalidUntiedHead) {
    expect_refused({"model.head.untied_after=1"},
                   "model.head.untied_after 1: no stage follows it, schedule.stages has 2");
    expect_refused({"model.head.tied_to="}, "the head is not tied to a table");
    const std::string rest = R"(, {"params": ["*"]}])";
    expect_refused({R"(optimizers.groups=[{"params": ["head*"]})" + rest},
                   "head.weight is trained by group 0 and embed.weight by group 1");
    expect_refused({R"(optimizers.groups=[{"params": ["head*", "embed*"], "type": "muon"})" + rest},
                   "not of whole matrices");
    expect_refused({R"(optimizers.groups=[{"params": ["head*", "embed*"], "every": 2})" + rest},
                   "ends after step 3, between two steps");
}

// `plan --gpu` and `bench` build an engine for a single stage. Its end need not be the end of the tied stage.
TEST(UntiedHeadTest, SingleStageEngineIgnoresOtherStages) {
    const Config config = config_of({"schedule.stages=[4,9]", "schedule.steps=9",
                                     R"(optimizers.groups=[{"params": ["*"], "every": 2}])"});
    for (int64_t stage = 0; stage < 2; ++stage) {
        const Config alone = config.in_stage(stage);
        Runtime runtime(runtime_options(alone, {}));
        EXPECT_NO_THROW(StepRunner(alone, runtime, {})) << stage;
    }
}

}  // namespace speedrun::testing::untied_head_test
