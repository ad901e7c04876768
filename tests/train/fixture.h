// The committed answers of PyTorch: see fixtures/generate.py, which writes them.
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
        Values values, gradient;  // gradient: of the mean loss
    };
    ModelConfig model;
    int64_t sequence_length = 0;
    std::vector<int32_t> tokens, targets, positions, first_key;  // (T)
    double loss = 0;                                             // mean over valid targets
    Values losses;                                               // (T)
    std::map<std::string, Entry> parameters;

    int64_t valid_targets() const;
};

// One parameter's way through an optimizer.
struct OptimizerFixture {
    struct Entry {
        Values start;
        std::vector<Values> gradients;  // of each step
        std::map<int, Values> after;    // value after so many steps
    };
    OptimizerGroupConfig group;
    int64_t model_dim = 0, mlp_ratio = 0;  // of matrices: the model whose table holds the parameters
    Values lr_factors;                     // of each step
    std::map<std::string, Entry> parameters;
};

ModelFixture load_model_fixture(const std::string& name);
// The steps of the optimizer that configs call by this name. An elementwise one has one parameter, named "".
OptimizerFixture load_optimizer_fixture(const std::string& name);
nlohmann::json load_json_fixture(const std::string& name);
std::string fixture_path(const std::string& file);

}  // namespace speedrun::testing
