// The values of fields as text, to compare two structs key by key.
#pragma once

#include <string>
#include <vector>

#include "train/fields/field_visitor.h"

namespace speedrun {

struct FieldText {
    std::string name, value;
};

// The fields that a call of `fields` visits, in order. Internal error for nested objects and lists of objects.
std::vector<FieldText> field_texts(const FieldVisitor::Fields& fields);

}  // namespace speedrun
