// Accepts transformers that predict from their weights alone, rejects others.
#include "train/records/dense_rule.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>

#include "tests/train/small_model.h"
#include "train/model/build_model.h"
#include "train/model/nodes/embedding.h"

namespace speedrun::dense_rule_test {

std::string problem_of(const std::string& model) {
    const Config config =
        parse_config(R"({"model": )" + model + R"(, "batch": {"sequence_length": 64, "microbatch_tokens": 64,
            "tokens_per_step": 64}, "optimizers": {"groups": [{"params": ["*"]}]}})",
                     "test", {});
    return dense_problem(config.model, config.longest_sequence());
}

bool says(const std::string& problem, const std::string& part) {
    return problem.find(part) != std::string::npos;
}

TEST(DenseRuleTest, ShippedConfigsOfTheFirstRecordsMeetIt) {
    const std::filesystem::path configs = std::filesystem::path(SPEEDRUN_SOURCE_ROOT) / "configs";
    for (const char* name : {"kjv_baseline", "kjv_muon", "kjv_modern", "kjv_small_batch"}) {
        const Config config = read_config((configs / (std::string(name) + ".json")).string(), {});
        EXPECT_EQ(dense_problem(config.model, config.longest_sequence()), "") << name;
    }
    for (const char* name :
         {"kjv", "kjv_ngrams", "kjv_small_table", "kjv_two_layers", "kjv_narrow", "kjv_newest"}) {
        const Config config = read_config((configs / (std::string(name) + ".json")).string(), {});
        const std::string problem = dense_problem(config.model, config.longest_sequence());
        EXPECT_TRUE(says(problem, "one row per token of the vocabulary or per position")) << name << problem;
    }
}

TEST(DenseRuleTest, NamesTheKeyOfATableThatIsRefused) {
    EXPECT_EQ(problem_of(R"({"model_dim": 32, "tables": {"values": {}},
        "layers": {"count": 1, "each": {"attention": {"value_table": "values"}}}})"),
              "");
    EXPECT_EQ(problem_of(R"({"preset": "gpt2", "layers": {"count": 1}, "model_dim": 32})"), "");
    const std::string parts = R"("preset": "none", "model_dim": 32, "layers": {"count": 1},
        "input": [{"type": "table", "table": "embed"}, {"type": "table", "table": "more"}],
        "tables": {"embed": {}, "more": )";
    EXPECT_EQ(problem_of("{" + parts + R"({"rows": "positions"}}})"), "");
    EXPECT_TRUE(says(problem_of("{" + parts + R"({"rows": "ngrams", "num_rows": 512}}})"),
                     "model.tables.more.rows: 'ngrams'"));
    EXPECT_TRUE(says(problem_of(R"({"layers": {"count": 1}, "model_dim": 32, "init_from": "hf"})"),
                     "model.init_from: 'hf'"));
}

// Graphs that future config keys could produce.
class DenseGraphTest : public ::testing::Test {
  protected:
    DenseGraphTest() {
        model_ = build_model(config_, {.tokens = 64, .sequence_length = 64}, {.logit_rows = 64});
    }
    ParameterId table(int64_t rows) {
        return model_.table.declare("new.weight", {{Dimension::numbers, rows}, {Dimension::width, 32}}, {});
    }
    ValueId value(const char* name, Element element, Holder holder = Holder::program) {
        return model_.graph.value(name, element, {{Dimension::tokens, 64}}, holder);
    }
    void look_up(ParameterId table, ValueId ids) {
        const ValueId out =
            model_.graph.value("new.rows", Element::real, {{Dimension::tokens, 64}, {Dimension::width, 32}});
        model_.graph.add(std::make_unique<Embedding>(
            Embedding::Ports{.out = out, .tokens = ids, .table = table, .table_rows = 320}));
    }
    std::string problem() const { return dense_problem(model_, config_.padded_vocab_size()); }

    ModelConfig config_ =
        testing::model_of("modern", {.layers = 1, .width = 32, .heads = 2, .vocabulary = 257});
    ModelGraph model_;
};

TEST_F(DenseGraphTest, ATableOfTokensIsAllowed) {
    EXPECT_EQ(problem(), "");
    look_up(table(320), model_.find_input("tokens")->value);  // 257 tokens are padded to 320
    EXPECT_EQ(problem(), "");
}

TEST_F(DenseGraphTest, ATableOfOtherRowsIsRefused) {
    look_up(table(4096), model_.find_input("tokens")->value);
    EXPECT_TRUE(says(problem(), "new.weight has 4096 rows, the vocabulary has 320")) << problem();
}

TEST_F(DenseGraphTest, AnotherInputOfTheBatchIsRefused) {
    look_up(table(320), value("batch.suffixes", Element::ids, Holder::batch));
    EXPECT_TRUE(says(problem(), "it reads 'batch.suffixes', which is neither tokens nor positions"))
        << problem();
}

TEST_F(DenseGraphTest, CountsAsNumbersOfTheBatchAreRefused) {
    value("batch.counted", Element::f32, Holder::batch);
    EXPECT_TRUE(says(problem(), "it reads 'batch.counted'")) << problem();
}

TEST_F(DenseGraphTest, ATableOfConstantsIsRefused) {
    model_.graph.constant("counted", {{Dimension::vocabulary, 2}, {Dimension::vocabulary, 2}},
                          std::vector<float>(4, 1.0F));
    EXPECT_TRUE(says(problem(), "the constant 'counted' is no weight")) << problem();
}

TEST_F(DenseGraphTest, TargetsChooseNoRows) {
    look_up(table(320), model_.find_input("targets")->value);
    EXPECT_TRUE(says(problem(), "reads 'batch.targets'")) << problem();
}

}  // namespace speedrun::dense_rule_test
