// Config reader: accepted inputs and the error message of each mistake.
// Covers: train/config/config_json.cpp train/config/config_reader.cpp train/config/config_keys.cpp
// Covers: train/config/model_config.cpp train/config/presets.cpp train/config/suggestion.cpp
#include "tests/errors.h"
#include "train/config/config_json.h"

#include "tests/temp_dir.h"

namespace speedrun::config_test {

// Smallest valid config with these extra members.
std::string config_text(const std::string& members = "") {
    return R"({"optimizers": {"groups": [{"type": "muon", "params": ["blocks.*.weight"], "lr": 0.02},
                                        {"params": ["*"], "lr": 0.003}]})" +
           (members.empty() ? "" : ", " + members) + "}";
}

Config parse(const std::string& members = "", const std::vector<std::string>& settings = {}) {
    return parse_config(config_text(members), "test.json", settings);
}

// Full message of the usage error for this text and these settings.
std::string error_of_text(const std::string& text, const std::vector<std::string>& settings = {}) {
    return error_of(ExitCode::usage, [&] { parse_config(text, "test.json", settings); });
}
std::string error_of(const std::string& members, const std::vector<std::string>& settings = {}) {
    return error_of_text(config_text(members), settings);
}

void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
    for (const std::string& part : parts)
        EXPECT_THAT(message, HasSubstr(part)) << part << "\nin: " << message;
}

// ---- unknown keys

TEST(ConfigKeysTest, UnknownKeySuggestsTheNearest) {
    EXPECT_EQ(error_of(R"("model": {"model_dims": 4})"),
              "model.model_dims: unknown key, did you mean model_dim?");
    EXPECT_EQ(error_of(R"("modle": {})"), "modle: unknown key, did you mean model?");
    EXPECT_EQ(error_of(R"("batch": {"sequence_len": 64})"),
              "batch.sequence_len: unknown key, did you mean sequence_length?");
    EXPECT_EQ(error_of("", {"schedule.warmup_step=5"}),
              "schedule.warmup_step: unknown key, did you mean warmup_steps?");
    EXPECT_EQ(error_of("", {"optimizers.groups.1.weigth_decay=5"}),
              "optimizers.groups[1].weigth_decay: unknown key, did you mean weight_decay?");
}

TEST(ConfigKeysTest, UnknownKeysAreShownWhateverTheyHold) {
    expect_parts(error_of(R"("\u0000sed": 4)"), {"\\u0000sed: unknown key, did you mean seed?"});
    expect_parts(error_of(R"("\u001b[2J": 4)"), {"\\u001b[2J: unknown key; known here:"});
    EXPECT_LT(error_of("\"" + std::string(100000, 'x') + "\": 4").size(), 1000u);
}

TEST(ConfigKeysTest, UnknownKeyUnlikeAnyListsThem) {
    expect_parts(error_of(R"("eval": {"xyzzyxyzzy": 4})"),
                 {"eval.xyzzyxyzzy: unknown key", "known here: every"});
}

// ---- types and ranges

TEST(ConfigValuesTest, WrongTypes) {
    const struct {
        const char* members;
        std::vector<std::string> parts;
    } cases[] = {
        {R"("model": {"layers": {"count": "four"}})",
         {"model.layers.count: expected a whole number, got \"four\""}},
        {R"("model": {"layers": {"count": 2.5}})", {"model.layers.count: expected a whole number, got 2.5"}},
        {R"("model": {"layers": {"count": true}})",
         {"model.layers.count: expected a whole number, got true"}},
        {R"("model": {"layers": {"count": null}})",
         {"model.layers.count: expected a whole number, got null"}},
        {R"("model": {"init_scale": "1"})", {"model.init_scale: expected a number, got \"1\""}},
        {R"("model": {"norms": {"gain": 1}})", {"model.norms.gain: expected true or false, got 1"}},
        {R"("model": {"norms": {"type": "batchnorm"}})",
         {"model.norms.type: expected rmsnorm | layernorm, got \"batchnorm\""}},
        {R"("memory": {"activation_checkpointing": true})",
         {"memory.activation_checkpointing: expected none | selective | full, got true"}},
        {R"("memory": {"checkpointed_blocks": 2})",
         {"memory.checkpointed_blocks: 2, but there is no such option any more: all blocks"}},
        {R"("model": {"preset": "gpt3"})", {"model.preset: expected none | gpt2 | modern, got \"gpt3\""}},
        {R"("model": {"preset": 2})", {"model.preset: expected none | gpt2 | modern, got 2"}},
        {R"("model": [])", {"model: an object {…} is expected, not []"}},
        {R"("model": 3)", {"model: an object {…} is expected, not 3"}},
        {R"("data": {"train": 7})", {"data.train: expected a list of strings, got 7"}},
        {R"("data": {"train": ["a", 7]})", {"data.train: expected a list of strings"}},
        {R"("record": {"track": []})", {"record.track: expected a string, got []"}},
        {R"("seed": "x")", {"seed: expected a whole number, got \"x\""}},
    };
    for (const auto& c : cases) expect_parts(error_of(c.members), c.parts);
    EXPECT_EQ(error_of_text(R"({"optimizers": {"groups": {"lr": 1}}})").substr(0, 53),
              "optimizers.groups: expected a list of objects, got {\"");
    expect_parts(error_of_text(R"({"optimizers": {"groups": [3]}})"),
                 {"optimizers.groups[0]", "object", "not 3"});
    expect_parts(error_of_text("[1]"), {"config", "object", "[1]"});
}

TEST(ConfigValuesTest, Ranges) {
    expect_parts(error_of(R"("model": {"layers": {"count": 0}})"),
                 {"model.layers.count: 0 is outside [1, 1000]"});
    expect_parts(error_of(R"("model": {"layers": {"count": 1e30}})"),
                 {"model.layers.count: 1e+30 is outside [1, 1000]"});
    expect_parts(error_of(R"("model": {"vocab_size": 65537})"),
                 {"model.vocab_size: 65537 is outside [2, 65536]"});
    expect_parts(error_of(R"("schedule": {"cooldown_fraction": 1.5})"),
                 {"schedule.cooldown_fraction: 1.5 is outside [0, 1]"});
    expect_parts(error_of("", {"optimizers.groups.0.lr=-0.1"}),
                 {"optimizers.groups[0].lr: -0.1 is outside [0, 1000]"});
    expect_parts(error_of(R"("seed": -1)"), {"seed: -1 is outside"});
    expect_parts(error_of("", {"optimizers.clip_norm=4"}),
                 {"optimizers.clip_norm: expected 1 | 2 | 3 | inf, got 4"});
    expect_parts(error_of("", {"parallel.optimizer_step=in_backward", "optimizers.clip=1"}),
                 {"needs the norm of all gradients, which is known only after backward"});
    expect_parts(error_of(R"("model": {"preset": "llama"})"),
                 {"model.preset: expected none | gpt2 | modern, got \"llama\""});
}

TEST(ConfigValuesTest, AcceptedForms) {
    for (const char* norm : {"1", "2", "3", "inf"})
        EXPECT_EQ(parse("", {std::string("optimizers.clip_norm=") + norm}).optimizers.clip_norm,
                  choice_of<VectorNorm>(norm));
    EXPECT_EQ(parse(R"("schedule": {"steps": 2e3})").schedule.steps, 2000);
    EXPECT_EQ(parse(R"("data": {"train": "one.bin"})").data.train, std::vector<std::string>{"one.bin"});
    EXPECT_EQ(parse(R"("parallel": {"shard": 1})").parallel.shard, "1");
    EXPECT_EQ(parse(R"("seed": 9000000000000000)").seed, 9000000000000000);
}

TEST(ConfigValuesTest, InvalidJson) {
    expect_parts(error_of_text("{\"model\": {\n  \"layers\": }}"), {"test.json: not valid JSON", "line 2"});
    expect_parts(error_of_text(""), {"test.json: not valid JSON"});
    const std::string deep(100000, '['), end(100000, ']');
    expect_parts(error_of_text(R"({"model": )" + deep + end + "}"),
                 {"not valid JSON: nested deeper than 64"});
    EXPECT_THROW(read_config("/nonexistent/config.json", {}), Error);
}

// ---- --set

TEST(ConfigSettingsTest, JsonStringsAndIndices) {
    const Config config = parse("", {"model.layers.count=7", "model.norms.gain=true", "data.train=data/*.bin",
                                     "data.val=[\"a\",\"b\"]", "optimizers.groups.0.lr=0.1",
                                     "optimizers.groups.1.params=[\"embed*\",\"*\"]",
                                     "record.track=laptop=fast", "eval={\"every\": 5}"});
    EXPECT_EQ(config.model.parts.layers.count, 7);
    EXPECT_TRUE(config.model.parts.norms.gain);
    EXPECT_EQ(config.data.train, std::vector<std::string>{"data/*.bin"});
    EXPECT_EQ(config.data.val, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(config.optimizers.groups[0].lr, 0.1);
    EXPECT_EQ(config.optimizers.groups[0].type, OptimizerKind::muon);
    EXPECT_EQ(config.optimizers.groups[1].params.size(), 2u);
    EXPECT_EQ(config.record.track, "laptop=fast");
    EXPECT_EQ(config.eval.every, 5);
}

TEST(ConfigSettingsTest, TheLastSettingWins) {
    EXPECT_EQ(parse(R"("seed": 3)", {"seed=4", "seed=5"}).seed, 5);
}

TEST(ConfigSettingsTest, Errors) {
    expect_parts(error_of("", {"seed"}), {"--set seed", "dotted.key=value"});
    expect_parts(error_of("", {"=5"}), {"--set =5", "dotted.key=value"});
    expect_parts(error_of("", {"optimizers.groups.2.lr=0.1"}), {"'2' is not an index below 2"});
    expect_parts(error_of("", {"optimizers.groups.first.lr=0.1"}), {"'first' is not an index below 2"});
    expect_parts(error_of("", {"optimizers.groups.-1.lr=0.1"}), {"'-1' is not an index below 2"});
    expect_parts(error_of(R"("seed": 3)", {"seed.x=0.1"}), {"--set seed.x=0.1", "'x'", "not an object"});
    expect_parts(error_of("", {"record.track=\xff"}), {"the value is not valid UTF-8"});
    std::string key = "data.train";
    for (int i = 0; i < 1000; ++i) key += ".0";
    expect_parts(error_of("", {key + "=1"}), {"1002 nested keys"});
    const std::string long_list =
        "[" + std::string(10000, ' ') + R"(1, "a)" + std::string(10000, 'a') + "\"]";
    EXPECT_LT(error_of("", {"data.train=" + long_list}).size(), 300u);
    expect_parts(error_of("", {"model.layers.count=many"}),
                 {"model.layers.count: expected a whole number, got \"many\""});
}

// ---- presets

TEST(ConfigPresetTest, KeysBesideThePresetWinWhateverTheOrder) {
    for (const char* model :
         {R"("model": {"preset": "gpt2", "norms": {"type": "rmsnorm"}, "head": {"softcap": 30}})",
          R"("model": {"head": {"softcap": 30}, "norms": {"type": "rmsnorm"}, "preset": "gpt2"})"}) {
        const ModelParts parts = parse(model).model.parts;
        EXPECT_EQ(parts.norms.type, NormKind::rmsnorm);
        EXPECT_EQ(parts.head.softcap, 30);
        // The rest is GPT-2's.
        EXPECT_TRUE(parts.norms.gain && parts.norms.bias && parts.layers.each.attention->bias);
        EXPECT_TRUE(parts.has_positions());
        EXPECT_EQ(parts.head.tied_to, "embed");
    }
}

TEST(ConfigPresetTest, PresetBySetting) {
    for (const std::vector<std::string>& settings :
         {std::vector<std::string>{"model.preset=gpt2", "model.norms.bias=false"},
          {"model.norms.bias=false", "model.preset=gpt2"}}) {
        const ModelParts parts =
            parse(R"("model": {"layers": {"each": {"mlp": {"activation": "relu_squared"}}}})", settings)
                .model.parts;
        EXPECT_EQ(parts.layers.each.mlp->activation, Activation::relu_squared);
        EXPECT_EQ(parts.norms.type, NormKind::layernorm);
        EXPECT_FALSE(parts.norms.bias);
    }
}

// A layer of `at` starts from `each`, with the preset's keys and the config's, in any order of the keys.
TEST(ConfigPresetTest, LayersOfAtChangeEach) {
    const std::string at = R"("at": {"1": {"attention": {"window": 8}}})";
    const std::string each = R"("each": {"attention": {"heads": 2}, "mlp": {"ratio": 3}})";
    for (const std::string& layers : {at + ", " + each, each + ", " + at}) {
        const Config config =
            parse(R"("model": {"layers": {"count": 2, )" + layers + R"(}, "preset": "gpt2"})");
        const auto resolved = config.model.parts.layers.resolved();
        for (const auto& layer : resolved) {
            EXPECT_EQ(layer->attention->heads, 2);
            EXPECT_TRUE(layer->attention->bias && layer->mlp->bias);
            EXPECT_EQ(layer->mlp->ratio, 3);
            EXPECT_EQ(layer->attention->init.value, 0.02);
        }
        EXPECT_EQ(resolved[0]->attention->window, "0");
        EXPECT_EQ(resolved[1]->attention->window, "8");
    }
}

TEST(ConfigPresetTest, ListsReplaceAndTablesOfNullGo) {
    const ModelParts parts = parse(R"("model": {"preset": "gpt2", "tables": {"position": null},
        "input": [{"type": "table", "table": "embed"}]})")
                                 .model.parts;
    ASSERT_EQ(parts.tables.size(), 1u);
    EXPECT_EQ(parts.tables.front().first, "embed");
    EXPECT_EQ(parts.input.size(), 1u);
    expect_parts(error_of(R"("model": {"preset": "none"})"), {"model.input is empty"});
}

TEST(ConfigPresetTest, RemovedSwitchesNameTheirNewForm) {
    EXPECT_EQ(error_of(R"("model": {"num_layers": 2})"),
              "model.num_layers: there is no such key any more; instead: model.layers.count");
    expect_parts(error_of("", {"model.window=[4, 8]"}),
                 {"model.layers.each.attention.window", "model.windows"});
    expect_parts(error_of("", {"model.ngram_tables=0"}), {"model.ngram_tables", "share a table"});
}

TEST(ConfigPresetTest, ModernIsTheDefault) {
    const std::string resolved = config_to_json(parse());
    EXPECT_EQ(config_to_json(parse(R"("model": {"preset": "modern"})")), resolved);
    EXPECT_EQ(config_to_json(parse(R"("model": {})")), resolved);
}

// ---- the resolved config

TEST(ConfigRoundTripTest, ResolvedConfigReadsBackTheSame) {
    for (const char* members :
         {"", R"("model": {"preset": "gpt2", "head": {"softcap": 0.1}}, "seed": 8999999999999999)",
          R"("schedule": {"steps": 300, "cooldown_fraction": 0.3333333333333333},
                                   "data": {"train": ["a b", "c\"d"]}, "parallel": {"shard": 1}, "precision": "f32")"}) {
        const std::string resolved = config_to_json(parse(members));
        EXPECT_EQ(config_to_json(parse_config(resolved, "resolved", {})), resolved);
    }
}

TEST(ConfigRoundTripTest, FilesAreReadLikeText) {
    const TempDir dir;
    const Config config = read_config(dir.write("config.json", config_text(R"("seed": 12)")), {"threads=3"});
    EXPECT_EQ(config.seed, 12);
    EXPECT_EQ(config.threads, 3);
}

// ---- combinations

TEST(ConfigValidationTest, DivisibilityErrorsShowBothValues) {
    expect_parts(error_of("", {"model.model_dim=100", "model.layers.each.attention.heads=3"}),
                 {"model.layers, layer 0: attention.heads 3 does not divide model.model_dim 100"});
    const std::vector<std::string> odd = {"model.model_dim=100", "model.layers.each.attention.heads=20"};
    expect_parts(error_of("", odd), {"attention.rotary needs an even head size, not 5"});
    EXPECT_EQ(error_of(R"("model": {"preset": "gpt2"})", odd), "accepted") << "without rotary angles";
    expect_parts(error_of(R"("batch": {"sequence_length": 100, "microbatch_tokens": 250})"),
                 {"batch.microbatch_tokens 250", "batch.sequence_length 100"});
    expect_parts(
        error_of(R"("batch": {"sequence_length": 10, "microbatch_tokens": 100, "tokens_per_step": 250})"),
        {"batch.tokens_per_step 250", "batch.microbatch_tokens 100"});
}

// Each size is in its range, but their product exceeds 64 bits.
TEST(ConfigValidationTest, AbsurdSizes) {
    expect_parts(error_of(R"("batch": {"microbatch_tokens": 1e9})"),
                 {"batch.microbatch_tokens: 1000000000 is outside [1, 16777216]"});
    expect_parts(
        error_of(R"("batch": {"sequence_length": 1, "microbatch_tokens": 1, "tokens_per_step": 1e12})"),
        {"batch.tokens_per_step 1000000000000 is 1000000000000 microbatches", "at most 65536"});
    expect_parts(
        error_of(R"("model": {"model_dim": 65536, "layers": {"count": 1000, "each": {"mlp": {"ratio": 64}}}},
                             "batch": {"tokens_per_step": 524288})"),
        {"a step would be about 1.8e+21 floating-point operations", "1000 layers x 65536"});
    // GPT-3's size is accepted.
    EXPECT_EQ(
        error_of(
            R"("model": {"model_dim": 12288, "layers": {"count": 96, "each": {"attention": {"heads": 96}}}, "vocab_size": 50257},
                          "batch": {"sequence_length": 2048, "microbatch_tokens": 2048, "tokens_per_step": 3145728})"),
        "accepted");
}

TEST(ConfigValidationTest, Parallel) {
    const Config config = parse(
        R"("parallel": {"strategy": "zero1", "launch": "after_backward", "shard": 8, "timeout_s": 2.5})");
    EXPECT_EQ(config.parallel.strategy, Strategy::zero1);
    EXPECT_EQ(config.parallel.launch, Launch::after_backward);
    EXPECT_EQ(config.parallel.shard, "8");
    EXPECT_EQ(config.parallel.timeout_s, 2.5);
    expect_parts(error_of(R"("parallel": {"strategy": "zero4"})"),
                 {"parallel.strategy: expected ddp | zero1 | zero2 | zero3, got \"zero4\""});
    EXPECT_EQ(parse(R"("parallel": {"reshard_after_forward": false})").parallel.reshard_after_forward,
              Reshard::no);
    expect_parts(error_of("", {"optimizers.groups.0.every=0"}), {"every: 0 is outside"});
    expect_parts(error_of(R"("parallel": {"timeout_s": 0})"), {"parallel.timeout_s: 0 is outside"});
}

// Resolved configs of the first records contain an option that was later replaced.
TEST(ConfigValidationTest, RetiredOptionsAreReadWhereTheyWereOff) {
    EXPECT_EQ(error_of(R"("memory": {"checkpointed_blocks": "all"})"), "accepted");
    EXPECT_EQ(error_of(R"("parallel": {"tensor_chunks": 1, "context_exchange": "gather"})"), "accepted");
    expect_parts(error_of(R"("parallel": {"context_exchange": "ring"})"),
                 {"parallel.context_exchange: \"ring\"", "keys are gathered"});
    expect_parts(error_of(R"("parallel": {"tensor_chunks": 4})"),
                 {"parallel.tensor_chunks: 4", "no step faster"});
}

TEST(ConfigValidationTest, OtherCombinations) {
    EXPECT_EQ(parse(R"("data": {"rows": "documents", "max_document_tokens": 512})").data.rows,
              RowKind::documents);
    expect_parts(error_of(R"("data": {"max_document_tokens": 7})"),
                 {"data.max_document_tokens 7", "data.rows is stream"});
    expect_parts(error_of(R"("data": {"rows": "documents", "max_document_tokens": 513})"),
                 {"data.max_document_tokens 513", "batch.sequence_length 512"});
    expect_parts(error_of(R"("data": {"rows": "document"})"), {"stream | documents", "\"document\""});
    expect_parts(error_of(R"("schedule": {"steps": 10, "warmup_steps": 11})"),
                 {"schedule.warmup_steps 11", "schedule.steps 10"});
    expect_parts(error_of_text("{}"), {"optimizers.groups is empty"});
    expect_parts(error_of("", {"optimizers.groups.1.params=[]"}), {"optimizers.groups[1].params is empty"});
}

}  // namespace speedrun::config_test
