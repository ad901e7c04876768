// Runs with weights in bf16, without f32 masters, and with AdamW's moments in bf16: each step under every strategy, continued
// runs, on other ranks too, types in checkpoints, and memory.
#include <map>
#include <set>

#include "tests/runs/rank_run_fixture.h"
#include "train/engine/batch_sources.h"
#include "train/model/build_model.h"
#include "train/optim/groups.h"

namespace speedrun::testing::bf16_weights_run_test {

using Values = std::vector<std::vector<float>>;  // whole parameters; index: id

Values values_of(StepRunner& runner) {
    Values values;
    for (const Parameter& p : runner.state().table().all()) {
        values.emplace_back(static_cast<size_t>(p.whole_numel()));
        runner.state().read_master(p, values.back().data());
    }
    return values;
}

Values rounded(Values values, const std::vector<bool>& which) {
    for (size_t id = 0; id < values.size(); ++id)
        for (float& value : values[id])
            if (which[id]) value = Bf16(value);
    return values;
}

class Bf16WeightsRunTest : public RankRunFixture {
  protected:
    static constexpr int64_t kSteps = 3;

    // AdamW, Muon and NorMuon on bf16 weights, together with matrices and vectors with f32 masters.
    Config config_with(const char* weights, const Settings& more = {}) const {
        const std::string dtype = std::string(R"(,"weights_dtype":")") + weights + "\"";
        Settings all = {
            R"(optimizers.groups=[{"params":["embed.weight","head.weight"],"lr":0.02,"weight_decay":0.1,"cautious":true)" +
                dtype +
                R"(},{"params":["value_embed.*"],"lr":0.03,"cautious":true,"weight_decay":0.1,"every":2,"moments_dtype":"bf16")" +
                dtype +
                R"(},{"type":"muon","params":["blocks.0.attn.*.weight"],"lr":0.02,"weight_decay":0.1)" +
                dtype + R"(},{"type":"muon","params":["blocks.1.attn.*.weight"],"lr":0.02,"normuon":true)" +
                dtype +
                R"(},{"type":"muon","params":["blocks.*.weight"],"lr":0.02},{"params":["*"],"lr":0.01}])",
            kMix,
            "precision=bf16",
            "schedule.steps=7",
            "checkpoint.every=4",
            "checkpoint.keep=9",
            "batch.microbatch_tokens=128",
            "threads=1"};
        return config(together({all, with_tables({.values = 1}), more}));
    }
    Config bf16(const Settings& more = {}) const { return config_with("bf16", more); }
    Config f32(const Settings& more = {}) const { return config_with("f32", more); }

    // True, by parameter id, if its group stores it in bf16.
    static std::vector<bool> kept_in_bf16(const Config& c) {
        const ParameterTable table = parameters_of(c.model, c.longest_sequence());
        std::vector<bool> kept;
        for (const int group : assign_groups(table, c.optimizers))
            kept.push_back(c.optimizers.groups[static_cast<size_t>(group)].weights_dtype() == DType::bf16);
        return kept;
    }

    // Weights before the first step and after each step, as rank 0 reads them.
    std::vector<Values> steps_of(int num_ranks, const Config& c,
                                 const std::function<void(StepRunner&, int64_t)>& before) const {
        std::vector<Values> all;
        run_ranks(num_ranks, [&](World& world) {
            const Ranks ranks = resolve_ranks(c, world);
            Runtime runtime(runtime_options(c, ranks));
            StepRunner runner(c, runtime, ranks);
            SyntheticBatches source(c);
            runner.warm_up();
            runner.state().initialize(3);
            for (int64_t step = 0; step <= kSteps; ++step) {
                before(runner, step);
                if (step > 0) {
                    runner.enqueue(step - 1, source);
                    runner.collect();
                }
                const Values values = values_of(runner);
                if (ranks.first()) all.push_back(values);
            }
        });
        return all;
    }
};

// Before each step, a run with masters is set to the weights of the run without masters. Its rounded result must equal the
// other run's weights bitwise. Weights with masters in both runs must be equal.
TEST_F(Bf16WeightsRunTest, EveryStepIsThatOfF32Rounded) {
    const std::vector<bool> kept = kept_in_bf16(bf16());
    EXPECT_EQ(std::set<bool>(kept.begin(), kept.end()), (std::set<bool>{false, true}));
    for (const char* strategy : {"alone", "ddp", "zero1", "zero2", "zero3"}) {
        SCOPED_TRACE(strategy);
        const bool alone = strategy == std::string("alone");
        if (kSanitized && strategy != std::string("zero1")) continue;
        const Settings way = alone ? Settings{} : Settings{by(strategy)};
        const std::vector<Values> run = steps_of(alone ? 1 : 2, bf16(way), [](StepRunner&, int64_t) {});
        const std::vector<Values> checks =
            steps_of(alone ? 1 : 2, f32(way), [&](StepRunner& runner, int64_t step) {
                if (step > 0) runner.state().assign(run[static_cast<size_t>(step - 1)]);
            });
        ASSERT_EQ(run.size(), checks.size());
        for (size_t step = 0; step < run.size(); ++step) {
            EXPECT_EQ(run[step], rounded(checks[step], kept)) << "behind step " << step;
            EXPECT_NE(run[step], checks[step]) << "behind step " << step;
        }
    }
}

// A bucket without masters has neither f32 weights nor a second copy in the compute dtype.
TEST_F(Bf16WeightsRunTest, MemoryHoldsNoMasters) {
    if (kSanitized) GTEST_SKIP() << "results of whole runs: release build only";
    const ParameterTable table = parameters_of(bf16().model, bf16().longest_sequence());
    const std::vector<bool> kept = kept_in_bf16(bf16());
    int64_t without = 0;
    for (const Parameter& p : table.all()) without += kept[static_cast<size_t>(p.id)] ? p.numel() : 0;
    struct Memory {
        int64_t masters, parameters, total, planned;
    };
    const auto memory_of = [](int num_ranks, const Config& c) {
        Memory all{};
        run_ranks(num_ranks, [&](World& world) {
            const Ranks ranks = resolve_ranks(c, world);
            Runtime runtime(runtime_options(c, ranks));
            StepRunner runner(c, runtime, ranks);
            runner.warm_up();
            const MemoryTable& memory = runtime.device().memory();
            if (ranks.first())
                all = {memory.total(MemoryCategory::master_weights), memory.total(MemoryCategory::parameters),
                       memory.total(), plan_memory(c, Ranks(ranks.mesh(), ranks.sharing())).bytes};
        });
        return all;
    };
    const Memory with = memory_of(1, f32()), less = memory_of(1, bf16());
    EXPECT_EQ(with.masters - less.masters, 4 * without);
    EXPECT_EQ(with.parameters, less.parameters);
    EXPECT_EQ(with.total - less.total, 4 * without);
    EXPECT_EQ(less.total, less.planned);
    for (const char* strategy : {"zero1", "zero3"}) {
        const Memory shards = memory_of(2, f32({by(strategy)})), fewer = memory_of(2, bf16({by(strategy)}));
        EXPECT_NEAR(static_cast<double>(shards.masters - fewer.masters), static_cast<double>(2 * without),
                    2048)
            << strategy << ", but for padding";
        EXPECT_EQ(shards.parameters, fewer.parameters) << strategy;
        EXPECT_EQ(fewer.total, fewer.planned) << strategy;
    }
}

// Ranks sum gradients in another order, which may change the rounding of a weight by 1/256 of its value.
TEST_F(Bf16WeightsRunTest, AnyRanksTrainAlike) {
    if (kSanitized) GTEST_SKIP() << "results of whole runs: release build only";
    train(bf16(), 1, "one");
    train(f32(), 1, "f32");
    const std::vector<double> expected = curve("one");
    EXPECT_NE(curve("f32"), expected);
    for (const char* strategy : {"ddp", "zero1", "zero2", "zero3"}) {
        train(bf16({by(strategy)}), 2, strategy);
        expect_near(losses(strategy), losses("one"), 0.02, strategy);
        // Moments in bf16 alone carry a rounding into the loss a hundredfold weaker.
        const std::string masters = std::string("f32_") + strategy;
        train(f32({by(strategy)}), 2, masters);
        expect_near(curve(masters), curve("f32"), 1e-3, masters);
    }
    expect_near(losses("f32"), losses("one"), 0.05, "masters of f32");
}

TEST_F(Bf16WeightsRunTest, ContinueBitwiseOnTheirRanksAndCloselyOnOthers) {
    if (kSanitized) GTEST_SKIP() << "results of whole runs: release build only";
    for (const int ranks : {1, 2}) {
        const std::string whole = "whole" + std::to_string(ranks);
        const Config c = bf16({by(ranks == 1 ? "zero1" : "zero3")});
        train(c, ranks, whole);
        expect_continues(c, ranks, whole, {4});
    }
    train(bf16({by("zero3"), "batch.tokens_per_step=768"}), 3, "three");
    train(bf16({"batch.tokens_per_step=768"}), 1, "alone", checkpoint("three", 4));
    expect_near(losses("alone"), losses("three", 4), 0.02, "three ranks, then one");
}

TEST_F(Bf16WeightsRunTest, CheckpointsHoldThemInTwoBytes) {
    if (kSanitized) GTEST_SKIP() << "results of whole runs: release build only";
    train(bf16({by("zero1")}), 2, "run");
    const ParameterTable table = parameters_of(bf16().model, bf16().longest_sequence());
    const std::vector<bool> kept = kept_in_bf16(bf16());
    CheckpointReader reader(checkpoint("run", 4));
    std::map<std::string, DType> types;
    for (const CheckpointTensor& tensor : reader.info().tensors) types[tensor.name] = tensor.dtype;
    for (const Parameter& p : table.all())
        EXPECT_EQ(types.at("master/" + p.name), kept[static_cast<size_t>(p.id)] ? DType::bf16 : DType::f32)
            << p.name;
    int moments = 0;
    for (const auto& [name, type] : types) {
        if (!name.starts_with("adamw_")) continue;
        const bool is_bf16 = name.find("value_embed.") != name.npos;
        EXPECT_EQ(type, is_bf16 ? DType::bf16 : DType::f32) << name;
        moments += is_bf16;
    }
    EXPECT_EQ(moments, 2);
    EXPECT_THROW(train(f32(), 1, "mixed", checkpoint("run", 4)), Error) << "another config";
    train(f32(), 1, "with");
    EXPECT_THROW(train(bf16(), 1, "mixed", checkpoint("with", 4)), Error) << "another config";
}

}  // namespace speedrun::testing::bf16_weights_run_test
