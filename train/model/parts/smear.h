// Smear: x_t + c·sigmoid(w·x_t)·x_{t−1}, where x_{−1} = 0 in each row.
#pragma once

#include <cstdint>
#include <string>

#include "train/fields/field_visitor.h"

namespace speedrun {

struct SmearLayer;  // train/model/layers.h

struct SmearConfig {
    double start = 0;      // initial value of c
    int64_t columns = 12;  // first columns of the row that the gate reads

    void fields(FieldVisitor& v);
    // Throws a usage error for more columns than a row has.
    void check(const std::string& key, int64_t model_dim) const;
    void build(SmearLayer& layer) const;
};

}  // namespace speedrun
