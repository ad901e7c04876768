// A whole recipe at small width with its float64 twin (fixtures/generate_record_44.py, generate_record_89.py).
// Compared with the engine: losses and gradients at the first step of every stage, and all steps through loader and
// engine, on one rank and on several.
#pragma once

#include <gtest/gtest.h>

#include "data/batch_loader.h"
#include "tests/temp_dir.h"
#include "tests/train/model_harness.h"

namespace speedrun {
class World;
}

namespace speedrun::testing {

// Up to 48 values: all of them. More: weighted sums over groups of rows and columns (fixtures/recipe_fixture.py).
Values sketch_of(const Values& x, const std::vector<int64_t>& shape);

struct RecipeParameter {
    std::vector<int64_t> shape;
    Values start;
    std::map<int, Values> gradients;  // sketches, by step
    std::map<int, Values> changes;    // sketches of the total change after n steps
    double change_norm = 0;           // norm of the last change, without sketching
};
// Reads the shape and computes the initial values, which are not stored.
RecipeParameter recipe_parameter(const nlohmann::json& json);

struct RecipeFixture {
    std::vector<uint16_t> train_tokens, val_tokens;  // as in a dataset
    std::vector<int32_t> prefixes;                   // per token; empty: no prefix targets
    std::map<int, Values> token_losses;              // step to token losses with the initial weights
    Values step_losses;                              // means
    Values step_losses_with_bf16_moments;            // may be empty
    double validation_loss = 0;                      // mean, after the last step
    std::map<std::string, RecipeParameter> parameters;
};

using Settings = std::vector<std::string>;

// Tolerances of an f32 engine against float64, relative to the expected values. For a model of five layers they are
// two to four times the errors on AVX2, which are in parentheses.
struct RecipeTolerances {
    // A loss accumulates a few dozen roundings of 6e-8 (9.5e-7 for one token, 1.4e-7 for a mean of 384).
    double token_loss = 3e-6, mean_loss = 5e-7;
    // The error of an element scales with the largest terms of its sum (1.1e-6 of the largest element). Gradients of
    // stream factors are sums over the whole stream with much cancellation (4e-6).
    double gradient = 3e-6, stream_gradient = 1.5e-5;
    // Total change: by Adam (4e-6), and by orthogonalisation. Polar Express starts with a slope of 16 for singular
    // values near 1 and amplifies small ones a thousandfold. It amplifies roundings of 6e-8 too (2e-5; the f32 twin
    // errs by 1.2e-5). Initial weights with smaller singular values gave 1.2e-4 in both the engine and the f32 twin.
    double adam = 1e-5, polar = 4e-5;
};

class RecipeTest : public ::testing::Test {
  protected:
    // config: a file; settings: its changes.
    RecipeTest(const std::string& name, const RecipeTolerances& tolerances, const std::string& config,
               Settings settings = {});
    void SetUp() override;

    Config config(const Settings& more = {}) const;
    // Compares losses and gradients of the steps stored in the fixture.
    void expect_gradients();
    struct Run {
        Values losses;  // per step
        double validation_loss = 0;
        std::map<int, std::map<std::string, Values>> changes;  // total change after n steps, by parameter
    };
    Run run(int num_ranks, const Settings& settings) const;
    void expect_losses(const Values& losses, const Values& expected) const;
    void expect_agreement(const Run& run) const;

    virtual bool is_of_stream(const std::string& name) const = 0;
    virtual bool is_orthogonalised(const std::string& name) const = 0;

    const std::string name_;
    const RecipeFixture fixture_;
    const RecipeTolerances tolerances_;

  private:
    BatchLoaderOptions loader(const Config& c, const Ranks& ranks = Ranks()) const;
    Run run_rank(const Config& c, World* world) const;  // null: single rank

    const std::string config_;
    const Settings settings_;
    const TempDir dir_;
};

}  // namespace speedrun::testing
