// The engine on several ranks against one: loss and gradient norm of ten steps, for every strategy, number of
// ranks, accumulation, optimizer and launch mode, on a model whose sizes divide nothing, with uneven
// documents.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "tests/distributed/rank_threads.h"
#include "train/config/config_json.h"
#include "train/distributed/simulated_world.h"
#include "train/step_runner.h"

namespace speedrun::testing {
namespace {

constexpr int64_t kSequence = 16, kRows = 24, kSteps = 10;

struct Mode {
    Strategy strategy;
    int replicate, shard;
    int64_t accumulation;
    const char* optimizer;  // of the matrices
    Launch launch;
    const char* precision = "f32";
    double clip = 0;
    const char* family = "recipe";  // "gpt2" | "modern" | "recipe": modern with mixes and value embeddings
    const char* checkpointing = "none";
    const char* clip_norm = "2";

    int ranks() const { return replicate * shard; }
};

void PrintTo(const Mode& mode, std::ostream* out) {
    *out << row_of(mode.strategy).name << "_" << mode.replicate << "x" << mode.shard << "_accumulate"
         << mode.accumulation << "_" << mode.optimizer << "_"
         << (mode.launch == Launch::ready ? "ready" : "after_backward") << "_" << mode.precision
         << (mode.clip > 0 ? std::string("_clip") + mode.clip_norm : "")
         << (std::string(mode.family) == "recipe" ? "" : mode.family)
         << (std::string(mode.checkpointing) == "none" ? "" : mode.checkpointing);
}

Config config_of(const Mode& mode) {
    Config config = parse_config(R"({
        "model": {"num_layers": 3, "model_dim": 48, "num_heads": 3, "vocab_size": 257, "mix_first_embedding": true,
                  "value_embeddings": 1, "zero_init_projections": false},
        "batch": {"sequence_length": 16, "microbatch_tokens": 384, "tokens_per_step": 384},
        "optimizers": {"groups": [{"type": "adamw", "params": ["*"], "lr": 0.003}]},
        "schedule": {"steps": 10, "cooldown_fraction": 0.5},
        "threads": 1
    })",
                                 "test", {});
    config.device = "cpu";
    config.precision = mode.precision;
    config.batch.tokens_per_step = kRows * kSequence;
    config.batch.microbatch_tokens = kRows * kSequence / (mode.ranks() * mode.accumulation);
    config.optimizers.clip = mode.clip;
    config.optimizers.clip_norm = mode.clip_norm;
    config.memory.activation_checkpointing = mode.checkpointing;
    const std::string family = mode.family;
    if (family != "recipe") {
        config.model.mix_first_embedding = false;
        config.model.value_embeddings = 0;
    }
    if (family == "gpt2") {
        config.model.preset = "gpt2";
        config.model.apply_preset();
    }
    OptimizerGroupConfig matrices, rest;
    matrices.type = mode.optimizer;
    matrices.params = {"blocks.*.weight"};
    matrices.lr = matrices.type == "muon" ? 0.02 : 0.003;
    rest.params = {"*"};
    rest.lr = 0.003;
    config.optimizers.groups = {matrices, rest};
    return config;
}

// The rows of a step are the same whoever works on them; documents end anywhere, one target in eight does not
// count.
class RowSource final : public BatchSource {
  public:
    RowSource(const Mode& mode, const Ranks& ranks)
        : rows_(kRows / (mode.ranks() * mode.accumulation)),
          accumulation_(mode.accumulation),
          ranks_(ranks) {}

    const Batch& next() override {
        const int64_t step = made_ / accumulation_, microbatch = made_ % accumulation_;
        ++made_;
        batch_ = {};
        for (int64_t i = 0; i < rows_; ++i)
            add_row(step, (microbatch * ranks_.size() + ranks_.data_rank()) * rows_ + i, i);
        return batch_;
    }

  private:
    void add_row(int64_t step, int64_t row, int64_t at) {
        std::mt19937_64 random(static_cast<uint64_t>(step * 1000 + row));
        auto first = static_cast<int32_t>(at * kSequence);
        for (int64_t t = 0; t < kSequence; ++t) {
            if (random() % 5 == 0) first = static_cast<int32_t>(at * kSequence + t);
            batch_.tokens.push_back(static_cast<int32_t>(random() % 257));
            batch_.targets.push_back(random() % 8 == 0 ? -1 : static_cast<int32_t>(random() % 257));
            batch_.positions.push_back(static_cast<int32_t>(t));
            batch_.first_key.push_back(first);
        }
    }

    const int64_t rows_, accumulation_;
    const Ranks& ranks_;
    int64_t made_ = 0;
    Batch batch_;
};

struct Curve {
    std::vector<double> losses, norms;
    std::vector<std::vector<float>> masters;  // by parameter
    int64_t bytes_sent = 0;
    std::map<std::string, int64_t> memory;  // by category
};

Curve train(const Mode& mode, World* world) {
    const Config config = config_of(mode);
    Ranks ranks;
    ranks.world = world;
    ranks.mesh = Mesh({mode.replicate, mode.shard, 1, 1});
    ranks.plan.strategy = mode.strategy;
    ranks.plan.launch = mode.launch;
    ranks.plan = resolve_plan(ranks.plan);
    Runtime runtime(
        {.device = "cpu", .precision = mode.precision, .threads = 1, .communicates = mode.ranks() > 1});
    StepRunner runner(config, runtime, ranks);
    runner.warm_up();
    runner.initialize(3);
    RowSource source(mode, ranks);
    Curve curve;
    runner.start_clock();
    const int64_t held = runtime.device().memory().total();
    const int64_t sent_before = runner.bytes_sent();
    const auto collect = [&] {
        const StepResult result = runner.collect();
        curve.losses.push_back(result.loss);
        curve.norms.push_back(result.grad_norm);
    };
    for (int64_t step = 0; step < kSteps; ++step) {
        runner.enqueue(step, source);
        if (runner.uncollected() == 2) collect();
    }
    collect();
    curve.bytes_sent = runner.bytes_sent() - sent_before;
    for (const Parameter& p : runner.model().table().all()) {
        curve.masters.emplace_back(p.numel());
        runner.read_master(p, curve.masters.back().data());
    }
    EXPECT_EQ(runtime.device().memory().total(), held) << "steps allocate nothing";
    for (int i = 0; i < kNumMemoryCategories; ++i) {
        const auto category = static_cast<MemoryCategory>(i);
        curve.memory[std::string(name_of(category))] = runtime.device().memory().total(category);
    }
    return curve;
}

struct Delays {
    double jitter_s = 0;
    uint64_t seed = 0;
};

// Of rank 0, after checking that all ranks agree in every bit; bytes_sent becomes the sum of all ranks.
Curve train_ranks(const Mode& mode, const Delays& delays = {}) {
    if (mode.ranks() == 1) return train(mode, nullptr);
    std::vector<Curve> curves(static_cast<size_t>(mode.ranks()));
    run_ranks(mode.ranks(), [&](World& world) {
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
    }
    curves[0].bytes_sent = bytes_sent;
    return curves[0];
}

const Curve& one_rank(const Mode& mode) {
    static std::map<std::string, Curve> known;
    const std::string key =
        fmt::format("{} {} {} {}", mode.optimizer, mode.precision, mode.clip, mode.clip_norm);
    if (!known.count(key)) {
        Mode alone = mode;
        alone.strategy = Strategy::ddp;
        alone.replicate = alone.shard = 1;
        alone.accumulation = 1;
        alone.launch = Launch::ready;
        known[key] = train(alone, nullptr);
    }
    return known[key];
}

double worst(const std::vector<double>& actual, const std::vector<double>& expected) {
    EXPECT_EQ(actual.size(), expected.size());
    double result = 0;
    for (size_t i = 0; i < expected.size(); ++i)
        result = std::max(result, std::abs(actual[i] - expected[i]) / std::abs(expected[i]));
    return result;
}

class EngineTest : public ::testing::TestWithParam<Mode> {};

TEST_P(EngineTest, TenStepsEqualOneRanks) {
    const Mode mode = GetParam();
    const Curve curve = train_ranks(mode);
    const Curve& expected = one_rank(mode);
    // Sums over ranks in another order than over one rank's tokens: f32 rounding. bf16 rounds each rank's
    // products separately, 2^-9 each, which means over the tokens of a step and ten steps of training stay
    // within 1%.
    const double tolerance = std::string(mode.precision) == "f32" ? 1e-5 : 1e-2;
    EXPECT_LT(worst(curve.losses, expected.losses), tolerance);
    EXPECT_LT(worst(curve.norms, expected.norms), tolerance);
    EXPECT_LT(curve.losses.back(), curve.losses.front()) << "ten steps should teach something";
    EXPECT_TRUE(mode.clip == 0 || curve.norms.front() > mode.clip) << "nothing was clipped";
}

std::vector<Mode> all_modes() {
    std::vector<Mode> modes;
    for (const Strategy strategy : {Strategy::ddp, Strategy::zero1}) {
        for (const int shard : {1, 2, 4, 8}) {
            for (const int64_t accumulation : {1, 3}) {
                for (const char* optimizer : {"adamw", "muon"}) {
                    for (const Launch launch : {Launch::ready, Launch::after_backward})
                        modes.push_back({strategy, 1, shard, accumulation, optimizer, launch});
                }
            }
        }
        modes.push_back({strategy, 2, 2, 3, "muon", Launch::ready});
        modes.push_back({strategy, 2, 2, 1, "adamw", Launch::after_backward});
        modes.push_back({strategy, 4, 2, 1, "muon", Launch::ready});
        modes.push_back({strategy, 1, 3, 1, "muon", Launch::ready});
        modes.push_back({strategy, 1, 4, 1, "muon", Launch::ready, "f32", 0.2});
        modes.push_back({strategy, 1, 4, 3, "muon", Launch::ready, "bf16"});
        const std::pair<const char*, double> limits[] = {{"1", 10}, {"2", 0.2}, {"3", 0.05}, {"inf", 0.02}};
        for (const auto& [norm, limit] : limits) {
            for (const int shard : {2, 4}) {
                modes.push_back(
                    {strategy, 1, shard, 1, "adamw", Launch::ready, "f32", limit, "recipe", "none", norm});
            }
        }
        modes.push_back({strategy, 2, 2, 1, "adamw", Launch::ready, "f32", 0.02, "recipe", "none", "inf"});
    }
    return modes;
}
INSTANTIATE_TEST_SUITE_P(Modes, EngineTest, ::testing::ValuesIn(all_modes()), [](const auto& info) {
    std::ostringstream name;
    PrintTo(info.param, &name);
    return name.str();
});

// Counted where they are sent, against the formulas of collective.h over the regions with their padding.
TEST(EngineBytesTest, EqualTheFormula) {
    for (const Mode& mode : {Mode{Strategy::ddp, 1, 4, 3, "muon", Launch::ready},
                             Mode{Strategy::zero1, 1, 4, 3, "muon", Launch::ready},
                             Mode{Strategy::zero1, 1, 4, 1, "adamw", Launch::ready, "bf16"},
                             Mode{Strategy::zero1, 2, 2, 1, "muon", Launch::after_backward}}) {
        const Config config = config_of(mode);
        const ParameterTable table(config.model, config.batch.sequence_length);
        Ranks ranks;
        ranks.mesh = Mesh({mode.replicate, mode.shard, 1, 1});
        ranks.plan.strategy = mode.strategy;
        const RegionLayout layout(table, region_rules(ranks, table, config.optimizers));
        ranks.plan = resolve_plan(ranks.plan);
        ranks.plan.compute_dtype = std::string(mode.precision) == "f32" ? DType::f32 : DType::bf16;
        double planned = 0;
        for (const double kind : step_wire_bytes(region_schedule(layout, ranks), 1)) planned += kind;

        // The same by hand.
        const int all = mode.ranks(), parts = mode.shard, copies = mode.replicate;
        double bytes = wire_bytes(Collective::all_reduce, all, 2 * 4);  // loss and stop
        if (mode.strategy == Strategy::zero1)
            bytes += wire_bytes(Collective::all_reduce, parts, layout.size() * 4);  // squares
        for (const Region& region : layout.all()) {
            const int64_t gradient = layout.padded(region) * 4;
            if (mode.strategy == Strategy::ddp) {
                bytes += wire_bytes(Collective::all_reduce, all, gradient);
                continue;
            }
            const bool f32 = region.full_precision || std::string(mode.precision) == "f32";
            bytes += wire_bytes(Collective::reduce_scatter, parts, gradient);
            bytes += wire_bytes(Collective::all_reduce, copies, region.part * 4);
            bytes += wire_bytes(Collective::all_gather, parts, layout.padded(region) * (f32 ? 4 : 2));
        }
        EXPECT_NEAR(planned, bytes, 1e-6) << ::testing::PrintToString(mode);
        EXPECT_NEAR(static_cast<double>(train_ranks(mode).bytes_sent), kSteps * all * bytes, 1e-6)
            << ::testing::PrintToString(mode);
    }
}

// What the strategy is for: masters (where compute reads bf16) and optimizer state fall with the ranks that
// share them.
TEST(EngineMemoryTest, ZeroOneSharesMastersAndState) {
    for (const char* optimizer : {"adamw", "muon"}) {
        const auto memory = [&](Strategy strategy, int shard) {
            return train_ranks({strategy, 1, shard, 1, optimizer, Launch::ready, "bf16"}).memory;
        };
        auto alone = memory(Strategy::ddp, 1), ddp = memory(Strategy::ddp, 4),
             zero1 = memory(Strategy::zero1, 4);
        for (const char* category : {"master weights", "optimizer state"}) {
            EXPECT_EQ(ddp[category], alone[category]) << category;
            const double share = static_cast<double>(zero1[category]) / static_cast<double>(alone[category]);
            EXPECT_GE(share, 0.25) << category;
            EXPECT_LT(share, 0.30)
                << category << ": a quarter, and padding: 257 rows and banks of 3 to 9 matrices over 4";
        }
        EXPECT_GE(zero1["gradients"], alone["gradients"]);
    }
}

// Whatever the network does to the order of events, the numbers stay: nothing is read before it is there, or
// written before it is read.
TEST(EngineOrderTest, RandomDelaysChangeNoBit) {
    for (const Strategy strategy : {Strategy::ddp, Strategy::zero1}) {
        for (const char* optimizer : {"adamw", "muon"}) {
            const Mode mode{strategy, 1, 3, 1, optimizer, Launch::ready};
            const Curve expected = train_ranks(mode);
            for (const uint64_t seed : {10, 20}) {
                const Curve curve = train_ranks(mode, {2e-3, seed});
                EXPECT_EQ(curve.losses, expected.losses) << ::testing::PrintToString(mode);
                EXPECT_EQ(curve.norms, expected.norms);
                EXPECT_EQ(curve.masters, expected.masters);
            }
        }
    }
}

// What blocks keep for backward and what they compute again is nobody else's business.
TEST(EngineCheckpointingTest, ChangesNoBit) {
    for (const char* family : {"gpt2", "modern", "recipe"}) {
        for (const Mode& kept : {Mode{Strategy::ddp, 1, 1, 1, "adamw", Launch::ready},
                                 Mode{Strategy::ddp, 1, 1, 3, "muon", Launch::ready, "bf16"},
                                 Mode{Strategy::ddp, 1, 2, 1, "muon", Launch::ready, "bf16"},
                                 Mode{Strategy::zero1, 1, 2, 3, "adamw", Launch::ready}}) {
            Mode mode = kept;
            mode.family = family;
            const Curve expected = train_ranks(mode);
            for (const char* checkpointing : {"selective", "full"}) {
                mode.checkpointing = checkpointing;
                Curve curve = train_ranks(mode);
                EXPECT_EQ(curve.losses, expected.losses) << ::testing::PrintToString(mode);
                EXPECT_EQ(curve.norms, expected.norms);
                EXPECT_EQ(curve.masters, expected.masters);
                EXPECT_LT(curve.memory["activations"], expected.memory.at("activations"));
            }
        }
    }
}

// A rank that would send something else is an error on all of them before anything is sent.
TEST(EngineOrderTest, RanksThatPlanDifferentThingsAreToldSo) {
    std::vector<std::string> messages(2);
    run_ranks(2, [&](World& world) {
        const char* const optimizer = world.rank() == 0 ? "adamw" : "muon";
        try {
            train({Strategy::zero1, 1, 2, 1, optimizer, Launch::ready}, &world);
        } catch (const Error& error) {
            messages[static_cast<size_t>(world.rank())] = error.what();
        }
    });
    for (const std::string& message : messages) {
        EXPECT_NE(message.find("schedule"), std::string::npos) << message;
        EXPECT_NE(message.find("rank 1"), std::string::npos) << message;
    }
}

}  // namespace
}  // namespace speedrun::testing
