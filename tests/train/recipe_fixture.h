// A whole recipe at small width as its float64 twin has it (fixtures/generate_record_44.py, generate_record_89.py), and the
// engine held to it: losses and gradients at the first step of every stage, and a run of all steps through the loader and the
// engine, on one rank and on several.
#pragma once

#include <gtest/gtest.h>

#include "data/batch_loader.h"
#include "tests/temp_dir.h"
#include "tests/train/model_harness.h"
#include "train/config/config.h"

namespace speedrun {
class World;
}

namespace speedrun::testing {

// All of up to 48 numbers; of larger matrices weighted sums of groups of rows and of columns (fixtures/recipe_fixture.py).
Values sketch_of(const Values& x, const std::vector<int64_t>& shape);

struct RecipeParameter {
    std::vector<int64_t> shape;
    Values start;
    std::map<int, Values> gradients;  // sketches, by step
    std::map<int, Values> changes;    // sketches of what so many steps have changed
    double change_norm = 0;           // of the last of them, in full
};
// shape and start, which is made and not stored.
RecipeParameter recipe_parameter(const nlohmann::json& json);

struct RecipeFixture {
    std::vector<uint16_t> train_tokens, val_tokens;  // as a dataset holds them
    std::vector<int32_t> prefixes;                   // by token; none: the loss counts none
    std::map<int, Values> token_losses;              // by step: of its rows, from the start
    Values step_losses;                              // means
    Values step_losses_with_bf16_moments;            // or none
    double validation_loss = 0;                      // mean, behind the last step
    std::map<std::string, RecipeParameter> parameters;
};

using Settings = std::vector<std::string>;

// How far an f32 engine may be from float64, relative to what is expected: for a model of five layers two to four times what it
// comes to on AVX2, which is in parentheses.
struct RecipeTolerances {
    // A loss is a few dozen roundings of 6e-8 (9.5e-7 of one token, 1.4e-7 of a mean of 384).
    double token_loss = 3e-6, mean_loss = 5e-7;
    // An element errs as the largest terms of its sum do (1.1e-6 of the largest element). Factors of a whole stream have sums
    // over all of it for gradients, most of which cancels (4e-6).
    double gradient = 3e-6, stream_gradient = 1.5e-5;
    // What a parameter has changed: Adam's (4e-6), and orthogonalised matrices. Polar Express begins with a slope of 16 near a
    // singular value of 1 and stretches small ones a thousandfold, so that roundings of 6e-8 grow (2e-5; the twin in f32 errs
    // by 1.2e-5). Other initial weights, with smaller singular values, came to 1.2e-4, engine and f32 twin alike.
    double adam = 1e-5, polar = 4e-5;
};

class RecipeTest : public ::testing::Test {
  protected:
    // config: a file; settings: its changes.
    RecipeTest(const std::string& name, const RecipeTolerances& tolerances, const std::string& config,
               Settings settings = {});
    void SetUp() override;

    Config config(const Settings& more = {}) const;
    // Losses and gradients of the steps that the fixture has them for.
    void expect_gradients();
    struct Run {
        Values losses;  // of the steps
        double validation_loss = 0;
        std::map<int, std::map<std::string, Values>> changes;  // after so many steps, by parameter
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
    Run run_rank(const Config& c, World* world) const;  // null: the only one

    const std::string config_;
    const Settings settings_;
    const TempDir dir_;
};

}  // namespace speedrun::testing
