// Gradients of a model against the loss of a float64 twin.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <random>

#include "tests/train/model_harness.h"

namespace speedrun::testing {

// Compares the gradient of each parameter, along three random directions, with a central difference of twin.loss(). twin.p has the
// parameters by name. The tolerance is 5e-5 of the gradient's norm plus least(parameter): f32 roundings of sums that cancel. The
// difference quotient itself errs by 1e-8.
template <class Twin>
void expect_gradients(ModelHarness& h, Twin& twin, std::mt19937_64& random,
                      const std::function<double(const Parameter&)>& least) {
    std::normal_distribution<double> normal;
    for (const Parameter& p : h.table().all()) {
        const Values gradient = h.gradient(p);
        EXPECT_GT(norm_of(gradient), 0) << p.name;
        Values& values = twin.p.at(p.name);
        const Values start = values;
        for (int trial = 0; trial < 3; ++trial) {
            Values direction(values.size());
            for (double& d : direction) d = normal(random);
            const auto at = [&](double step) {
                for (size_t i = 0; i < values.size(); ++i) values[i] = start[i] + step * direction[i];
                return twin.loss();
            };
            constexpr double kStep = 1e-5;
            const double slope = (at(kStep) - at(-kStep)) / (2 * kStep);
            values = start;
            const double given =
                std::inner_product(direction.begin(), direction.end(), gradient.begin(), 0.0);
            EXPECT_NEAR(given, slope, 5e-5 * norm_of(gradient) + least(p)) << p.name;
        }
    }
}

}  // namespace speedrun::testing
