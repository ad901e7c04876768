// Assignment of parameters to optimizer groups.
#include "train/optim/groups.h"
#include "tests/errors.h"

#include "tests/train/model_harness.h"
#include "tests/train/small_model.h"
#include "train/model/build_model.h"

namespace speedrun::testing::groups_test {

std::string assignment_error(const ModelConfig& model, const std::vector<OptimizerGroupConfig>& groups) {
    OptimizersConfig config;
    config.groups = groups;
    return error_of(ExitCode::usage, [&] { assign_groups(parameters_of(model, 8), config); });
}

TEST(AssignGroupsTest, TheFirstGroupThatMatchesTakesAParameter) {
    const ParameterTable table = parameters_of(tiny_model(), 8);
    OptimizersConfig config;
    config.groups = {optimizer_group(OptimizerKind::adamw, {"*.out.*", "embed.weight"}),
                     optimizer_group(OptimizerKind::muon, {"blocks.?.*.weight"}),
                     optimizer_group(OptimizerKind::adamw, {"*"})};
    const std::vector<int> group_of = assign_groups(table, config);
    for (const Parameter& p : table.all()) {
        const int expected = p.name.ends_with("attn.out.weight") || p.name == "embed.weight" ? 0
                             : p.name == "head.weight"                                       ? 2
                                                                                             : 1;
        EXPECT_EQ(group_of[p.id], expected) << p.name;
    }
}

TEST(AssignGroupsTest, ParametersThatNoGroupTakesAreAllNamed) {
    const std::string message =
        assignment_error(tiny_model(), {optimizer_group(OptimizerKind::muon, {"blocks.*"})});
    EXPECT_THAT(message, HasSubstr("no group takes embed.weight, head.weight"));
    EXPECT_EQ(message.find("blocks."), std::string::npos) << message;
    // A pattern must match the whole name.
    EXPECT_THAT(assignment_error(tiny_model(), {optimizer_group(OptimizerKind::adamw, {"blocks"})}),
                HasSubstr("blocks.0.attn.qkv.weight"));
}

TEST(AssignGroupsTest, GroupThatTakesNothingIsAnError) {
    const std::string message = assignment_error(
        tiny_model(),
        {optimizer_group(OptimizerKind::adamw, {"*"}), optimizer_group(OptimizerKind::muon, {"blocks.*"})});
    EXPECT_THAT(message, HasSubstr("optimizers.groups[1]"));
}

TEST(AssignGroupsTest, VectorsHaveMastersOfF32) {
    OptimizerGroupConfig group = optimizer_group(OptimizerKind::adamw, {"*"});
    group.adamw.weights_dtype = DType::bf16;
    EXPECT_EQ(assignment_error(tiny_model(), {group}), "accepted") << "it has matrices alone";
    const std::string message = assignment_error(tiny_model("gpt2"), {group});
    EXPECT_THAT(message,
                HasSubstr("optimizers.groups[0]: weights_dtype is bf16, but its params match the vector "));
    EXPECT_EQ(assignment_error(tiny_model("gpt2"),
                               {optimizer_group(OptimizerKind::adamw, {"*norm*", "*.bias"}), group}),
              "accepted");
}

TEST(AssignGroupsTest, MuonTakesNoVectors) {
    const std::string message = assignment_error(
        tiny_model("gpt2"),
        {optimizer_group(OptimizerKind::muon, {"blocks.*"}), optimizer_group(OptimizerKind::adamw, {"*"})});
    EXPECT_THAT(message, HasSubstr("optimizers.groups[0]"));
    EXPECT_THAT(message, HasSubstr("blocks.0.attn_norm.gain"));
}

// heads_per_matrix applies to q and k, stored with v in one parameter of three matrices.
TEST(AssignGroupsTest, HeadsOfAMatrixDivideThem) {
    OptimizerGroupConfig matrices = optimizer_group(OptimizerKind::muon, {"blocks.*.weight"});
    const OptimizerGroupConfig rest = optimizer_group(OptimizerKind::adamw, {"*"});
    const ModelConfig model = model_of("modern", {.layers = 1, .width = 48, .heads = 6, .vocabulary = 50});
    for (const int64_t heads : {0, 1, 2, 3, 6}) {
        matrices.muon.heads_per_matrix = heads;
        EXPECT_EQ(assignment_error(model, {matrices, rest}), "accepted") << heads;
    }
    matrices.muon.heads_per_matrix = 4;
    EXPECT_THAT(assignment_error(model, {matrices, rest}),
                HasSubstr("optimizers.groups[0].heads_per_matrix 4 does not divide the 6 heads of "
                          "blocks.0.attn.qkv.weight"));
    matrices.params = {"blocks.*.mlp.*.weight"};
    EXPECT_THAT(
        assignment_error(model, {matrices, rest}),
        HasSubstr("optimizers.groups[0].heads_per_matrix is 4, but its params match no matrix of queries"));
}

}  // namespace speedrun::testing::groups_test
