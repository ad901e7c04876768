// Initial values of a matrix.
#pragma once

#include "train/config/choices.h"
#include "train/fields/field_visitor.h"

namespace speedrun {

struct InitConfig {
    InitKind type = InitKind::constant;
    double value = 0;        // the constant, or the standard deviation
    bool by_fan_in = false;  // true: the deviation is divided by the root of the number of inputs
    bool by_depth = false;   // true: and by √(2·layers)
    void fields(FieldVisitor& v);
};

inline void init_field(FieldVisitor& v, const char* name, InitConfig& init, const char* doc) {
    v.section(name, doc, [&](FieldVisitor& s) { init.fields(s); });
}

}  // namespace speedrun
