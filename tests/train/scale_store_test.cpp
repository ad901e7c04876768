// Delayed scaling: scales compared with plain maxima, steps compared with constant scaling of the same values. Only
// training steps change scales.
#include "train/sharding/scale_store.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "kernels/cpu/cpu_device.h"
#include "tests/reference/reference.h"
#include "train/config/config_json.h"
#include "train/engine/batch_sources.h"
#include "train/engine/step_runner.h"

namespace speedrun::testing::scale_store_test {

using Settings = std::vector<std::string>;

constexpr float kUpX = 1.1f, kUp = 1.0f, kDownX = 1.8f, kDown = 1.12f;  // scale factors
constexpr int64_t kSteps = 6;

// exact_steps: steps with current scaling, for all scales; -1: always by amax
Config config_of(int64_t exact_steps, const Settings& more = {}) {
    Config config = parse_config(R"({
        "model": {"preset": "none", "model_dim": 32, "vocab_size": 60,
            "tables": {"embed": {"init": {"type": "normal", "value": 1}}},
            "input": [{"type": "table", "table": "embed"}],
            "layers": {"count": 2, "each": {"attention": null, "mlp": {"ratio": 2,
                "init": {"type": "normal", "value": 0.2}, "down_init": {"type": "normal", "value": 0.2}}}},
            "output": [{"type": "norm"}], "head": {}},
        "batch": {"sequence_length": 16, "microbatch_tokens": 32, "tokens_per_step": 64},
        "optimizers": {"groups": [{"params": ["*"], "lr": 0.02}]},
        "schedule": {"steps": 6}, "precision": "f32", "device": "cpu", "threads": 1})",
                                 "test", more);
    const auto how = [&](float factor) {
        Fp8ScaleConfig scale{.by = Fp8ScaleBy::current, .value = factor};
        if (exact_steps >= 0)
            scale = {.by = Fp8ScaleBy::delayed, .value = factor, .exact_steps = exact_steps};
        return scale;
    };
    MlpConfig& mlp = *config.model.parts.layers.each.mlp;
    mlp.up_fp8 = {.x = how(kUpX), .weight = how(kUp)};
    mlp.down_fp8 = {.x = how(kDownX), .weight = how(kDown)};
    config.validate();
    return config;
}

// Engine of one rank and its training batches.
struct Engine {
    explicit Engine(const Config& config, bool graphs = false)
        : config(config), runtime({.device = DeviceKind::cpu, .precision = DType::f32, .threads = 1}) {
        static_cast<CpuDevice&>(runtime.device()).allow_graphs(graphs);
        runner = std::make_unique<StepRunner>(config, runtime);
        runner->warm_up();
        EXPECT_EQ(runner->has_graphs(), graphs);
        runner->state().initialize(3);
    }
    StepResult step(int64_t number) {
        runner->enqueue(number, source);
        return runner->collect();
    }
    std::vector<double> losses(int64_t steps = kSteps) {
        std::vector<double> all;
        for (int64_t number = 0; number < steps; ++number) all.push_back(step(number).loss);
        return all;
    }
    std::vector<float> scales() {
        runtime.synchronize();
        const ScaleStore& store = runner->state().schedule.state().scales();
        std::vector<float> all;
        for (size_t i = 0; i < store.all().size(); ++i)
            all.push_back(*store.scale(static_cast<int>(i)).as<float>());
        return all;
    }
    std::vector<std::vector<float>> masters() {
        std::vector<std::vector<float>> all;
        for (const Parameter& p : runner->state().table().all()) {
            all.emplace_back(static_cast<size_t>(p.whole_numel()));
            runner->state().read_master(p, all.back().data());
        }
        return all;
    }

    const Config config;
    Runtime runtime;
    SyntheticBatches source{config};
    std::unique_ptr<StepRunner> runner;
};

float largest(const std::vector<float>& values) {
    float most = 0;
    for (const float value : values) most = std::max(most, std::abs(value));
    return most;
}

// Largest absolute value of the normed embedding rows of these tokens.
double largest_normed(const std::vector<float>& table, const std::vector<int32_t>& tokens) {
    reference::Matrix rows(static_cast<int64_t>(table.size()) / 32, 32);
    std::copy(table.begin(), table.end(), rows.values.begin());
    const reference::Matrix x = reference::embedding_forward(tokens, rows, {}, {});
    double most = 0;
    for (const double value : reference::norm_forward(x, {}, {}, NormKind::rmsnorm).y.values)
        most = std::max(most, std::abs(value));
    return most;
}

TEST(ScaleStoreTest, ScalesAreMaximaOfPreviousStep) {
    Engine engine(config_of(1));
    const std::vector<float> ones(8, 1.0f);
    EXPECT_EQ(engine.scales(), ones) << "warm-up scales are reset";
    SyntheticBatches same_rows(engine.config);
    std::vector<int32_t> tokens;
    for (int microbatch = 0; microbatch < 2; ++microbatch)
        for (const int32_t token : same_rows.next().tokens) tokens.push_back(token);
    const auto before = engine.masters();
    engine.step(0);
    const std::vector<float> scales = engine.scales();
    const auto master = [&](const char* name) {
        return before[static_cast<size_t>(engine.runner->state().table().find(name).id)];
    };
    const auto of = [&](const std::string& name) {
        const std::vector<KeptScale>& all = engine.runner->state().table().scales();
        for (size_t i = 0; i < all.size(); ++i)
            if (all[i].name == name) return scales[i];
        ADD_FAILURE() << "no scale of " << name;
        return 0.0f;
    };
    // Maxima are exact, and the scale is computed in the same f32 operations.
    EXPECT_EQ(of("blocks.0.mlp.up.weight"), largest(master("blocks.0.mlp.up.weight")) * (kUp / 448));
    EXPECT_EQ(of("blocks.1.mlp.down.weight"), largest(master("blocks.1.mlp.down.weight")) * (kDown / 448));
    // f32 norms are within 1e-6 of float64 norms.
    EXPECT_NEAR(of("blocks.0.mlp.up.x"), largest_normed(master("embed.weight"), tokens) * (kUpX / 448), 1e-8);
    const std::vector<int32_t> first(tokens.begin(), tokens.begin() + 32),
        second(tokens.begin() + 32, tokens.end());
    EXPECT_NE(largest_normed(master("embed.weight"), first), largest_normed(master("embed.weight"), second))
        << "the microbatches have equal maxima";
}

// A step with delayed scales is bitwise equal to a step with constants of the same values.
TEST(ScaleStoreTest, DelayedEqualsConstantScaling) {
    Engine kept(config_of(2));
    for (int64_t step = 0; step < 5; ++step) {
        const auto before = kept.masters();
        const std::vector<float> scales = kept.scales();
        const StepResult result = kept.step(step);
        if (step < 2) continue;
        Config constant = config_of(2);
        MlpConfig layers[2];
        for (size_t layer = 0; layer < 2; ++layer) {
            const auto how = [&](size_t i) {
                return Fp8ScaleConfig{.by = Fp8ScaleBy::constant, .value = scales[4 * layer + i]};
            };
            layers[layer] = *constant.model.parts.layers.each.mlp;
            layers[layer].up_fp8 = {.x = how(0), .weight = how(1)};
            layers[layer].down_fp8 = {.x = how(2), .weight = how(3)};
        }
        constant.model.parts.layers.each.mlp = layers[0];
        LayersAt second{.numbers = "1", .layer = constant.model.parts.layers.each};
        second.layer->mlp = layers[1];
        constant.model.parts.layers.at = {second};
        Engine other(constant);
        other.runner->state().assign(before);
        for (int64_t skipped = 0; skipped < 2 * step; ++skipped) other.source.next();
        const StepResult expected = other.step(step);
        EXPECT_EQ(result.loss, expected.loss) << "step " << step;
        EXPECT_EQ(result.grad_norm, expected.grad_norm) << "step " << step;
    }
}

TEST(ScaleStoreTest, FirstStepsUseCurrentScaling) {
    const std::vector<double> by_amax = Engine(config_of(-1)).losses();
    EXPECT_EQ(Engine(config_of(kSteps)).losses(), by_amax);
    const std::vector<double> later = Engine(config_of(3)).losses();
    for (size_t step = 0; step < later.size(); ++step)
        EXPECT_EQ(later[step] == by_amax[step], step < 3) << "step " << step;
}

TEST(ScaleStoreTest, CheckpointingAndGraphsAreBitwiseEqual) {
    for (const int64_t exact : {0, 3}) {
        SCOPED_TRACE(fmt::format("{} exact steps", exact));
        Engine plain(config_of(exact));
        const std::vector<double> expected = plain.losses();
        const Settings repeat = {"memory.activation_checkpointing=full"};
        Engine repeated(config_of(exact, repeat)), graphs(config_of(exact), true),
            both(config_of(exact, repeat), true);
        for (Engine* engine : {&repeated, &graphs, &both}) {
            EXPECT_EQ(engine->losses(), expected);
            EXPECT_EQ(engine->scales(), plain.scales());
            EXPECT_EQ(engine->masters(), plain.masters());
        }
    }
}

TEST(ScaleStoreTest, ValidationKeepsScales) {
    Engine engine(config_of(1)), undisturbed(config_of(1));
    for (Engine* e : {&engine, &undisturbed}) e->losses(2);
    const std::vector<float> scales = engine.scales();
    engine.runner->state().validation_model().forward(false);
    engine.runtime.synchronize();
    for (size_t i = 0; i < scales.size(); ++i)
        EXPECT_EQ(*engine.runner->state().schedule.state().scales().amax(static_cast<int>(i)).as<float>(), 0);
    EXPECT_EQ(engine.scales(), scales);
    EXPECT_EQ(engine.step(2).loss, undisturbed.step(2).loss);
}

// A checkpoint copies the scales before a later step. The next scales wait for a slow copy.
TEST(ScaleStoreTest, NextScalesWaitForCopies) {
    Engine engine(config_of(1));
    engine.losses(2);
    const std::vector<float> scales = engine.scales();
    ScaleStore& store = engine.runner->state().schedule.state().scales();
    auto& copy = static_cast<CpuStream&>(engine.runtime.copy());
    std::vector<float> copied(scales.size());
    std::promise<void> disk_is_ready;
    store.begin_copy(copy);
    copy.submit("slow copy", [ready = disk_is_ready.get_future().share()] { ready.wait(); });
    for (size_t i = 0; i < copied.size(); ++i)
        engine.runtime.device().copy(&copied[i], store.scale(static_cast<int>(i)).data, sizeof(float), copy);
    store.end_copy(copy);
    engine.runner->enqueue(2, engine.source);
    engine.runtime.compute().synchronize();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // enough for the next scales
    disk_is_ready.set_value();
    engine.runner->collect();
    EXPECT_NE(engine.scales(), scales);
    EXPECT_EQ(copied, scales);
}

// A checkpoint copies the scales of the step before it, also if their reduction is slow.
TEST(ScaleStoreTest, CopiesWaitForNewScales) {
    Engine engine(config_of(1));
    engine.losses(2);
    const std::vector<float> scales = engine.scales();
    ScaleStore& store = engine.runner->state().schedule.state().scales();
    Stream& copy = engine.runtime.copy();
    std::vector<float> copied(scales.size());
    std::promise<void> network_is_ready;
    static_cast<CpuStream&>(engine.runtime.reduce())
        .submit("slow reduction", [ready = network_is_ready.get_future().share()] { ready.wait(); });
    engine.runner->enqueue(2, engine.source);
    store.begin_copy(copy);
    for (size_t i = 0; i < copied.size(); ++i)
        engine.runtime.device().copy(&copied[i], store.scale(static_cast<int>(i)).data, sizeof(float), copy);
    store.end_copy(copy);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // enough for a copy that does not wait
    network_is_ready.set_value();
    engine.runner->collect();
    copy.synchronize();
    EXPECT_NE(engine.scales(), scales);
    EXPECT_EQ(copied, engine.scales());
}

}  // namespace speedrun::testing::scale_store_test
