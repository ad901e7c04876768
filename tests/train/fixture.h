// Expected values from PyTorch, written by fixtures/generate.py.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "train/config/config.h"

namespace speedrun::testing {

using Values = std::vector<double>;

struct ModelFixture {
    struct Entry {
        std::vector<int64_t> shape;
        Values values, gradient;  // gradient of the mean loss
    };
    ModelConfig model;
    int64_t sequence_length = 0;
    std::vector<int32_t> tokens, targets, positions, first_key;  // (T)
    double loss = 0;                                             // mean over valid targets
    Values losses;                                               // (T)
    std::map<std::string, Entry> parameters;

    int64_t valid_targets() const;
};

// Values of one parameter over the steps of an optimizer.
struct OptimizerFixture {
    struct Entry {
        Values start;
        std::vector<Values> gradients;  // per step
        std::map<int, Values> after;    // value after n steps
    };
    OptimizerGroupConfig group;
    int64_t model_dim = 0, mlp_ratio = 0;  // matrices only: shape of the model that declares them
    Values lr_factors;                     // per step
    std::map<std::string, Entry> parameters;
};

ModelFixture load_model_fixture(const std::string& name);
// Steps of an optimizer, by its config name. Elementwise optimizers have one parameter, named "".
OptimizerFixture load_optimizer_fixture(const std::string& name);
nlohmann::json load_json_fixture(const std::string& name);
std::string fixture_path(const std::string& file);

}  // namespace speedrun::testing
