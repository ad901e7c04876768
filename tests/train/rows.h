// Float64 maths of a model, row by row, for tests that compare a whole model with its formula.
#pragma once

#include <cmath>

#include "tests/train/fixture.h"

namespace speedrun::testing {

inline Values product(const Values& w, const Values& x) {  // W x
    Values y(w.size() / x.size());
    for (size_t r = 0; r < y.size(); ++r)
        for (size_t c = 0; c < x.size(); ++c) y[r] += w[r * x.size() + c] * x[c];
    return y;
}

inline Values normed(const Values& x) {  // RMSNorm, epsilon 1e-5
    double squares = 0;
    for (const double v : x) squares += v * v;
    Values y = x;
    for (double& v : y) v /= std::sqrt(squares / static_cast<double>(x.size()) + 1e-5);
    return y;
}

}  // namespace speedrun::testing
