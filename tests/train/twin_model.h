// A model in float64: losses and gradients of the engine are compared with it.
#pragma once

#include <functional>
#include <map>
#include <random>

#include "tests/train/model_harness.h"

namespace speedrun::testing {

Values product(const Values& w, const Values& x);          // W x
Values normed(const Values& x);                            // RMSNorm, epsilon 1e-5
void add(Values& x, double a, double b, const Values& y);  // x ← a·x + b·y

// One batch and the parameters by name; a test derives the formula of its model.
struct TwinModel {
    const HostBatch& batch;
    int64_t vocabulary;  // tokens; the head has rows of padding after them
    double softcap;      // bound of the logits; 0: none
    std::map<std::string, Values> p = {};

    TwinModel(const HostBatch& batch, const ModelConfig& model)
        : batch(batch), vocabulary(model.vocab_size), softcap(model.parts.head.softcap) {}
    virtual ~TwinModel() = default;
    virtual Values losses() const = 0;  // (T)
    double loss() const;                // sum over tokens

    double number(const std::string& name, size_t element = 0) const { return p.at(name).at(element); }
    Values row(const std::string& table, int64_t index, int64_t width) const;  // row `index` of NAME.weight
    Values linear(const std::string& name, const Values& x) const;  // NAME.weight x + NAME.bias, if present
    // scale · (down GELU(up u) + bias), of networks.NAME.
    Values network(const std::string& name, double scale, const Values& u) const;
    Values mlp(const std::string& block, const Values& x) const;  // down ReLU²(up norm(x))
    Values logits(const Values& x) const;                         // softcap(head norm(x))
    static double cross_entropy(const Values& z,
                                int32_t target);  // loss of logits z; 0 for a negative target
    double cross_entropy_of(const Values& x, size_t t) const {
        return cross_entropy(logits(x), batch.targets[t]);
    }
};

// Compares losses and gradients of the engine, with and without recomputation, with the twin's on one random batch.
// `start` draws the values of a parameter. Gradients are compared along three random directions with a central difference
// of loss(), whose own error is 1e-8. The tolerance is 5e-5 of the gradient's norm plus least(parameter): f32 roundings of
// sums that cancel.
struct TwinCase {
    const ModelConfig& model;
    int64_t rows, sequence_length;
    std::function<Values(const Parameter&, std::mt19937_64&)> start;
    std::function<double(const Parameter&)> least;
    std::vector<int32_t> prefixes = {};  // ModelHarness::prefixes
};
using MakeTwin = std::function<std::unique_ptr<TwinModel>(const HostBatch&)>;
void expect_twin(const TwinCase& c, const MakeTwin& make);

// Values rounded to f32 of a normal distribution.
Values normal_values(const Parameter& p, double mean, double deviation, std::mt19937_64& random);

}  // namespace speedrun::testing
