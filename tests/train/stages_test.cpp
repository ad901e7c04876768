// Configs with stages: accepted and refused lists, the resulting config of each stage, and per-stage values within a
// run.
#include <nlohmann/json.hpp>

#include "tests/errors.h"
#include "tests/train/small_model.h"
#include "train/config/config_json.h"
#include "train/config/lr_schedule.h"

namespace speedrun::stages_test {

using testing::together;
using Settings = std::vector<std::string>;

// Three stages of 2, 3 and 5 steps.
Config config_of(const Settings& more = {}) {
    const Settings stages = {"schedule.steps=10", "schedule.stages=[2, 5, 10]", "batch.sequence_length=16",
                             "batch.microbatch_tokens=64", "batch.tokens_per_step=64"};
    return parse_config(R"({
        "model": {"model_dim": 16, "vocab_size": 32,
                  "windows": {"window": 0},
                  "layers": {"count": 1, "each": {"attention": {"heads": 1, "window": "window"}}}},
        "optimizers": {"groups": [{"type": "muon", "params": ["blocks.*.weight"]}, {"params": ["*"]}]}})",
                        "test", together({stages, more}));
}

int64_t window_in(const Config& stage) {
    return stage.model.parts.windows.front().second;
}

std::string refusal_of(const Settings& settings) {
    return error_of(ExitCode::usage, [&] { config_of(settings); });
}

void expect_refused(const Settings& settings, const std::string& text) {
    const std::string refusal = refusal_of(settings);
    EXPECT_THAT(refusal, HasSubstr(text)) << settings.front() << ": " << refusal;
}

TEST(ScheduledTest, IsANumberOrOneEntryForEachStage) {
    const Scheduled<double> number = 3;
    EXPECT_TRUE(number.is_number() && number.fits(1) && number.fits(7));
    EXPECT_EQ(double{number}, 3);
    EXPECT_EQ(number.at({.stage = 6, .share = 0.5}), 3);

    const Scheduled<double> list({{1, 1}, {2, 4}});
    EXPECT_FALSE(list.is_number());
    EXPECT_TRUE(list.fits(2));
    EXPECT_FALSE(list.fits(1) || list.fits(3));
    EXPECT_EQ(list.at({.stage = 0, .share = 0.5}), 1);
    EXPECT_EQ(list.at({.stage = 1, .share = 0}), 2);
    EXPECT_EQ(list.at({.stage = 1, .share = 0.25}), 2.5);
    EXPECT_THROW(static_cast<void>(double{list}), Error);
    EXPECT_THROW(Scheduled<double>(std::vector<Scheduled<double>::Entry>{}), Error);
}

TEST(StagesTest, StepsBelongToStages) {
    const ScheduleConfig schedule = config_of().schedule;
    ASSERT_EQ(schedule.num_stages(), 3);
    const int64_t stages[] = {0, 0, 1, 1, 1, 2, 2, 2, 2, 2};
    for (int64_t step = 0; step < 10; ++step) EXPECT_EQ(schedule.stage_of(step), stages[step]) << step;
    EXPECT_EQ(schedule.stage_of(10), 2) << "the end of a run, where it may be resumed";
    EXPECT_EQ(schedule.first_step(1), 2);
    EXPECT_EQ(schedule.end_step(1), 5);
    EXPECT_EQ(schedule.point_of(2).share, 0);
    EXPECT_DOUBLE_EQ(schedule.point_of(3).share, 1 / 3.0);
    EXPECT_DOUBLE_EQ(schedule.point_of(9).share, 0.8);
    EXPECT_EQ(schedule.point_of(10).share, 1);
    EXPECT_EQ(schedule.point_of(0).left, 10);
    EXPECT_EQ(schedule.point_of(9).left, 1);
    EXPECT_EQ(schedule.point_of(11).left, 0);

    const ScheduleConfig whole = config_of({"schedule.stages=[]"}).schedule;
    EXPECT_EQ(whole.num_stages(), 1);
    EXPECT_EQ(whole.stage_of(9), 0);
    EXPECT_EQ(whole.end_step(0), 10);
    EXPECT_DOUBLE_EQ(whole.point_of(5).share, 0.5);
}

TEST(StagesTest, AStageIsAConfigOfItsOwn) {
    const Config config = config_of(
        {"batch.sequence_length=[16, 32, 8]", "batch.tokens_per_step=[64, 128, 256]",
         "batch.microbatch_tokens=[64, 64, 128]", "model.windows.window=[4, 0, 8]", "data.rows=documents",
         "data.max_document_tokens=[5, 6, 7]", "schedule.lr_factor=[0.5, [1, 2], 3]",
         "optimizers.groups.0.momentum=[0.8, 0.9, [0.9, 0.7]]"});
    const Config first = config.in_stage(0), middle = config.in_stage(1), last = config.in_last_stage();
    EXPECT_EQ(int64_t{first.batch.sequence_length}, 16);
    EXPECT_EQ(int64_t{middle.batch.sequence_length}, 32);
    EXPECT_EQ(int64_t{last.batch.sequence_length}, 8);
    EXPECT_EQ(middle.microbatches_per_step(), 2);
    EXPECT_EQ(last.microbatches_per_step(2), 1);
    EXPECT_EQ(window_in(first), 4);
    EXPECT_EQ(int64_t{last.data.max_document_tokens}, 7);
    EXPECT_EQ(middle.schedule.num_stages(), 1);
    EXPECT_EQ(config.longest_sequence(), 32);
    const int64_t before[] = {0, 64, 128, 256, 384, 512, 768};
    for (int64_t step = 0; step < 7; ++step) EXPECT_EQ(config.tokens_before(step), before[step]) << step;
    EXPECT_EQ(config.tokens_before(10), 2 * 64 + 3 * 128 + 5 * 256);
}

// Final steps are part of the last stage, so that a window can apply to these steps only.
TEST(StagesTest, FinalStepsAreOfTheLastStage) {
    const Config config = config_of({"schedule.steps=8", "schedule.final_steps=2",
                                     "schedule.stages=[4, 8, 10]", "model.windows.window=[4, 8, 16]"});
    const ScheduleConfig& schedule = config.schedule;
    EXPECT_EQ(schedule.total_steps(), 10);
    EXPECT_EQ(schedule.first_step(2), 8);
    EXPECT_EQ(schedule.end_step(2), 10);
    EXPECT_EQ(schedule.stage_of(9), 2);
    EXPECT_EQ(schedule.point_of(9).left, 1);
    EXPECT_EQ(window_in(config.in_last_stage()), 16);
    EXPECT_EQ(config.tokens_before(10), 640);
    const Config whole = config_of({"schedule.steps=8", "schedule.final_steps=2", "schedule.stages=[]"});
    EXPECT_EQ(whole.schedule.end_step(0), 10);
    EXPECT_DOUBLE_EQ(whole.schedule.point_of(5).share, 0.5);
}

TEST(StagesTest, RefusesFinalStepsBehindNoCooldown) {
    const Settings given = {"schedule.steps=8", "schedule.final_steps=2"};
    const auto with = [&](const Settings& more) { return together({given, more}); };
    EXPECT_EQ(refusal_of(with({"schedule.stages=[4, 8, 10]"})), "accepted");
    expect_refused(with({"schedule.stages=[4, 8]"}),
                   "schedule.stages ends after step 8, expected schedule.steps + schedule.final_steps, 10");
    expect_refused(
        with({"schedule.stages=[]", "schedule.decay=constant"}),
        "schedule.final_steps 2 are steps after a cooldown, but there is none (schedule.steps 8, decay "
        "constant, cooldown_fraction 0.5): add them to schedule.steps, or set a cooldown");
    expect_refused(with({"schedule.stages=[]", "schedule.cooldown_fraction=0"}), "cooldown_fraction 0)");
    expect_refused({"schedule.steps=0", "schedule.final_steps=2", "schedule.stages=[]"}, "schedule.steps 0");
    expect_refused(
        with({"schedule.stages=[]", "schedule.final_lr_fraction=0"}),
        "schedule.final_steps 2 would train at a learning rate of 0: set schedule.final_lr_fraction");
    expect_refused(with({"schedule.final_steps=-1"}), "final_steps: -1 is outside");
}

TEST(StagesTest, ChosenStage) {
    const Config config = config_of({"model.windows.window=[4, 0, 8]"});
    EXPECT_EQ(window_in(config.in_chosen_stage({})), 8);
    EXPECT_EQ(window_in(config.in_chosen_stage(1)), 0);
    for (const int64_t stage : {-1, 3}) EXPECT_THROW(config.in_chosen_stage(stage), Error) << stage;
}

// A model with these windows and layers, and a stage every two steps.
Config in_windows(const std::string& windows, const std::string& layers, int64_t stages,
                  const std::string& validation) {
    return parse_config(R"({
        "model": {"preset": "none", "model_dim": 16, "vocab_size": 32,
            "tables": {"embed": {}}, "input": [{"type": "table", "table": "embed"}], "windows": )" +
                            windows + R"(, "layers": )" + layers + R"(, "output": [{"type": "norm"}]},
        "batch": {"sequence_length": 16, "microbatch_tokens": 64, "tokens_per_step": 64},
        "optimizers": {"groups": [{"params": ["*"]}]},
        "schedule": {"steps": )" +
                            std::to_string(2 * stages) + R"(, "stages": )" +
                            (stages == 2 ? "[2, 4]" : "[2, 4, 6, 8]") + R"(}, "eval": {"windows": )" +
                            validation + "}}",
                        "test", {});
}

TEST(StagesTest, WindowsOfLayersByStage) {
    const Config config =
        in_windows(R"({"short": [2, 4], "long": [4, 16]})",
                   R"({"count": 2, "each": {"attention": {"heads": 1, "window": "short"}, "mlp": {}},
                                         "at": {"1": {"attention": {"window": "long"}}}})",
                   2, R"({"long": 8})");
    const auto window = [](const Config& stage, int64_t layer) {
        const ModelParts parts = stage.model.parts;
        const auto layers = parts.layers.resolved();
        return parts.window_of(*layers[static_cast<size_t>(layer)]->attention, layer);
    };
    EXPECT_EQ(window(config.in_stage(0), 0), 2);
    EXPECT_EQ(window(config.in_stage(1), 0), 4);
    EXPECT_EQ(window(config.in_stage(0), 1), 4);
    EXPECT_EQ(window(config.in_stage(1), 1), 16);
    EXPECT_EQ(window(config.in_validation(), 0), 4) << "as in the last stage";
    EXPECT_EQ(window(config.in_validation(), 1), 8);
}

Config with_yarn(const std::string& windows, const std::string& yarn, const std::string& validation = "{}") {
    return in_windows(
        windows,
        R"({"count": 1, "each": {"attention": {"heads": 1, "window": "short", "rotary": {"yarn": )" + yarn +
            R"(}}, "mlp": {}}})",
        4, validation);
}

// YaRN depends on the past windows, not on the current one. Validation in its own window uses the last stage's past.
TEST(StagesTest, WindowsThatYarnFollowsHaveAPast) {
    const Config config =
        with_yarn(R"({"short": 4, "long": [4, 4, 8, 13]})", R"({"window": "long"})", R"({"long": 16})");
    using Sizes = std::vector<int64_t>;
    const auto past = [](const Config& stage) { return stage.model.parts.past_of("long"); };
    EXPECT_EQ(past(config.in_stage(0)), Sizes{4});
    EXPECT_EQ(past(config.in_stage(1)), Sizes{4});
    EXPECT_EQ(past(config.in_stage(2)), (Sizes{4, 8}));
    EXPECT_EQ(past(config.in_last_stage()), (Sizes{4, 8, 13}));
    EXPECT_EQ(past(config.in_validation()), (Sizes{4, 8, 13}));
    EXPECT_EQ(past(config.in_last_stage().in_stage(0)), (Sizes{4, 8, 13}));
    EXPECT_EQ(config.in_last_stage().model.parts.past_of("short"), Sizes{}) << "no YaRN follows it";
    EXPECT_EQ(config_to_json(parse_config(config_to_json(config), "again", {})), config_to_json(config));
}

TEST(StagesTest, YarnRefusesWindowsWithoutARatio) {
    const auto refusal = [](const std::string& windows, const std::string& yarn) -> std::string {
        return error_of(ExitCode::usage, [&] { with_yarn(windows, yarn); });
    };
    const std::string windows = R"({"short": 4, "long": [4, 4, 8, 13]})";
    const std::string key = "model.layers, layer 0: attention.rotary.yarn";
    EXPECT_EQ(refusal(windows, R"({"window": "long"})"), "accepted");
    EXPECT_EQ(refusal(R"({"short": 4, "long": 0})", R"({"window": "long"})"), "accepted")
        << "it never changes";
    EXPECT_THAT(refusal(windows, R"({"window": "lang"})"),
                HasSubstr(key + ".window: no window \"lang\" in model.windows"));
    EXPECT_THAT(refusal(windows, R"({"window": "long", "alpha": 32})"),
                HasSubstr(key + ": alpha 32 is not below beta 32"));
    EXPECT_THAT(
        refusal(R"({"short": 4, "long": [4, 4, 8, 0]})", R"({"window": "long"})"),
        HasSubstr("stage 3 of schedule.stages: " + key + ": model.windows.long changes from 8 to 0 keys"));
    EXPECT_THAT(refusal(R"({"short": 4, "long": [1, 4, 8, 8]})", R"({"window": "long"})"),
                HasSubstr("model.windows.long changes from 1 to 4 keys"));
    EXPECT_THAT(
        refusal(R"({"short": 4, "long": [4, 1001, 2, 2]})", R"({"window": "long"})"),
        HasSubstr(
            "model.windows.long shrinks from 1001 to 2 keys, where log_scale 0.2 would multiply attention's "
            "scale by -0.382"));
}

TEST(StagesTest, WeightsOfTheLossByStage) {
    const auto parts = [](const std::string& weights) {
        return config_of(
            {R"(model={"preset": "none", "model_dim": 16, "vocab_size": 32, "tables": {"embed": {}},
                             "input": [{"type": "table", "table": "embed"}],
                             "layers": {"count": 1, "each": {"attention": {"heads": 1}}},
                             "output": [{"type": "norm"}], "loss": {"weights": )" +
             weights + "}}"});
    };
    const Config config = parts("[1, [0.5, [0.5, 0], 0], [[0.25, 0], 0, 0]]");
    EXPECT_EQ(config.in_stage(0).model.parts.loss.num_targets(), 3);
    EXPECT_EQ(config.in_stage(1).model.parts.loss.num_targets(), 2);
    EXPECT_TRUE(config.in_stage(2).model.parts.loss.is_plain());
    EXPECT_TRUE(config.in_validation().model.parts.loss.is_plain());
    EXPECT_EQ(config.model.parts.loss.weights[1].at({.stage = 1, .share = 0.5}), 0.25);
    const nlohmann::json json = nlohmann::json::parse(config_to_json(config));
    EXPECT_EQ(json["model"]["loss"]["weights"].dump(), "[1.0,[0.5,[0.5,0.0],0.0],[[0.25,0.0],0.0,0.0]]");
    EXPECT_EQ(config_to_json(parse_config(json.dump(), "again", {})), config_to_json(config));

    const auto refused = [&](const std::string& weights, const std::string& text) {
        expect_error(ExitCode::usage, {text}, [&] { parts(weights); });
    };
    refused("[]", "model.loss.weights: 0 weights, expected 1 to 8");
    refused("[1, 1, 1, 1, 1, 1, 1, 1, 1]", "9 weights, expected 1 to 8");
    refused("[0, 1]", "model.loss.weights[0] is 0: the weight of the next token must not be 0");
    refused("[1, [1, 2]]", "model.loss.weights[1] has 2 entries, schedule.stages has 3");
    refused("[1, -1]", "weights[1]: -1 is outside");
    refused("1", "expected a list");
    EXPECT_TRUE(config_of().model.parts.loss.is_plain()) << "a preset's";
}

TEST(StagesTest, ValidationHasRowsOfItsOwn) {
    const Config config = config_of({"batch.sequence_length=[16, 16, 32]", "model.windows.window=[4, 8, 16]",
                                     "eval.sequence_length=24", "eval.windows={\"window\": 0}"});
    const Config validation = config.in_validation();
    EXPECT_EQ(int64_t{validation.batch.sequence_length}, 24);
    EXPECT_EQ(int64_t{validation.batch.microbatch_tokens}, 48) << "whole rows of at most 64 tokens";
    EXPECT_EQ(window_in(validation), 0);
    EXPECT_EQ(config.longest_sequence(), 32);

    const Config plain = config_of({"batch.sequence_length=[16, 16, 32]", "eval.sequence_length=128"});
    EXPECT_EQ(int64_t{plain.in_validation().batch.microbatch_tokens}, 128) << "one row at least";
    EXPECT_EQ(plain.longest_sequence(), 128);
}

// Lists are written unchanged and read back equal.
TEST(StagesTest, ListsAreWrittenBack) {
    const Settings settings = {"model.windows.window=[4, 0, 8]", "schedule.lr_factor=[0.5, [1, 2], 3]",
                               "optimizers.groups.0.momentum=[[0.9, 0.7], 0.8, 0.9]",
                               "eval.windows={\"window\": 16}"};
    const std::string text = config_to_json(config_of(settings));
    EXPECT_EQ(config_to_json(parse_config(text, "again", {})), text);
    const nlohmann::json json = nlohmann::json::parse(text);
    EXPECT_EQ(json["model"]["windows"]["window"].dump(), "[4,0,8]");
    EXPECT_EQ(json["schedule"]["stages"].dump(), "[2,5,10]");
    EXPECT_EQ(json["schedule"]["lr_factor"].dump(), "[0.5,[1.0,2.0],3.0]");
    EXPECT_EQ(json["optimizers"]["groups"][0]["momentum"].dump(), "[[0.9,0.7],0.8,0.9]");
    EXPECT_EQ(json["eval"]["windows"]["window"], 16);
    EXPECT_EQ(json["batch"]["sequence_length"], 16) << "a number stays one";
}

TEST(StagesTest, RefusesWhatDoesNotFit) {
    expect_refused({"schedule.stages=[2, 2, 10]"}, "schedule.stages[1] is 2, expected more than 2");
    expect_refused({"schedule.stages=[2, 5]"},
                   "schedule.stages ends after step 5, expected schedule.steps, 10");
    expect_refused(
        {"schedule.steps=1000000000000", "schedule.stages=[1000000000000]", "batch.tokens_per_step=64000000"},
        "1000000000000 steps would be 6.4e+19 tokens");
    expect_refused({"schedule.stages=10"}, "schedule.stages");
    expect_refused({"model.windows.window=[1, 2]"},
                   "model.windows.window has 2 entries, schedule.stages has 3");
    expect_refused({"schedule.stages=[]", "model.windows.window=[1, 2]"}, "schedule.stages is empty");
    expect_refused({"model.windows.window=[]"}, "a list of one entry for each stage");
    expect_refused({"model.windows.window=[1, -1, 2]"}, "window[1]");
    expect_refused({"model.windows.window=[1, 1.5, 2]"}, "window[1]");
    expect_refused({"batch.tokens_per_step=[64, [64, 128], 128]"}, "tokens_per_step[1]");
    expect_refused({"schedule.lr_factor=[1, [1, 2, 3], 1]"}, "lr_factor[1]");
    expect_refused({"schedule.lr_factor=[1, [1, \"2\"], 1]"}, "lr_factor[1]");
    expect_refused({"optimizers.groups.0.momentum=[0.9, 1.5, 0.9]"}, "momentum[1]");
    expect_refused({"batch.sequence_length=[16, 12, 16]"},
                   "stage 1 of schedule.stages: batch.microbatch_tokens 64 is not a multiple");
    expect_refused({"eval.windows={\"windw\": 4}"},
                   "eval.windows.windw: the model has no window of this name, did you mean window?");
}

TEST(StagesTest, LearningRatesGoByStage) {
    Config config = config_of({"schedule.lr_factor=[0.5, [1, 4], 2]", "schedule.decay=constant"});
    const double factors[] = {0.5, 0.5, 1, 2, 3, 2, 2, 2, 2, 2};
    for (int64_t step = 0; step < 10; ++step)
        EXPECT_DOUBLE_EQ(learning_rate_factor(config.schedule, step), factors[step]) << step;
    config.schedule.warmup_steps = 4;
    EXPECT_DOUBLE_EQ(learning_rate_factor(config.schedule, 2), 1 * 0.75) << "beside the warm-up";
    config.schedule.decay = Decay::linear;
    config.schedule.cooldown_fraction = 0.5;
    config.schedule.final_lr_fraction = 0;
    EXPECT_DOUBLE_EQ(learning_rate_factor(config.schedule, 9), 2 * 0.2) << "beside the cooldown";
}

TEST(StagesTest, MomentumGoesByStage) {
    const Config config = config_of({"optimizers.groups.0.momentum=[0.8, [0.9, 0.6], 0.7]",
                                     "optimizers.groups.0.momentum_warmup_steps=0"});
    const double momentum[] = {0.8, 0.8, 0.9, 0.8, 0.7, 0.7};
    for (int64_t step = 0; step < 6; ++step)
        EXPECT_DOUBLE_EQ(muon_momentum_at(config.optimizers.groups[0], config.optimizers.groups[0].muon, step,
                                          config.schedule.point_of(step)),
                         momentum[step])
            << step;
}

}  // namespace speedrun::stages_test
