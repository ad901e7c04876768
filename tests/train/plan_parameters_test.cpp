// Parameter list of `plan`: each with its meaning, optimizer group and compute dtype.
#include "train/commands/plan_parameters.h"
#include "tests/errors.h"

#include <nlohmann/json.hpp>
#include <set>

#include "train/config/config_json.h"
#include "train/model/build_model.h"

namespace speedrun::plan_parameters_test {

using Json = nlohmann::json;

Config parts(const char* precision) {
    const Config config = read_config(
        SPEEDRUN_SOURCE_ROOT "/configs/kjv_parts.json",
        {"device=cpu", std::string("precision=") + precision, "model.norms.gain=true",
         "model.layers.each.attention.value_scale=true", "model.layers.each.attention.exclude_own_value={}",
         "model.layers.each.attention.compose_heads={}", "model.layers.each.attention.bias=true"});
    return config;
}

TEST(PlanParameters, EveryParameterHasAMeaning) {
    const Config config = parts("bf16");
    const Json list = Json::parse(parameters_json(config));
    const ParameterTable table = parameters_of(config.model, config.longest_sequence());
    ASSERT_EQ(list.size(), static_cast<size_t>(table.size()));
    std::set<std::string> optimizers;
    for (size_t i = 0; i < list.size(); ++i) {
        const Parameter& p = table[static_cast<int>(i)];
        EXPECT_EQ(list[i]["name"], p.name);
        EXPECT_EQ(list[i]["shape"].get<std::vector<int64_t>>(), p.shape);
        EXPECT_FALSE(list[i]["meaning"].get<std::string>().empty()) << p.name;
        EXPECT_EQ(list[i]["dtype"], p.is_matrix() ? "bf16" : "f32") << p.name;
        optimizers.insert(list[i]["optimizer"].get<std::string>());
    }
    EXPECT_EQ(optimizers, (std::set<std::string>{"adamw", "muon"}));
    EXPECT_NE(parameters_json(parts("f32")), parameters_json(config));
}

TEST(PlanParameters, SayInWhichTypeTheyAreKept) {
    Config config = parts("bf16");
    for (OptimizerGroupConfig& group : config.optimizers.groups)
        if (group.type == OptimizerKind::muon) group.muon.weights_dtype = DType::bf16;
    int64_t kept_in_bf16 = 0;
    for (const Json& row : Json::parse(parameters_json(config))) {
        EXPECT_EQ(row["kept_in"], row["optimizer"] == "muon" ? "bf16" : "f32") << row;
        kept_in_bf16 += row["kept_in"] == "bf16" ? 1 : 0;
    }
    EXPECT_GT(kept_in_bf16, 0);
    EXPECT_THAT(parameters_text(config), HasSubstr("bf16  bf16  uniform"));
    config.precision = DType::f32;
    EXPECT_THROW(parameters_text(config), Error);
}

TEST(PlanParameters, TextHasALineForEach) {
    const std::string text = parameters_text(parts("f32"));
    EXPECT_EQ(text.find("parameter "), 0u) << text;
    EXPECT_THAT(text, HasSubstr("blocks.0.mix "));
    EXPECT_THAT(text, HasSubstr("[2]"));
    EXPECT_THAT(text, HasSubstr("1, 0 "));
    EXPECT_THAT(text, HasSubstr("2 muon   rows of q, then k, then v"));
    EXPECT_THAT(text, HasSubstr("a: v becomes a v\n"));
}

}  // namespace speedrun::plan_parameters_test
